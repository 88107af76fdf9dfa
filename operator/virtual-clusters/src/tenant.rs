//! Writes to the tenant's own object: `status.virtualCluster` and the finalizer.

use gputenancy_cluster::write::FieldManager;
use gputenancy_crds::{GpuTenant, VIRTUAL_CLUSTER_FINALIZER, VirtualClusterStatus};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use crate::names;

/// Applies `status.virtualCluster`, and no other field of the status; `None` removes it. Returns the tenant with its new version.
pub async fn apply_status(
    client: &Client,
    name: &str,
    status: Option<&VirtualClusterStatus>,
) -> kube::Result<GpuTenant> {
    let status = status.map_or_else(|| json!({}), |s| json!({"virtualCluster": s}));
    FieldManager::new(names::STATUS_MANAGER).apply_status(&Api::all(client.clone()), name, &status).await
}

/// Sets or removes this program's finalizer. The version keeps finalizers that others add at the same time.
pub async fn set_finalizer(client: &Client, tenant: &GpuTenant, wanted: bool) -> kube::Result<()> {
    let mut finalizers = tenant.finalizers().to_vec();
    finalizers.retain(|f| f != VIRTUAL_CLUSTER_FINALIZER);
    if wanted {
        finalizers.push(VIRTUAL_CLUSTER_FINALIZER.into());
    }
    FieldManager::new(names::MANAGER).set_finalizers(&Api::all(client.clone()), tenant, &finalizers).await
}
