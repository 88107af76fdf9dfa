//! Reads and writes objects in the tenant's namespace. The rights come from a role binding that the operator writes there.

use std::collections::BTreeMap;

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use gputenancy_cluster::{
    error::sentence,
    write::{FieldManager, present},
};
use gputenancy_crds::{
    metadata::Unmanaged,
    names as labels,
    vcluster::{self, APP, CONTROL_PLANE_APP, ETCD_APP, RELEASE},
};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, Secret, Service},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ObjectMeta, Preconditions},
    core::Status,
};
use serde_json::Value;

use self::lists::SlimObjectMeta;
pub use self::policy::Policy;

use crate::{
    inside::orphans::Orphan,
    names,
    render::objects::{KINDS, Kind, Object},
};

/// Why this cluster was not read or written for a tenant.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The operator has not written everything yet.
    #[error(
        "waiting for RoleBinding {} in namespace {namespace}, which the operator writes; if it does not come, see PolicyReady of the tenant",
        names::BINDING
    )]
    NotBound {
        /// The namespace.
        namespace: String,
    },
    /// Another tenant lists the namespace too, and has it.
    #[error("namespace {namespace} belongs to tenant {tenant}: choose another name in spec.namespaces")]
    OtherTenant {
        /// The namespace.
        namespace: String,
        /// The tenant that has it.
        tenant: String,
    },
    /// The API server refused a read or a write in the namespace.
    #[error(
        "cannot read or write objects in namespace {namespace}: {}. If RoleBinding {} is missing there, see PolicyReady of the tenant; if a quota or a policy is named, change spec.resources or spec.virtualCluster.values",
        sentence(&**source),
        names::BINDING
    )]
    Refused {
        /// The namespace.
        namespace: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// The pods of the control plane are not known.
    #[error("listing the pods of the control plane: {}", sentence(&**.0))]
    ControlPlanePods(#[source] Box<kube::Error>),
    /// The Service of an adopted vCluster is not known.
    #[error("reading Service {name}: {}", sentence(&**source))]
    Service {
        /// Its name.
        name: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// What charts ask for is not known.
    #[error("reading version and APIs of this cluster: {}", sentence(&**.0))]
    Served(#[source] Box<kube::Error>),
    /// The upgrade is not recorded, so that nothing of it was applied.
    #[error("writing the state of the upgrade: {}", sentence(&**.0))]
    Upgrade(#[source] Box<kube::Error>),
}

/// Most names of one kind that are listed.
const MOST_NAMES: usize = 2000;
/// Most objects of one kind that are read: the chart has one or two of each.
const MOST_OBJECTS: usize = 16;

/// An object of the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Option<String>,
    /// The whole object.
    pub content: Value,
}

/// Pods of a namespace.
#[derive(Debug, Default)]
pub struct Pods {
    /// Those of the control plane.
    pub control_plane: Vec<Pod>,
    /// Those that the syncer has made; `None`: they are too many.
    pub synced: Option<Vec<Pod>>,
}

/// The namespace of one tenant.
#[derive(Clone)]
pub struct Host {
    client: Client,
    namespace: String,
    tenant: String,
}

impl Host {
    /// The namespace of this tenant.
    pub fn new(client: Client, namespace: &str, tenant: &str) -> Self {
        Self { client, namespace: namespace.into(), tenant: tenant.into() }
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
    }

    /// To read objects, which a team may have written.
    fn reader(&self, kind: Kind) -> Api<Unmanaged<DynamicObject>> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
    }

    /// Secrets of the namespace.
    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Pods of the namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// All objects that this program has applied here. Others with the same labels, such as those that a team makes inside, are not read.
    pub async fn applied(&self) -> kube::Result<Vec<Live>> {
        let selector =
            format!("{}={},{}={}", labels::MANAGED_BY_LABEL, names::MANAGED_BY, labels::TENANT_LABEL, self.tenant);
        let mut all = self.list(&selector, is_own).await?;
        all.extend(self.named(|workload| lists::is_managed_by(&workload.metadata, names::MANAGER)).await?);
        Ok(all)
    }

    /// The workload of the control plane, by the labels of vCluster's chart: also when another program has applied it.
    pub async fn workloads(&self) -> kube::Result<Vec<Live>> {
        self.named(|workload| is_control_plane(&self.tenant, workload)).await
    }

    /// All objects of a virtual cluster of this program: also those that have lost one kind of labels.
    pub async fn everything(&self) -> kube::Result<Vec<Live>> {
        let mut all = self.applied().await?;
        // by the labels of vCluster's chart
        let released = self.list(&self.release(), |_| true).await?;
        for object in released.into_iter().chain(self.workloads().await?) {
            if !all.iter().any(|l| l.kind == object.kind && l.name == object.name) {
                all.push(object);
            }
        }
        Ok(all)
    }

    /// Selector of the objects of the release.
    fn release(&self) -> String {
        format!("{APP} in ({CONTROL_PLANE_APP},{ETCD_APP}),{RELEASE}={}", self.tenant)
    }

    /// The workloads that have the name of the release. They are not found by a list, in which others with the same labels can hide them.
    async fn named(&self, keep: impl Fn(&DynamicObject) -> bool) -> kube::Result<Vec<Live>> {
        let mut all = Vec::new();
        for kind in KINDS.into_iter().filter(|kind| kind.is_workload()) {
            let found = self.reader(kind).get_opt(&self.tenant).await?.map(|Unmanaged(object)| object);
            all.extend(found.filter(&keep).map(|object| live(kind, object)));
        }
        Ok(all)
    }

    /// Objects with these labels, without the workload, see [`Self::named`]. A team can make thousands of them: names are listed in pages, and
    /// few objects are read.
    async fn list(&self, selector: &str, keep: fn(&SlimObjectMeta) -> bool) -> kube::Result<Vec<Live>> {
        let lists: Vec<_> = KINDS.into_iter().map(|kind| self.some(kind, selector, keep).boxed()).collect();
        // a few at once: lists of one namespace are small
        let found: Vec<_> = stream::iter(lists).buffered(4).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn some(&self, kind: Kind, selector: &str, keep: fn(&SlimObjectMeta) -> bool) -> kube::Result<Vec<Live>> {
        let (api, mut found, mut seen) = (self.api(kind), Vec::new(), 0);
        let read = lists::metadata(&self.client, (api.resource_url(), selector), |object| {
            seen += 1;
            if keep(&object) && !(kind.is_workload() && object.name == self.tenant) {
                found.push(object.name);
            }
            seen < MOST_NAMES && found.len() < MOST_OBJECTS
        });
        read.await?;
        let mut all = Vec::new();
        for name in &found {
            all.extend(self.reader(kind).get_opt(name).await?.map(|Unmanaged(object)| live(kind, object)));
        }
        Ok(all)
    }

    /// What limits and isolates the tenant and does not exist in the namespace, as kinds and names; `None`: all is there.
    pub async fn missing_policy(&self, wanted: &[Policy]) -> kube::Result<Option<String>> {
        let exists = async |policy: &Policy| {
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &self.namespace, &policy.resource());
            let found = api.get_metadata_opt(policy.name).await?;
            let own = |labels: &BTreeMap<String, String>| labels.get(labels::TENANT_LABEL) == Some(&self.tenant);
            Ok::<_, kube::Error>(found.is_some_and(|object| object.metadata.labels.as_ref().is_some_and(own)))
        };
        let all = futures::future::try_join_all(wanted.iter().map(exists)).await?;
        let missing: Vec<_> =
            wanted.iter().zip(all).filter(|(_, exists)| !exists).map(|(p, _)| p.to_string()).collect();
        Ok((!missing.is_empty()).then(|| missing.join(", ")))
    }

    /// Applies an object and returns its new metadata. Fields that others have changed are taken back.
    pub async fn apply(&self, object: &Object) -> kube::Result<ObjectMeta> {
        let manager = FieldManager::new(names::MANAGER);
        let applied = manager.apply(&self.api(object.kind), &object.name, &object.content).await?;
        Ok(applied.metadata)
    }

    /// Fails unless the operator has bound this program's rights in the namespace for this tenant.
    pub async fn bound(&self) -> Result<(), HostError> {
        let not_bound = || HostError::NotBound { namespace: self.namespace.clone() };
        match self.tenant().await {
            // without the binding there is no right to look for it
            Err(kube::Error::Api(status)) if status.is_forbidden() || status.is_not_found() => Err(not_bound()),
            Err(error) => Err(self.refused(error)),
            Ok(None) => Err(not_bound()),
            Ok(Some(tenant)) if tenant == self.tenant => Ok(()),
            Ok(Some(tenant)) => Err(HostError::OtherTenant { namespace: self.namespace.clone(), tenant }),
        }
    }

    /// The error of a read or a write in the namespace.
    pub fn refused(&self, error: kube::Error) -> HostError {
        HostError::Refused { namespace: self.namespace.clone(), source: Box::new(error) }
    }

    /// Sets the replicas of a workload to zero, and changes nothing else of it.
    pub async fn stop(&self, kind: Kind, name: &str) -> kube::Result<()> {
        let fields = serde_json::json!({"spec": {"replicas": 0}});
        gone(FieldManager::new(names::MANAGER).merge_metadata(&self.api(kind), name, &fields).await)
    }

    /// The tenant for which the operator has given this program its rights here. Another tenant may list the same namespace, and would use the
    /// rights of the first.
    pub async fn tenant(&self) -> kube::Result<Option<String>> {
        let api: Api<Unmanaged<RoleBinding>> = Api::namespaced(self.client.clone(), &self.namespace);
        let binding = api.get_opt(names::BINDING).await?;
        Ok(binding.and_then(|Unmanaged(b)| b.metadata.labels?.remove(labels::TENANT_LABEL)))
    }

    /// A Service of the namespace.
    pub async fn service(&self, name: &str) -> kube::Result<Option<Service>> {
        let api: Api<Unmanaged<Service>> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(api.get_opt(name).await?.map(|Unmanaged(service)| service))
    }

    /// Deletes an object, if it exists.
    pub async fn delete(&self, kind: Kind, name: &str) -> kube::Result<()> {
        gone(self.api(kind).delete(name, &DeleteParams::background()).await)
    }

    /// Deletes a Secret that the syncer has written, if it exists.
    pub async fn delete_secret(&self, name: &str) -> kube::Result<()> {
        gone(self.secrets().delete(name, &DeleteParams::default()).await)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Names of the `PersistentVolumeClaims` of the control plane, of every replica that there ever was.
    pub async fn volumes(&self) -> kube::Result<Vec<String>> {
        let (api, selector, mut found) = (self.claims(), self.release(), Vec::new());
        let read = lists::metadata(&self.client, (api.resource_url(), &selector), |claim| {
            found.push(claim.name);
            found.len() < MOST_NAMES
        });
        read.await?;
        Ok(found)
    }

    /// Deletes the volumes of the control plane.
    pub async fn delete_volumes(&self) -> kube::Result<()> {
        for claim in self.volumes().await? {
            gone(self.claims().delete(&claim, &DeleteParams::default()).await)?;
        }
        Ok(())
    }

    /// Pods that the syncer has made here, with what is used of them; an error where they are more than are kept.
    pub async fn synced_pods(&self) -> kube::Result<Vec<Pod>> {
        let (pods, all) = self.pods_of(&self.synced()).await?;
        if all { Ok(pods) } else { Err(too_many(&self.synced())) }
    }

    /// Pods that the syncer has made here, and not all of too many: to delete them one after another.
    pub async fn some_synced_pods(&self) -> kube::Result<Vec<Pod>> {
        Ok(self.pods_of(&self.synced()).await?.0)
    }

    fn synced(&self) -> String {
        format!("{}={}", vcluster::MANAGED_BY, self.tenant)
    }

    /// Pods of the control plane, with what is used of them, and not all of too many: it has few, and others only have its labels.
    pub async fn control_plane_pods(&self) -> kube::Result<Vec<Pod>> {
        Ok(self.pods_of(&names::control_plane(&self.tenant)).await?.0)
    }

    async fn pods_of(&self, selector: &str) -> kube::Result<(Vec<Pod>, bool)> {
        lists::pods(&self.client, (self.pods().resource_url(), selector)).await
    }

    /// Deletes pods that are not being deleted.
    pub async fn delete_pods(&self, pods: &[Pod]) -> kube::Result<()> {
        let left = pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none());
        for (name, pod) in left.filter_map(|p| Some((p.metadata.name.as_deref()?, p))) {
            // another pod may have the name meanwhile
            let read = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(read), ..DeleteParams::default() };
            match self.pods().delete(name, &params).await {
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                deleted => gone(deleted)?,
            }
        }
        Ok(())
    }

    /// Deletes a pod without a pod inside, with its grace period; returns whether it was deleted. Not if it has changed since it was read.
    pub async fn delete_orphan(&self, orphan: &Orphan) -> kube::Result<bool> {
        let Orphan { name, uid, version, seconds } = orphan;
        let read = Preconditions { uid: Some(uid.clone()), resource_version: version.clone() };
        let params =
            DeleteParams { grace_period_seconds: Some(*seconds), preconditions: Some(read), ..DeleteParams::default() };
        match self.pods().delete(name, &params).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
            other => other.map(|_| true),
        }
    }
}

