//! Reads and patches of cluster objects that several tests need.

use std::{collections::BTreeMap, fmt::Debug};

use futures::future::try_join;
use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant, VIRTUAL_CLUSTER_FINALIZER};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{Error, Result};

/// Identity of a running pod; it differs after an eviction or a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// UID of the pod.
    pub uid: String,
    /// When its containers started.
    pub started: Vec<String>,
    /// Restarts of all its containers.
    pub restarts: i32,
    /// Node it runs on.
    pub node: String,
}

/// Pods of a namespace that are Ready and not being deleted, by name.
pub async fn running(client: &Client, namespace: &str) -> Result<BTreeMap<String, PodIdentity>> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&ListParams::default()).await?;
    Ok(pods.into_iter().filter(is_ready).map(|pod| (pod.name_any(), identity(&pod))).collect())
}

/// Is the pod Ready and not being deleted?
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none() && conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The identity of a pod.
pub fn identity(pod: &Pod) -> PodIdentity {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    let started = statuses.iter().filter_map(|s| s.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    PodIdentity {
        uid: pod.uid().unwrap_or_default(),
        started: started.map(|t| t.0.to_string()).collect(),
        restarts: statuses.iter().map(|s| s.restart_count).sum(),
        node: pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default(),
    }
}

/// Allocatable of a node for one resource.
pub async fn allocatable(client: &Client, node: &str, resource: &str) -> Result<i64> {
    let node = Api::<Node>::all(client.clone()).get(node).await?;
    let amount = node.status.and_then(|s| s.allocatable).and_then(|a| a.get(resource).cloned());
    Ok(amount.and_then(|q| q.0.parse().ok()).unwrap_or(0))
}

/// A cluster-scoped type of the API.
pub trait ClusterObject:
    kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
{
}

impl<K> ClusterObject for K where
    K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
{
}

/// The conditions and the observed generation in an object's status.
pub fn status(object: &impl Serialize) -> (Vec<Condition>, Option<i64>) {
    let object = serde_json::to_value(object).unwrap_or_default();
    let field = |path| object.pointer(path).cloned().unwrap_or_default();
    let conditions = serde_json::from_value(field("/status/conditions")).unwrap_or_default();
    (conditions, field("/status/observedGeneration").as_i64())
}

/// The condition of a type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Checks status and reason of a condition, and that its message contains each excerpt; the error shows the condition.
pub fn check_condition(
    conditions: &[Condition],
    type_: &str,
    status: &str,
    reason: &str,
    excerpts: &[&str],
) -> std::result::Result<(), String> {
    match condition(conditions, type_) {
        Some(c) if c.status == status && c.reason == reason && excerpts.iter().all(|e| c.message.contains(e)) => Ok(()),
        Some(c) => Err(format!("{type_}={} {}: {}", c.status, c.reason, c.message)),
        None => Err(format!("no condition {type_}")),
    }
}

/// A merge patch of a tenant.
pub async fn patch_tenant(client: &Client, name: &str, patch: Value) -> Result<GpuTenant> {
    let api = Api::<GpuTenant>::all(client.clone());
    Ok(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
}

/// Sets a tenant's guarantee for one profile.
pub async fn set_guarantee(client: &Client, tenant: &str, profile: &str, count: i32) -> Result<()> {
    let api = Api::<GpuTenant>::all(client.clone());
    let mut gpus = api.get(tenant).await?.spec.gpus;
    match gpus.iter_mut().find(|g| g.profile == profile) {
        Some(guarantee) => guarantee.count = count,
        None => gpus.push(gputenancy_crds::Guarantee::of(profile, count)),
    }
    patch_tenant(client, tenant, json!({"spec": {"gpus": gpus}})).await.map(drop)
}

/// Deletes all tenants, pools and profiles, and waits until they are gone.
pub async fn delete_everything(client: &Client) -> Result<()> {
    let tenants = match Api::<GpuTenant>::all(client.clone()).list(&ListParams::default()).await {
        Ok(tenants) => tenants.items,
        // the CRDs are not installed yet
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for tenant in tenants.iter().filter(|t| t.spec.deletion_protection) {
        patch_tenant(client, &tenant.name_any(), json!({"spec": {"deletionProtection": false}})).await?;
    }
    // boxed: every test contains this future
    try_join(Box::pin(deleted_tenants(client)), deleted::<GpuPool>(client, "pools")).await?;
    deleted_profiles(client).await
}

/// A profile in use is not deleted, by its status; no operator may run that brings it up to date.
async fn deleted_profiles(client: &Client) -> Result<()> {
    let api = Api::<GpuProfile>::all(client.clone());
    crate::wait::eventually("profiles to be deleted", crate::wait::PATIENCE, || async {
        for profile in api.list(&ListParams::default()).await? {
            let unused = Patch::Merge(json!({"status": {"tenants": 0, "pools": 0}}));
            api.patch_status(&profile.name_any(), &PatchParams::default(), &unused).await?;
        }
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(Ok(()))
    })
    .await?;
    gone::<GpuProfile>(client, "profiles").await
}

async fn deleted_tenants(client: &Client) -> Result<()> {
    request_deletion::<GpuTenant>(client, "tenants").await?;
    release_virtual_clusters(client).await?;
    gone::<GpuTenant>(client, "tenants").await
}

/// Removes the finalizer of virtual clusters that the demo or a failed test has left: the next one may install no controller for it. The tenants
/// must be in deletion, because a controller that still runs would otherwise set it again.
async fn release_virtual_clusters(client: &Client) -> Result<()> {
    let api = Api::<GpuTenant>::all(client.clone());
    // a conflict with another finalizer's removal is retried
    crate::wait::eventually("no finalizer of a virtual cluster", crate::wait::PATIENCE, || async {
        for tenant in api.list(&ListParams::default()).await? {
            let kept: Vec<_> = tenant.finalizers().iter().filter(|f| *f != VIRTUAL_CLUSTER_FINALIZER).collect();
            if kept.len() < tenant.finalizers().len() {
                let fields = json!({"resourceVersion": tenant.resource_version(), "finalizers": kept});
                patch_tenant(client, &tenant.name_any(), json!({"metadata": fields})).await?;
            }
        }
        Ok(Ok(()))
    })
    .await
}

async fn deleted<K: ClusterObject>(client: &Client, what: &str) -> Result<()> {
    request_deletion::<K>(client, what).await?;
    gone::<K>(client, what).await
}

async fn request_deletion<K: ClusterObject>(client: &Client, what: &str) -> Result<()> {
    let api = Api::<K>::all(client.clone());
    // with thousands of objects one request may time out
    crate::wait::eventually(&format!("{what} to be deleted"), crate::wait::PATIENCE, || async {
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(Ok(()))
    })
    .await
}

async fn gone<K: ClusterObject>(client: &Client, what: &str) -> Result<()> {
    let api = Api::<K>::all(client.clone());
    let left = || async {
        let left = api.list(&ListParams::default()).await?;
        Ok::<_, crate::Error>(left.iter().map(ResourceExt::name_any).collect::<Vec<_>>())
    };
    // a thousand objects take minutes: the limit holds for each step of progress
    let mut before = left().await?.len();
    while before > 0 {
        let fewer = || async {
            let left = left().await?;
            Ok(if left.len() < before { Ok(left.len()) } else { Err(left.join(", ")) })
        };
        before = crate::wait::eventually(&format!("all {what} gone"), crate::wait::PATIENCE, fewer).await?;
    }
    Ok(())
}

/// The `GpuNode` of a node.
pub async fn gpu_node(client: &Client, name: &str) -> Result<GpuNode> {
    Ok(Api::<GpuNode>::all(client.clone()).get(name).await?)
}

/// Layout of every GPU of a node as NVML shows it: `start:profile` in order, or `whole`.
pub fn layouts(node: &GpuNode) -> Vec<Vec<String>> {
    let gpus = node.status.as_ref().map(|s| s.gpus.as_slice()).unwrap_or_default();
    let one = |gpu: &gputenancy_crds::GpuState| match &gpu.mig {
        Some(mode) if mode.enabled => gpu.instances.iter().map(|i| format!("{}:{}", i.start, i.profile)).collect(),
        _ => vec!["whole".into()],
    };
    gpus.iter().map(one).collect()
}

/// An assertion as a result.
pub fn ensure(holds: bool, message: impl Into<String>) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Wrong(message.into())) }
}
