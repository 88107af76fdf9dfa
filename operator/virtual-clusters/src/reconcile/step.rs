//! What one reconcile writes, decided once from what was observed. Pure.

use std::time::Instant;

use gputenancy_cluster::events::EventType;
use gputenancy_crds::{
    GpuTenant, VirtualCluster, VirtualClusterBackend, VirtualClusterStatus, VirtualClusterUpgrade,
    reasons::{self, Reason},
};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;

use super::{
    observe::{Inside, Namespace},
    rendered::{Rendered, RenderedError},
};
use crate::{
    access::{self, Access, AccessError, KubeconfigOrder},
    decide::{self, Write, adoption, conditions::CONTROL_PLANE, suspicious, upgrade},
    host::Pods,
    inside::{
        catalog,
        nodes::{self, Amounts, Nodes, Requests},
        objects::Conflict,
        orphans::{self, Orphan},
        pending::{self, Waiting},
        refusals::{Refusal, Refusals},
    },
    memory::Memory,
    render::objects::{self, Replicas},
};

/// Time after which a stopped control plane has no pod: its grace period is 15 seconds. Pods of others may have its labels.
const STOPPED: SignedDuration = SignedDuration::from_mins(2);
/// Time that a ready control plane has for the Secret of its administrator, which it writes within seconds.
const SECRET_PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// All that a step is decided from.
pub(super) struct Observation<'a> {
    pub tenant: &'a GpuTenant,
    pub cluster: &'a VirtualCluster,
    pub namespace: &'a Namespace,
    /// `None`: something else installs vCluster, or the policy of the tenant is missing.
    pub rendered: Option<&'a Result<Rendered, RenderedError>>,
    /// `None`: the control plane does not serve, or was read shortly before.
    pub inside: Option<&'a Result<Inside, AccessError>>,
    /// The time.
    pub now: Timestamp,
    /// The same, for what is remembered.
    pub instant: Instant,
}

/// What is written, in this order.
#[derive(Debug)]
pub(super) struct Step {
    /// A new state of the upgrade. It is in the status before anything of it is applied: the objects of the new version do not name the former one.
    pub upgrade: Option<UpgradeOrder>,
    /// Objects of the namespace.
    pub writes: Vec<Write>,
    /// The rendering of which these are the last writes.
    pub completes: Option<String>,
    /// Pods of the namespace to delete.
    pub pods: Vec<Pod>,
    /// Pods of the namespace without a pod inside.
    pub orphans: Vec<Orphan>,
    /// What is written inside.
    pub inside: Option<InsideOrder>,
    /// An event about pods that the syncer has not made.
    pub suspicious: Option<String>,
    /// The control plane is started again, because this Secret is missing.
    pub restarts_for: Option<String>,
    /// What becomes of the replicas.
    pub replicas: Replicas,
}

/// A new state of the upgrade.
#[derive(Debug)]
pub(super) struct UpgradeOrder {
    pub status: VirtualClusterStatus,
    pub upgrade: Option<VirtualClusterUpgrade>,
    /// The note of an event.
    pub advice: Option<String>,
}

/// What is written inside.
#[derive(Debug)]
pub(super) struct InsideOrder {
    pub kubeconfig: KubeconfigOrder,
    /// The tenant's budget.
    pub budget: Amounts,
    /// What its pods request; `None`: they are not known, and nodes stay as they are.
    pub requests: Option<Requests>,
    /// The catalog.
    pub catalog: String,
    pub conflict: Conflict,
    /// Pods that get an event about the quota.
    pub refusals: Vec<Refusal>,
    /// Pods that get an event about a missing device, unless they have it.
    pub waiting: Vec<Waiting>,
}

impl InsideOrder {
    /// The syncer makes a node for each node of this cluster with a pod, and has not made all.
    pub fn awaits(&self, nodes: &Nodes) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.awaits_nodes(nodes))
    }
}

