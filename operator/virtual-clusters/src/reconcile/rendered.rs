//! Which version of vCluster is rendered, and its objects.

use std::sync::Arc;

use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterUpgrade};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::observe::Namespace;
use crate::{
    context::Context,
    decide::{self, ControlPlane, upgrade},
    host::HostError,
    memory::Memory,
    render::{
        RenderError, helm,
        objects::{self, Object, Replicas},
        pull, values, version,
    },
};

/// Why there are no rendered objects.
#[derive(Debug, thiserror::Error)]
pub(super) enum RenderedError {
    /// The spec is refused, or helm has failed.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// This cluster was not read.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The rendered objects.
#[derive(Clone, Debug)]
pub(super) struct Rendered {
    /// The version of vCluster.
    pub version: String,
    /// The version of the workload.
    pub running: Option<String>,
    /// The upgrade that this version is part of.
    pub upgrade: Option<VirtualClusterUpgrade>,
    /// Differs for other objects.
    pub key: String,
    /// The objects.
    pub objects: Arc<Vec<Object>>,
}

/// Renders the objects for what was observed, or takes those that are remembered. Writes nothing.
pub(super) async fn rendered(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    (context, namespace, memory): (&Context, &Namespace, &Memory),
    now: Timestamp,
) -> Result<Rendered, RenderedError> {
    let values = values::values(tenant, cluster, &context.values.0)?;
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    let (name, live) = (tenant.name_any(), &namespace.live);
    let (label, reported) = (decide::running_version(&name, live), status.and_then(|s| s.version.as_deref()));
    let running = upgrade::running(label.as_deref(), reported, memory.upgrade.as_ref());
    let state = decide::control_plane(&name, Replicas::Rendered, live, &namespace.pods.control_plane);
    let observed = upgrade::Observed {
        charts: &context.charts,
        wanted: &cluster.version,
        values: &values,
        running,
        reported,
        ready: state == ControlPlane::Ready || decide::rolled_out(&name, live),
        why: if let ControlPlane::Starting(why) = &state { why } else { "" },
        now,
    };
    let upgrade = upgrade::next(memory.upgrade.as_ref(), &observed)?;
    let running = running.map(str::to_owned);
    let version = upgrade::version(upgrade.as_ref(), &cluster.version).to_owned();
    // the version was chosen among the charts
    let chart = version::choose(&context.charts, &version, None)?;
    let served = context.host_api.served().await.map_err(|error| HostError::Served(Box::new(error)))?;
    let key = format!("{} {} {} {values}", chart.sha256, served.version, served.fingerprint());
    if let Some((_, objects)) = memory.rendered.as_ref().filter(|(present, _)| *present == key) {
        return Ok(Rendered { version, running, upgrade, key, objects: objects.clone() });
    }
    let release_namespace = objects::namespace_of(tenant);
    let release = helm::Release { name: &name, namespace: &release_namespace, served: &served };
    let manifests = async {
        pull::pull(&context.helm, chart).await?;
        helm::template(&context.helm, chart, release, &values).await
    };
    let manifests = manifests.await;
    context.metrics.rendered(manifests.is_ok());
    let objects = Arc::new(objects::parse(tenant, &manifests?)?);
    Ok(Rendered { version, running, upgrade, key, objects })
}
