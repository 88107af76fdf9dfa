//! Reads and writes objects in the tenant's namespace. The rights come from a role binding that the operator writes there.

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use gputenancy_crds::names as labels;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, Secret, Service},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams},
};
use serde_json::Value;

use crate::{
    names,
    render::objects::{KINDS, Kind, Object},
};

/// Names that are listed at once.
const PAGE: u32 = 100;
/// Most pages of one kind.
const MOST_PAGES: usize = 20;
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
        self.list(&selector, |_| true, is_own).await
    }

    /// The workload of the control plane, by the labels of vCluster's chart: also when another program has applied it.
    pub async fn workloads(&self) -> kube::Result<Vec<Live>> {
        let mut found = self.list(&self.control_plane(), Kind::is_workload, |_| true).await?;
        found.retain(|workload| workload.name == self.tenant);
        Ok(found)
    }

    /// All objects of the release, by the labels of vCluster's chart: also when another program has applied them.
    pub async fn released(&self) -> kube::Result<Vec<Live>> {
        self.list(&format!("{},release={}", names::CONTROL_PLANE_APPS, self.tenant), |_| true, |_| true).await
    }

    /// All objects of a virtual cluster of this program: also those that have lost one kind of labels.
    pub async fn everything(&self) -> kube::Result<Vec<Live>> {
        let mut all = self.applied().await?;
        for object in self.released().await? {
            if !all.iter().any(|l| l.kind == object.kind && l.name == object.name) {
                all.push(object);
            }
        }
        Ok(all)
    }

    /// Selector of the control plane's workload and pods.
    fn control_plane(&self) -> String {
        format!("app=vcluster,release={}", self.tenant)
    }

    /// Objects with these labels. A team can make thousands of them: names are listed in pages, and few objects are read.
    async fn list(
        &self,
        selector: &str,
        of: impl Fn(Kind) -> bool,
        keep: fn(&ObjectMeta) -> bool,
    ) -> kube::Result<Vec<Live>> {
        let kinds = KINDS.into_iter().filter(|kind| of(*kind));
        let lists: Vec<_> = kinds.map(|kind| self.some(kind, selector, keep).boxed()).collect();
        // a few at once: lists of one namespace are small
        let found: Vec<_> = stream::iter(lists).buffered(4).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn some(&self, kind: Kind, selector: &str, keep: fn(&ObjectMeta) -> bool) -> kube::Result<Vec<Live>> {
        let (api, mut params, mut found) = (self.api(kind), ListParams::default().labels(selector).limit(PAGE), vec![]);
        for _ in 0..MOST_PAGES {
            let page = api.list_metadata(&params).await?;
            let kept = page.items.into_iter().filter(|object| keep(&object.metadata));
            found.extend(kept.filter_map(|object| object.metadata.name));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() || found.len() >= MOST_OBJECTS {
                break;
            }
        }
        let mut all = Vec::new();
        for name in found.iter().take(MOST_OBJECTS) {
            all.extend(api.get_opt(name).await?.map(|object| live(kind, &object)));
        }
        Ok(all)
    }

    /// Applies an object and returns its new version. Fields that others have changed are taken back.
    pub async fn apply(&self, object: &Object) -> kube::Result<Option<String>> {
        let params = PatchParams::apply(names::MANAGER).force();
        let applied =
            self.api(object.kind).patch_metadata(&object.name, &params, &Patch::Apply(&object.content)).await?;
        Ok(applied.metadata.resource_version)
    }

    /// Sets the replicas of a workload to zero, and changes nothing else of it.
    pub async fn stop(&self, kind: Kind, name: &str) -> kube::Result<()> {
        self.scale(kind, name, 0).await
    }

    /// Sets the replicas of a workload, and changes nothing else of it.
    pub async fn scale(&self, kind: Kind, name: &str, replicas: i64) -> kube::Result<()> {
        let params = PatchParams { field_manager: Some(names::MANAGER.into()), ..PatchParams::default() };
        let fields = serde_json::json!({"spec": {"replicas": replicas}});
        gone(self.api(kind).patch_metadata(name, &params, &Patch::Merge(fields)).await)
    }

    /// The tenant for which the operator has given this program its rights here. Another tenant may list the same namespace, and would use the
    /// rights of the first.
    pub async fn tenant(&self) -> kube::Result<Option<String>> {
        let api: Api<RoleBinding> = Api::namespaced(self.client.clone(), &self.namespace);
        let binding = api.get_opt(names::BINDING).await?;
        Ok(binding.and_then(|b| b.metadata.labels?.remove(labels::TENANT_LABEL)))
    }

    /// A Service of the namespace.
    pub async fn service(&self, name: &str) -> kube::Result<Option<Service>> {
        Api::namespaced(self.client.clone(), &self.namespace).get_opt(name).await
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
        let selector = format!("{},release={}", names::CONTROL_PLANE_APPS, self.tenant);
        let claims = self.claims().list_metadata(&ListParams::default().labels(&selector)).await?;
        Ok(claims.items.into_iter().filter_map(|claim| claim.metadata.name).collect())
    }

    /// Deletes the volumes of the control plane.
    pub async fn delete_volumes(&self) -> kube::Result<()> {
        for claim in self.volumes().await? {
            gone(self.claims().delete(&claim, &DeleteParams::default()).await)?;
        }
        Ok(())
    }

    /// Pods that the syncer has made here.
    pub async fn synced_pods(&self) -> kube::Result<Vec<Pod>> {
        let selector = format!("{}={}", names::SYNCED_BY, self.tenant);
        Ok(self.pods().list(&ListParams::default().labels(&selector)).await?.items)
    }

    /// Pods of the control plane.
    pub async fn control_plane_pods(&self) -> kube::Result<Vec<Pod>> {
        Ok(self.pods().list(&ListParams::default().labels(&self.control_plane())).await?.items)
    }

    /// Deletes pods that are not being deleted.
    pub async fn delete_pods(&self, pods: &[Pod]) -> kube::Result<()> {
        let left = pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none());
        for pod in left.filter_map(|p| p.metadata.name.as_deref()) {
            gone(self.pods().delete(pod, &DeleteParams::default()).await)?;
        }
        Ok(())
    }
}

/// This program has applied the object. Objects that the syncer makes have its name as the manager.
fn is_own(metadata: &ObjectMeta) -> bool {
    let managers = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.manager.as_deref());
    managers.into_iter().any(|manager| manager == names::MANAGER)
}

fn live(kind: Kind, object: &DynamicObject) -> Live {
    let name = object.metadata.name.clone().unwrap_or_default();
    let version = object.metadata.resource_version.clone();
    // an object of the API server always serializes
    Live { kind, name, version, content: serde_json::to_value(object).unwrap_or_default() }
}

fn gone<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}
