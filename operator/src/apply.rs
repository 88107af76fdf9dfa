//! All writes to the API server: server-side apply under the operator's field managers, counted by type.

use std::{fmt::Debug, sync::Arc};

use gputenancy_crds::{VIRTUAL_CLUSTER_FINALIZER, names};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{core::v1::Pod, policy::v1::Eviction},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams},
    core::ClusterResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{metrics::Metrics, object_name::ObjectName};

/// A part of the operator, with a field manager of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Namespaces, quotas and roles of tenants.
    Tenant,
    /// Specs of `GpuNode`s, labels of nodes, eviction notices on pods.
    Pool,
    /// Label of `GpuNode`s with the name of their pool.
    PoolLabel,
    /// Status of all custom resources.
    Status,
    /// Layouts for components that partition a node as a whole, and the label that requests one.
    Partitioner,
    /// Configs for NVIDIA's device plugin.
    DevicePlugin,
}

impl Part {
    /// The part's field manager.
    pub fn manager(self) -> String {
        let part = match self {
            Self::Tenant => "tenant",
            Self::Pool => "pool",
            Self::PoolLabel => "pool-label",
            Self::Status => "status",
            Self::Partitioner => "mig-manager",
            Self::DevicePlugin => "device-plugin",
        };
        format!("{}/{part}", names::OPERATOR_MANAGER)
    }
}

/// Answer to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The pod is terminating or deleted.
    Accepted,
    /// A `PodDisruptionBudget` or an admission policy forbids it for now; the API server's message.
    Refused(String),
}

/// Writes to the API server.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    metrics: Arc<Metrics>,
}

