//! All writes to the API server: server-side apply under the operator's field managers, counted by type.

use std::{fmt::Debug, sync::Arc};

use gputenancy_cluster::write::{self, Evicted, FieldManager, present};
use gputenancy_crds::{VIRTUAL_CLUSTER_FINALIZER, names};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, PartialObjectMeta},
    core::ClusterResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

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
    /// Queues of a batch scheduler.
    Queues,
}

impl Part {
    /// The part's field manager.
    pub fn manager(self) -> FieldManager {
        let part = match self {
            Self::Tenant => "tenant",
            Self::Pool => "pool",
            Self::PoolLabel => "pool-label",
            Self::Status => "status",
            Self::Partitioner => "mig-manager",
            Self::DevicePlugin => "device-plugin",
            Self::Queues => "queues",
        };
        FieldManager::new(format!("{}/{part}", names::OPERATOR_MANAGER))
    }
}

/// The chart's policy that keeps the cluster's own namespaces from evictions.
const EVICTION_POLICY: &str = "gputenancy-operator-evictions";

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

    /// Objects of this type, of the cluster where the namespace is empty.
    fn dynamic(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        match namespace {
            "" => Api::all_with(self.client.clone(), resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }

    /// Applies a namespaced object and returns its metadata. Takes fields over that another manager owns, which repairs drift.
    pub async fn apply<K>(&self, part: Part, object: &K) -> kube::Result<PartialObjectMeta<DynamicObject>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + Debug,
    {
        let key = (&*object.namespace().unwrap_or_default(), &*object.name_any());
        self.apply_as(part, &ApiResource::erase::<K>(&()), key, object).await
    }

    /// As [`Self::apply`], for an object of this type, namespace and name; one of the cluster has an empty namespace.
    pub async fn apply_as(
        &self,
        part: Part,
        resource: &ApiResource,
        (namespace, name): (&str, &str),
        object: &(impl Serialize + Debug),
    ) -> kube::Result<PartialObjectMeta<DynamicObject>> {
        self.metrics.write(&resource.kind, "apply");
        part.manager().apply(&self.dynamic(resource, namespace), name, object).await
    }

    /// Applies these fields to a cluster-scoped object.
    pub async fn apply_fields<K>(&self, part: Part, name: &str, fields: Value) -> kube::Result<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("apply");
        part.manager().apply_fields(&Api::all(self.client.clone()), name, fields).await
    }

    /// Why applying these fields without force would be refused, which names the managers that own them. Nothing is written.
    pub async fn conflicts<K>(&self, part: Part, name: &str, fields: Value) -> kube::Result<Option<String>>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug,
    {
        part.manager().conflicts(&Api::<K>::all(self.client.clone()), name, fields).await
    }

    /// Applies the whole status of a cluster-scoped object.
    pub async fn apply_status<K>(&self, name: &str, status: &impl Serialize) -> kube::Result<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("apply_status");
        Part::Status.manager().apply_status(&Api::all(self.client.clone()), name, status).await
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
        part.manager().apply_dynamic_status(&api, name.as_str(), &fields).await.map(drop)
    }

    /// Applies fields of the status of an object of this type, namespace and name; `fields` has its kind.
    pub async fn apply_status_as(
        &self,
        part: Part,
        resource: &ApiResource,
        (namespace, name): (&str, &str),
        fields: &Value,
    ) -> kube::Result<()> {
        self.metrics.write(&resource.kind, "apply_status");
        let api = self.dynamic(resource, namespace);
        part.manager().apply_dynamic_status(&api, name, fields).await.map(drop)
    }

    /// Creates a cluster-scoped object; fails if it exists, so it never adopts an object.
    pub async fn create<K>(&self, part: Part, object: &K) -> kube::Result<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("create");
        Api::all(self.client.clone()).create(&part.manager().creating(), object).await
    }

    /// Creates a namespaced object unless it exists; true: it was created.
    pub async fn create_in<K>(&self, part: Part, namespace: &str, object: &K) -> kube::Result<bool>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("create");
        match Api::<K>::namespaced(self.client.clone(), namespace).create(&part.manager().creating(), object).await {
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
        FieldManager::new(names::OPERATOR_MANAGER).merge(api, name, fields).await
    }

    /// Deletes an object of this type and name, if it exists; one of the cluster has an empty namespace.
    pub async fn delete_as(&self, resource: &ApiResource, (namespace, name): (&str, &str)) -> kube::Result<()> {
        self.metrics.write(&resource.kind, "delete");
        let api = self.dynamic(resource, namespace);
        present(api.delete(name, &DeleteParams::default()).await).map(drop)
    }

    /// Deletes an object, if it exists and has this uid.
    pub async fn delete<K>(&self, api: &Api<K>, name: &str, uid: Option<String>) -> kube::Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        self.count::<K>("delete");
        let preconditions = uid.map(|uid| kube::api::Preconditions { uid: Some(uid), resource_version: None });
        present(api.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await).map(drop)
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
        self.count::<K>("patch");
        let manager = FieldManager::new(names::OPERATOR_MANAGER);
        manager.set_finalizers(&Api::all(self.client.clone()), object, &finalizers).await
    }

    /// Evicts one pod by the eviction API, if it has this uid.
    pub async fn evict(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<Evicted> {
        self.count::<Pod>("evict");
        let pods = Api::namespaced(self.client.clone(), namespace);
        write::evict(&pods, (namespace, name), uid, EVICTION_POLICY).await
    }
}

/// Has the object the operator's finalizer?
pub fn has_finalizer(object: &impl Resource) -> bool {
    write::has_finalizer(object, names::FINALIZER)
}
