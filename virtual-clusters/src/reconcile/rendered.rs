//! Which version of vCluster is rendered, and its objects.

use std::sync::Arc;

use gputenancy_cluster::{error::sentence, events::EventType};
use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterStatus, reasons};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::Value;

use super::Failure;
use crate::{
    context::{Context, Memory},
    decide::{self, ControlPlane, upgrade},
    host::{Host, Live},
    render::{
        helm,
        objects::{self, Object, Replicas},
        pull, version,
    },
    tenant::apply_status,
};

/// The version to render. A new state of an upgrade is in the status before anything of it is applied: the objects of the new version do not
/// name the former one.
pub(super) async fn version(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    (host, memory): (&Host, &mut Memory),
    (live, values): (&[Live], &Value),
) -> Result<String, Failure> {
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    let name = tenant.name_any();
    let (label, reported) = (decide::running_version(&name, live), status.and_then(|s| s.version.clone()));
    let running = upgrade::running(label.as_deref(), reported.as_deref(), memory.upgrade.as_ref()).map(str::to_owned);
    let state = if memory.upgrade.is_some() {
        let pods = host.control_plane_pods().await;
        let pods =
            pods.map_err(|e| Failure::Api(format!("listing the pods of the control plane: {}", sentence(&e))))?;
        decide::control_plane(&name, Replicas::Rendered, live, &pods)
    } else {
        ControlPlane::Paused
    };
    let seen = upgrade::Seen {
        charts: &context.charts,
        wanted: &cluster.version,
        values,
        running: running.as_deref(),
        reported: reported.as_deref(),
        ready: state == ControlPlane::Ready || decide::rolled_out(&name, live),
        why: if let ControlPlane::Starting(why) = &state { why } else { "" },
        now: Timestamp::now(),
    };
    let next = upgrade::next(memory.upgrade.as_ref(), &seen).map_err(Failure::Render)?;
    if next != memory.upgrade {
        let backend = Some(cluster.backend);
        let written = VirtualClusterStatus {
            backend,
            reclaim: Some(cluster.reclaim()),
            // without the upgrade the label of its workload does not count
            version: running.clone().or(reported.clone()),
            upgrade: next.clone(),
            ..status.cloned().unwrap_or_default()
        };
        let written = apply_status(&context.client, &name, Some(&written)).await;
        written.map_err(|e| Failure::Api(format!("writing the state of the upgrade: {}", sentence(&e))))?;
        let advice = upgrade::advice(memory.upgrade.as_ref(), next.as_ref(), &name, &objects::namespace_of(tenant));
        memory.upgrade = next;
        if let Some(advice) = advice {
            context.publish(tenant, EventType::Normal, reasons::UPGRADE_STARTED, advice).await;
        }
    }
    Ok(upgrade::version(memory.upgrade.as_ref(), &cluster.version).to_owned())
}

/// The objects of the tenant, rendered now or before, with a key that differs for other objects.
pub(super) async fn objects(
    tenant: &GpuTenant,
    context: &Context,
    memory: &mut Memory,
    (version, values): (&str, &Value),
) -> Result<(String, Arc<Vec<Object>>), Failure> {
    // the version was chosen among the charts
    let chart = version::choose(&context.charts, version, None).map_err(Failure::Render)?;
    let served = context.cluster.served().await;
    let served =
        served.map_err(|e| Failure::Api(format!("reading version and APIs of this cluster: {}", sentence(&e))))?;
    let (name, namespace) = (tenant.name_any(), objects::namespace_of(tenant));
    let key = format!("{} {} {} {values}", chart.sha256, served.version, served.fingerprint());
    if let Some((present, objects)) = memory.rendered.as_ref().filter(|(present, _)| *present == key) {
        return Ok((present.clone(), objects.clone()));
    }
    let release = helm::Release { name: &name, namespace: &namespace, served: &served };
    let manifests = async {
        pull::pull(&context.helm, chart).await?;
        helm::template(&context.helm, chart, release, values).await
    };
    let manifests = manifests.await;
    context.metrics.rendered(manifests.is_ok());
    let manifests = manifests.map_err(Failure::Render)?;
    let objects = Arc::new(objects::parse(tenant, &manifests).map_err(Failure::Render)?);
    memory.rendered = Some((key.clone(), objects.clone()));
    Ok((key, objects))
}