/// Decides the writes. A refused spec stops no virtual cluster that runs, unless it suspends it.
pub(super) fn step(observation: &Observation<'_>, memory: &mut Memory) -> Step {
    let Observation { tenant, cluster, namespace, rendered, inside, now, .. } = observation;
    let (name, live) = (tenant.name_any(), &namespace.live);
    let Pods { control_plane, synced } = &*namespace.pods;
    let replicas = replicas(cluster, namespace);
    let (writes, completes) = objects(observation, replicas, memory);
    let upgrade = match rendered {
        Some(Ok(rendered)) => upgrade_order(tenant, cluster, rendered, memory),
        _ => None,
    };
    let synced = synced.as_deref().unwrap_or_default();
    let stopped = control_plane.is_empty() || paused_for(tenant, *now).is_some_and(|time| time > STOPPED);
    let mut pods = Vec::new();
    if replicas != Replicas::Rendered && cluster.suspend && stopped {
        // as vcluster pause does; while the syncer runs, it would delete the pods inside with them
        pods.extend_from_slice(synced);
    }
    let failed = upgrade::failed(memory.upgrade.as_ref()).is_some();
    if failed && replicas == Replicas::Rendered {
        pods.extend(decide::left_behind(&name, live, control_plane, *now));
    }
    let restarts_for = match inside {
        Some(Err(AccessError::NoAdmin(secret))) if lacks_its_secret(cluster, control_plane, *now) => {
            pods.extend_from_slice(control_plane);
            Some(secret.clone())
        }
        _ => None,
    };
    let suspicious = suspicious::note(&name, synced, &mut memory.suspicious);
    let (inside, orphans) = match inside {
        Some(Ok(inside)) => (Some(inside_order(observation, inside)), orphans(observation, inside, memory)),
        _ => (None, Vec::new()),
    };
    Step { upgrade, writes, completes, pods, orphans, inside, suspicious, restarts_for, replicas }
}

/// What becomes of the replicas.
pub(super) fn replicas(cluster: &VirtualCluster, namespace: &Namespace) -> Replicas {
    match cluster.backend {
        VirtualClusterBackend::External => adoption::adopted_replicas(&namespace.live),
        VirtualClusterBackend::Helm => decide::replicas(cluster.suspend, &namespace.live),
    }
}

/// The writes of objects, and the rendering that they complete.
fn objects(observation: &Observation<'_>, replicas: Replicas, memory: &mut Memory) -> (Vec<Write>, Option<String>) {
    let Observation { cluster, namespace, rendered, .. } = observation;
    match rendered {
        Some(Ok(Rendered { key, objects, .. })) => {
            let mut wanted = objects.to_vec();
            objects::scale(&mut wanted, replicas);
            // the scale is part of what was applied
            let key = format!("{key} {replicas:?}");
            let complete = memory.complete.as_deref() == Some(&key);
            (decide::writes(&wanted, &namespace.live, &memory.settled, complete), Some(key))
        }
        _ if cluster.backend == VirtualClusterBackend::Helm && cluster.suspend => {
            // the objects of a later spec are applied as a whole, which is no repair
            memory.complete = None;
            let stops = decide::unstopped(&namespace.live).map(|l| Write::Stop((l.kind, l.name.clone())));
            (stops.collect(), None)
        }
        _ => (Vec::new(), None),
    }
}

/// The new state of the upgrade, if it is another one than before.
fn upgrade_order(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    rendered: &Rendered,
    memory: &Memory,
) -> Option<UpgradeOrder> {
    let (old, next) = (memory.upgrade.as_ref(), &rendered.upgrade);
    if next.as_ref() == old {
        return None;
    }
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
    let status = VirtualClusterStatus {
        backend: Some(cluster.backend),
        reclaim: Some(cluster.reclaim()),
        // without the upgrade the label of its workload does not count
        version: rendered.running.clone().or(status.version),
        upgrade: next.clone(),
        ..status
    };
    let advice = upgrade::advice(old, next.as_ref(), &tenant.name_any(), &objects::namespace_of(tenant));
    Some(UpgradeOrder { status, upgrade: next.clone(), advice })
}

