//! Deletes a virtual cluster, in the order in which nothing is made again: control plane, its pods, objects, Secrets, volumes.

use std::time::Duration;

use gputenancy_crds::{GpuTenant, reasons};
use gputenancy_service::events::EventType;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    host::Host,
    names,
    reconcile::Context,
    render::objects::{self, Object, Replicas},
};

const INTERVAL: Duration = Duration::from_secs(1);
/// Time for pods to end, longest grace period of a tenant's pods included by default; then the rest is deleted without waiting, as on a
/// node that is lost.
const PATIENCE: SignedDuration = SignedDuration::from_mins(12);

/// One step; returns the time until the next, `None`: nothing is left.
pub async fn run(tenant: &GpuTenant, context: &Context) -> kube::Result<Option<Duration>> {
    let name = tenant.name_any();
    let host = Host::new(context.client.clone(), &objects::namespace_of(tenant), &name);
    match step(tenant, &host).await {
        Ok(true) => {
            let note = "the virtual cluster is deleted: its control plane, pods, Secrets and volumes".to_owned();
            context.publish(tenant, EventType::Normal, reasons::VIRTUAL_CLUSTER_REMOVED, note).await;
            Ok(None)
        }
        Ok(false) => Ok(Some(INTERVAL)),
        // without its namespace, or with the namespace released by its operator, there is nothing to delete here
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// True: nothing is left.
async fn step(tenant: &GpuTenant, host: &Host) -> kube::Result<bool> {
    let name = tenant.name_any();
    let live = host.applied().await?;
    let patient = tenant
        .metadata
        .deletion_timestamp
        .as_ref()
        .is_none_or(|t| Timestamp::now().duration_since(t.0) < PATIENCE);
    let mut running = false;
    for workload in live.iter().filter(|l| l.kind.is_workload()) {
        let replicas = workload.content.pointer("/spec/replicas").and_then(serde_json::Value::as_i64);
        if replicas != Some(0) {
            let content = json!({
                "apiVersion": workload.kind.api_version(), "kind": workload.kind.kind,
                "metadata": {"name": workload.name}, "spec": workload.content.get("spec"),
            });
            let mut stopped = [Object { kind: workload.kind, name: workload.name.clone(), content }];
            objects::scale(&mut stopped, Replicas::Zero);
            for object in &stopped {
                host.apply(object).await?;
            }
        }
        running = true;
    }
    let control_plane = host.control_plane_pods().await?;
    if running && !control_plane.is_empty() && patient {
        return Ok(false);
    }
    let pods = host.synced_pods().await?;
    if !pods.is_empty() {
        host.delete_pods(&pods).await?;
        if patient {
            return Ok(false);
        }
    }
    for object in live.iter().rev() {
        host.delete(object.kind, &object.name).await?;
    }
    for secret in [names::admin_secret(&name), names::certificates_secret(&name), names::KUBECONFIG_SECRET.to_owned()] {
        host.delete_secret(&secret).await?;
    }
    host.delete_volumes().await?;
    Ok(host.applied().await?.is_empty())
}