/// This program has applied the object. Objects that the syncer makes have its name as the manager.
fn is_own(metadata: &SlimObjectMeta) -> bool {
    metadata.is_managed_by(names::MANAGER)
}

/// The workload of this name is that of the release: by its labels, which can be changed, or by its selector, which cannot.
fn is_control_plane(tenant: &str, workload: &DynamicObject) -> bool {
    let labels = workload.metadata.labels.as_ref();
    let labelled = |key: &str, value: &str| labels.and_then(|labels| labels.get(key)).is_some_and(|v| v == value);
    let selector = workload.data.pointer("/spec/selector/matchLabels");
    let selects = |key: &str, value: &str| selector.and_then(|labels| labels.get(key)).is_some_and(|v| v == value);
    (labelled(APP, CONTROL_PLANE_APP) && labelled(RELEASE, tenant))
        || (selects(APP, CONTROL_PLANE_APP) && selects(RELEASE, tenant))
}

fn too_many(selector: &str) -> kube::Error {
    let message = format!(
        "more than {} pods have the label {selector}: delete pods that have ended, and set ttlSecondsAfterFinished of Jobs",
        lists::MOST_PODS
    );
    kube::Error::Api(Box::new(Status::failure(&message, "TooManyPods")))
}

fn live(kind: Kind, mut object: DynamicObject) -> Live {
    let name = object.metadata.name.clone().unwrap_or_default();
    let version = object.metadata.resource_version.clone();
    // as large as the object, and not compared
    object.metadata.managed_fields = None;
    // an object of the API server always serializes
    Live { kind, name, version, content: serde_json::to_value(object).unwrap_or_default() }
}

mod lists;
mod pods;
mod policy;
#[cfg(test)]
mod tests;

fn gone<T>(answer: kube::Result<T>) -> kube::Result<()> {
    present(answer).map(drop)
}