/// How long the control plane has been reported as stopped.
fn paused_for(tenant: &GpuTenant, now: Timestamp) -> Option<SignedDuration> {
    let status = tenant.status.as_ref()?.virtual_cluster.as_ref()?;
    // `Ready` may have been False before, and keeps that time
    let paused = |c: &&Condition| c.type_ == CONTROL_PLANE && c.reason == reasons::VIRTUAL_CLUSTER_PAUSED.as_str();
    let paused = status.conditions.iter().find(paused)?;
    Some(now.duration_since(paused.last_transition_time.0))
}

/// The control plane writes its administrator's Secret when it starts. Without the Secret, as after a deletion of the Service that owns it, it
/// is started again.
fn lacks_its_secret(cluster: &VirtualCluster, control_plane: &[Pod], now: Timestamp) -> bool {
    let long = |pod: &Pod| decide::ready_for(pod, now).is_some_and(|time| time > SECRET_PATIENCE);
    cluster.backend == VirtualClusterBackend::Helm && !control_plane.is_empty() && control_plane.iter().all(long)
}

fn inside_order(observation: &Observation<'_>, inside: &Inside) -> InsideOrder {
    let Observation { tenant, cluster, namespace, now, .. } = observation;
    let synced = namespace.pods.synced.as_deref().unwrap_or_default();
    let access = Access { tenant, cluster, authority: &inside.admin.authority, account: &inside.account };
    let adopted = cluster.backend == VirtualClusterBackend::External;
    InsideOrder {
        kubeconfig: access::decide(&access, inside.issued.as_ref(), *now),
        budget: nodes::budget(tenant),
        requests: namespace.pods.synced.as_deref().map(Requests::of),
        catalog: catalog::text(tenant),
        conflict: if adopted { Conflict::Keep } else { Conflict::Replace },
        refusals: inside.refusals.as_ref().map(Refusals::unexplained).unwrap_or_default(),
        waiting: pending::waiting(tenant, synced, *now),
    }
}

/// Pods of the namespace whose pod inside was deleted with force, or is gone. Nothing is compared unless both are known.
fn orphans(observation: &Observation<'_>, inside: &Inside, memory: &mut Memory) -> Vec<Orphan> {
    let Observation { tenant, namespace, instant, .. } = observation;
    let (Some(synced), Some(Ok(pods))) = (&namespace.pods.synced, &inside.pods) else { return Vec::new() };
    let (found, known) = orphans::decide(&tenant.name_any(), synced, pods, &memory.orphans, *instant);
    memory.orphans = known;
    found
}

/// The event of a reason of `Ready` that is another one than `before`.
pub(super) fn event(before: Option<Reason>, new: &VirtualClusterStatus) -> Option<(EventType, Reason, String)> {
    let (reason, note, ready) = decide::conditions::ready(new).filter(|(reason, ..)| Some(*reason) != before)?;
    let quiet = [reasons::APPLYING, reasons::CONTROL_PLANE_STARTING, reasons::VIRTUAL_CLUSTER_PAUSED];
    let event_type = if ready || quiet.contains(&reason) { EventType::Normal } else { EventType::Warning };
    Some((event_type, reason, format!("virtual cluster: {note}")))
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuTenantSpec, GpuTenantStatus};
    use serde_json::json;

    use super::*;

    #[test]
    fn pause_begins_when_the_control_plane_stops_and_not_when_the_tenant_was_last_ready() {
        let condition = |type_: &str, status: &str, at: &str| json!({"type": type_, "status": status, "reason": "VirtualClusterPaused", "message": "", "lastTransitionTime": at});
        let conditions = [
            condition("Ready", "False", "2026-01-01T00:00:00Z"),
            condition("ControlPlaneReady", "Unknown", "2026-01-01T00:09:50Z"),
        ];
        let mut tenant = GpuTenant::new("team-a", GpuTenantSpec::default());
        let status = serde_json::from_value(json!({ "conditions": conditions })).unwrap();
        tenant.status = Some(GpuTenantStatus { virtual_cluster: Some(status), ..GpuTenantStatus::default() });
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        assert_eq!(paused_for(&tenant, now), Some(SignedDuration::from_secs(10)));
    }
}
