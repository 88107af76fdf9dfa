//! Changes on nodes that several pools select. No pool acts there, but a change in progress ends: one that partitions goes on by its journal, and
//! one that still drains is cancelled at the end of its `drainTimeout`, so that devices and cordon do not stay withdrawn.

use std::collections::BTreeMap;

use gputenancy_crds::{Change, ChangePhase, GpuNode, GpuPool, GpuSpec, ids::GpuKey, names, reasons};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::{canary, node_specs::plugin_observation, scheduled::Scheduled};
use crate::{
    change::{self, ChangeDecision, ChangeObservation, Policy},
    event::EventMessage,
    fleet::pod_facts,
    partitioner::of,
    plugin,
};

/// Decides about changes in progress on the visited nodes that several pools select.
pub fn decisions(scheduled: &Scheduled<'_>) -> BTreeMap<GpuKey, ChangeDecision> {
    let (inventory, ownership) = (scheduled.inventory(), scheduled.ownership);
    let fleet = inventory.fleet;
    let decided =
        |name: &str| ownership.overlaps(name) && !ownership.is_conflicting(name) && !inventory.lagging.contains(name);
    let nodes = scheduled.visited.iter().filter(|name| decided(name.as_str()));
    let nodes = nodes.filter_map(|name| Some((name.as_str(), &**fleet.gpu_nodes.get(name)?)));
    let mut decisions = BTreeMap::new();
    for (name, node) in nodes.filter(|(_, node)| !node.spec.is_of_newer_release()) {
        for (gpu, change) in node.spec.gpus.iter().filter_map(|gpu| Some((gpu, gpu.change.as_ref()?))) {
            let key = GpuKey { node: name.into(), uuid: gpu.uuid.as_str().into() };
            if change.phase < ChangePhase::Partitioning {
                decisions.insert(key, draining(scheduled, (name, gpu), change));
            } else if change.phase < ChangePhase::RolledBack {
                let decision = partitioning(scheduled, (&key, node), change);
                decisions.insert(key, decision);
            }
        }
    }
    decisions
}

/// Pools that select a node, the one first that its label names.
fn pools<'a>(scheduled: &'a Scheduled<'_>, name: &str) -> Vec<&'a GpuPool> {
    let labelled = scheduled.fleet().nodes.get(name).and_then(|node| node.labels().get(names::POOL_LABEL));
    let selecting = scheduled.ownership.pools_of(name).iter();
    let mut pools: Vec<_> = selecting.filter_map(|name| scheduled.pool(name.as_str())).collect();
    pools.sort_by_key(|pool| Some(&pool.name_any()) != labelled);
    pools
}

/// Evicts no pod, and ends after the longest `drainTimeout` of the pools.
fn draining(scheduled: &Scheduled<'_>, (name, gpu): (&str, &GpuSpec), change: &Change) -> ChangeDecision {
    let now = scheduled.now();
    let liveness = scheduled.fleet().liveness(name);
    if !liveness.is_alive() {
        return ChangeDecision::default();
    }
    let timeouts = pools(scheduled, name).into_iter().map(|pool| Policy::from(&pool.spec.disruption).drain_timeout);
    let began = change.evict_after.as_ref().unwrap_or(&change.started_at).0;
    let began = liveness.since.map_or(began, |since| began.max(since));
    let ends = timeouts.max().and_then(|timeout| began.checked_add(timeout).ok()).unwrap_or(Timestamp::MAX);
    if ends > now {
        return ChangeDecision { requeue_at: Some(ends), ..ChangeDecision::default() };
    }
    let message = format!(
        "{name} GPU {}: several pools select the node, and spec.disruption.drainTimeout is over: narrow spec.nodeSelector so that one pool \
         selects it",
        gpu.uuid
    );
    let spec = GpuSpec { change: None, hold: Vec::new(), trial: Vec::new(), ..gpu.clone() };
    let event = EventMessage { warning: true, reason: reasons::CHANGE_CANCELLED, message };
    ChangeDecision { spec: Some(spec), events: vec![event], ..ChangeDecision::default() }
}

/// Continues by the journal: no other target, and no pod is evicted from here on.
fn partitioning(scheduled: &Scheduled<'_>, (key, node): (&GpuKey, &GpuNode), change: &Change) -> ChangeDecision {
    let (inventory, name) = (&scheduled.inventory(), key.node.as_str());
    let fleet = inventory.fleet;
    let liveness = fleet.liveness(name);
    let pool = pools(scheduled, name).into_iter().next();
    let policy =
        pool.map(|pool| Policy { canary: pool.spec.verify.canary.clone(), ..Policy::from(&pool.spec.disruption) });
    change::step(&ChangeObservation {
        now: inventory.now,
        uuid: key.uuid.as_str(),
        node,
        allocatable: &fleet.allocatable(name),
        cordoned: plugin_observation(inventory, node, true).and_then(|seen| plugin::closed(&seen)),
        target: None,
        reason: &change.reason,
        intent: &change.intent,
        canaries: &canary::pods(inventory),
        pods: &pod_facts(fleet, &scheduled.pods.on_node(name), None, inventory.refusals),
        policy: &policy.unwrap_or_default(),
        others_idle: true,
        agent_alive: liveness.is_alive(),
        alive_since: liveness.since.filter(|_| liveness.is_alive()),
        partitioner: of(node.spec.partitioner),
        request: scheduled.requests.get(name).map(|request| &request.state),
        recreate: scheduled.plan.repartitions.get(key).map(String::as_str),
        staged: false,
        waits: None,
    })
}