impl Writer {
    /// A writer that counts in `metrics`.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self { client, metrics }
    }

    /// The client, for reads.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    fn count<K: Resource<DynamicType = ()>>(&self, verb: &'static str) {
        self.metrics.write(&K::kind(&()), verb);
    }

    /// Applies a namespaced object and returns its metadata. Takes fields over that another manager owns, which repairs drift.
    pub async fn apply<K>(&self, part: Part, object: &K) -> kube::Result<PartialObjectMeta<DynamicObject>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + Debug,
    {
        let key = (&*object.namespace().unwrap_or_default(), &*object.name_any());
        self.apply_as(part, &ApiResource::erase::<K>(&()), key, object).await
    }

    /// As [`Self::apply`], for an object of this type, namespace and name.
    pub async fn apply_as(
        &self,
        part: Part,
        resource: &ApiResource,
        (namespace, name): (&str, &str),
        object: &(impl Serialize + Debug),
    ) -> kube::Result<PartialObjectMeta<DynamicObject>> {
        self.metrics.write(&resource.kind, "apply");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, resource);
        api.patch_metadata(name, &force(part), &Patch::Apply(object)).await
    }

    /// Applies these fields to a cluster-scoped object.
    pub async fn apply_fields<K>(&self, part: Part, name: &str, fields: Value) -> kube::Result<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("apply");
        let api: Api<K> = Api::all(self.client.clone());
        api.patch(name, &force(part), &Patch::Apply(typed::<K>(fields))).await
    }

    /// Why applying these fields without force would be refused, which names the managers that own them. Nothing is written.
    pub async fn conflicts<K>(&self, part: Part, name: &str, fields: Value) -> kube::Result<Option<String>>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug,
    {
        let params = PatchParams::apply(&part.manager()).dry_run();
        match Api::<K>::all(self.client.clone()).patch(name, &params, &Patch::Apply(typed::<K>(fields))).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Some(status.message.clone())),
            Err(error) => Err(error),
        }
    }

    /// Applies the whole status of a cluster-scoped object.
    pub async fn apply_status<K>(&self, name: &str, status: &impl Serialize) -> kube::Result<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("apply_status");
        let api: Api<K> = Api::all(self.client.clone());
        let body = typed::<K>(json!({ "status": status }));
        api.patch_status(name, &force(Part::Status), &Patch::Apply(body)).await
    }

    /// Applies these fields to the status of an object that a tenant may have named.
    pub async fn apply_status_in(
        &self,
        part: Part,
        namespace: &str,
        resource: &ApiResource,
        name: &ObjectName,
        mut fields: Value,
    ) -> kube::Result<()> {
        self.metrics.write(&resource.kind, "apply_status");
        if let Some(map) = fields.as_object_mut() {
            map.insert("apiVersion".into(), resource.api_version.clone().into());
            map.insert("kind".into(), resource.kind.clone().into());
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, resource);
        api.patch_status(name.as_str(), &force(part), &Patch::Apply(fields)).await.map(drop)
    }

    /// Creates a cluster-scoped object; fails if it exists, so it never adopts an object.
    pub async fn create<K>(&self, part: Part, object: &K) -> kube::Result<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("create");
        let params = PostParams { field_manager: Some(part.manager()), ..PostParams::default() };
        Api::all(self.client.clone()).create(&params, object).await
    }

    /// Creates a namespaced object unless it exists; true: it was created.
    pub async fn create_in<K>(&self, part: Part, namespace: &str, object: &K) -> kube::Result<bool>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("create");
        let params = PostParams { field_manager: Some(part.manager()), ..PostParams::default() };
        match Api::<K>::namespaced(self.client.clone(), namespace).create(&params, object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Merges these fields; `null` removes one.
    pub async fn merge<K>(&self, api: &Api<K>, name: &str, fields: &Value) -> kube::Result<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("patch");
        let params = PatchParams { field_manager: Some(names::OPERATOR_MANAGER.into()), ..PatchParams::default() };
        api.patch(name, &params, &Patch::Merge(fields)).await
    }

    /// Deletes a namespaced object of this type and name, if it exists.
    pub async fn delete_as(&self, resource: &ApiResource, (namespace, name): (&str, &str)) -> kube::Result<()> {
        self.metrics.write(&resource.kind, "delete");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, resource);
        found(api.delete(name, &DeleteParams::default()).await)
    }

    /// Deletes an object, if it exists and has this uid.
    pub async fn delete<K>(&self, api: &Api<K>, name: &str, uid: Option<String>) -> kube::Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("delete");
        let preconditions = uid.map(|uid| kube::api::Preconditions { uid: Some(uid), resource_version: None });
        found(api.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await)
    }

    /// Sets or removes the operator's finalizer. The version keeps finalizers that others add at the same time.
    pub async fn set_finalizer<K>(&self, object: &K, wanted: bool) -> kube::Result<()>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug,
    {
        if has_finalizer(object) == wanted {
            return Ok(());
        }
        let mut finalizers = object.finalizers().to_vec();
        // the controller of virtual clusters may be uninstalled, and then its finalizer would stay
        finalizers.retain(|f| f != names::FINALIZER && (wanted || f != VIRTUAL_CLUSTER_FINALIZER));
        if wanted {
            finalizers.push(names::FINALIZER.into());
        }
        let fields = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
        found(self.merge(&Api::<K>::all(self.client.clone()), &object.name_any(), &fields).await)
    }

    /// Evicts one pod by the eviction API, if it has this uid.
    pub async fn evict(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<Evicted> {
        self.count::<Pod>("evict");
        let preconditions = Some(Preconditions { uid: Some(uid.into()), resource_version: None });
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions { preconditions, ..DeleteOptions::default() }),
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let answer: kube::Result<Value> =
            api.create_subresource("eviction", name, &PostParams::default(), &eviction).await;
        match answer {
            Ok(_) => Ok(Evicted::Accepted),
            // conflict: another pod has the name by now
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(Evicted::Accepted),
            Err(kube::Error::Api(status)) if status.code == 429 => {
                let causes = status.details.iter().flat_map(|d| &d.causes).map(|c| c.message.as_str());
                let messages: Vec<&str> = std::iter::once(status.message.as_str()).chain(causes).collect();
                Ok(Evicted::Refused(messages.join(" ")))
            }
            // the chart's policy keeps the cluster's own namespaces from evictions
            Err(kube::Error::Api(status)) if status.message.contains("gputenancy-operator-evictions") => {
                Ok(Evicted::Refused(status.message))
            }
            // two budgets of a pod are refused with 500, as if the API server had failed
            Err(kube::Error::Api(status)) if status.message.contains("more than one PodDisruptionBudget") => {
                Ok(Evicted::Refused(status.message))
            }
            Err(error) => Err(error),
        }
    }
}

/// An object that does not exist needs no delete and no finalizer.
fn found<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

fn force(part: Part) -> PatchParams {
    PatchParams::apply(&part.manager()).force()
}

fn typed<K: Resource<DynamicType = ()>>(mut fields: Value) -> Value {
    if let Some(map) = fields.as_object_mut() {
        map.insert("apiVersion".into(), K::api_version(&()).into());
        map.insert("kind".into(), K::kind(&()).into());
    }
    fields
}

/// Has the object the operator's finalizer?
pub fn has_finalizer(object: &impl Resource) -> bool {
    object.meta().finalizers.iter().flatten().any(|f| f == names::FINALIZER)
}
