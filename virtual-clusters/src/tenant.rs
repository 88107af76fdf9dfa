//! Writes to the tenant's own object: `status.virtualCluster` and the finalizer.

use gputenancy_crds::{GpuTenant, VIRTUAL_CLUSTER_FINALIZER, VirtualClusterStatus};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::names;

/// Applies `status.virtualCluster`, and no other field of the status; `None` removes it. Returns the tenant with its new version.
pub async fn apply_status(
    client: &Client,
    name: &str,
    status: Option<&VirtualClusterStatus>,
) -> kube::Result<GpuTenant> {
    let status = status.map_or_else(|| json!({}), |s| json!({"virtualCluster": s}));
    let body = json!({"apiVersion": GpuTenant::api_version(&()), "kind": GpuTenant::kind(&()), "status": status});
    let params = PatchParams::apply(names::STATUS_MANAGER).force();
    Api::<GpuTenant>::all(client.clone()).patch_status(name, &params, &Patch::Apply(body)).await
}

/// Sets or removes this program's finalizer. The version keeps finalizers that others add at the same time.
pub async fn set_finalizer(client: &Client, tenant: &GpuTenant, wanted: bool) -> kube::Result<()> {
    let mut finalizers = tenant.finalizers().to_vec();
    finalizers.retain(|f| f != VIRTUAL_CLUSTER_FINALIZER);
    if wanted {
        finalizers.push(VIRTUAL_CLUSTER_FINALIZER.into());
    }
    let fields: Value = json!({"metadata": {"resourceVersion": tenant.resource_version(), "finalizers": finalizers}});
    let params = PatchParams { field_manager: Some(names::MANAGER.into()), ..PatchParams::default() };
    match Api::<GpuTenant>::all(client.clone()).patch(&tenant.name_any(), &params, &Patch::Merge(fields)).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}
