//! One decision about the fleet, from what the caches show to everything that is to be written. Pure.
//!
//! Each stage can only be made of the one before it: [`Read`], [`Derived`], [`Planned`], [`Scheduled`], [`Decided`], [`Statuses`].

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    ChangePhase, GpuPoolStatus, GpuProfileStatus, Stranded,
    ids::{NodeName, PodName, PoolName},
};
use gputenancy_plan::Planner;
use k8s_openapi::jiff::Timestamp;

use super::{
    decide::{
        canary::{self, OrphanedCanary},
        decided::Decided,
        fleet_plan::Planned,
        gpu_changes,
        labels::Labels,
        node_specs::{self, GpuWork},
        overruns::Overruns,
        partitioner::{self, Requests},
        plugin_configs::{self, ConfigsWrite},
        scheduled::Scheduled,
        taints::TaintChange,
    },
    derive::{Derivations, Derived, flapping, silence},
    read::{
        Read,
        dirty_nodes::{LastInput, VisitReason},
        inventory::Inventory,
    },
    status::{Statuses, pools},
};
use crate::{demand::Demands, fleet_view::FleetView, partitioner::MigConfigs};

/// Everything that is to be written.
#[derive(Clone, Debug, Default)]
pub struct FleetDecision {
    /// Specs that differ from what the cluster has, and what is done about pods, by node.
    pub nodes: BTreeMap<NodeName, GpuWork>,
    /// Pods that are evicted: now, or by a write that is in progress until their agent has reported.
    pub evicted: BTreeSet<PodName>,
    /// Pods with a notice of an eviction that is cancelled, with their UID.
    pub cancelled_evictions: BTreeMap<PodName, String>,
    /// Canary pods that no change needs, by the node that they were created for.
    pub orphaned_canaries: BTreeMap<NodeName, Vec<OrphanedCanary>>,
    /// The operator's labels of nodes that lack them or have others.
    pub labels: BTreeMap<NodeName, Labels>,
    /// Taints of nodes that lack their pool's, or have one of the operator's that no pool wants.
    pub taints: BTreeMap<NodeName, TaintChange>,
    /// Nodes whose pool's name has to be copied from the Node to the `GpuNode`.
    pub pool_names: BTreeSet<NodeName>,
    /// Requests for nodes that are partitioned as a whole, where labels have to be written.
    pub requests: Requests,
    /// Layouts for such requests, if they differ from the published ones.
    pub mig_configs: Option<MigConfigs>,
    /// Configs for NVIDIA's device plugin, if the published ones lack any.
    pub plugin_configs: Option<ConfigsWrite>,
    /// What tenants need to know.
    pub view: FleetView,
    /// Status of pools that differs.
    pub pools: BTreeMap<String, GpuPoolStatus>,
    /// Status of profiles that differs.
    pub profiles: BTreeMap<String, GpuProfileStatus>,
    /// Deleted pools that have no GPU any more.
    pub finished: BTreeSet<String>,
    /// Phases of all changes, for metrics.
    pub phases: Vec<ChangePhase>,
    /// Conflicting owners of nodes of pools, once for each node, for metrics.
    pub conflicting: Vec<&'static str>,
    /// The pool of each node that the pool's condition `AgentSilent` names, for metrics.
    pub silent_agents: Vec<String>,
    /// The pool of each node that the pool's condition `NodesMarked` names, for metrics.
    pub marked_nodes: Vec<String>,
    /// The pool of each guarantee that the pool's condition `DemandFlapping` names, for metrics.
    pub flapping: Vec<String>,
    /// Pools whose rollout has stopped, for metrics.
    pub stopped_rollouts: Vec<String>,
    /// Free slices of each pool that no profile of it can use, for metrics.
    pub stranded: BTreeMap<PoolName, Stranded>,
    /// Number of nodes that were visited, by reason.
    pub visited: BTreeMap<VisitReason, usize>,
    /// Decide again at this time even if nothing changed.
    pub wake: Option<Timestamp>,
}

/// What one decision leaves to the next.
#[derive(Debug, Default)]
pub struct Remembered {
    /// What the last decision was made from.
    pub input: LastInput,
    /// What follows from it.
    pub derived: Derivations,
    /// The last plan: an unchanged fleet is not planned again.
    pub planner: Planner,
    /// Guarantees that have changed a short time ago.
    pub demands: Demands,
    /// Pools with too many faulty GPUs, and when the last of it ended.
    pub overruns: Overruns,
}

/// Decides. What is remembered of the last decision saves the work for what has not changed since.
pub fn decide(cached: &Inventory<'_>, remembered: &mut Remembered) -> FleetDecision {
    let Remembered { input, derived, planner, demands, overruns } = remembered;
    let read = Read::of(cached, demands, input);
    let derived = Derived::of(read, derived);
    let planned = Planned::of(derived, planner);
    let scheduled = Scheduled::of(planned, overruns);
    let mut decided = Decided::of(scheduled);
    let statuses = Statuses::of(&decided);
    input.requeue(std::mem::take(&mut decided.requeued));
    FleetDecision::of(decided, statuses)
}

impl FleetDecision {
    fn of(decided: Decided<'_>, statuses: Statuses) -> Self {
        let (fleet, ownership, requests) = (decided.fleet(), decided.ownership, &decided.requests);
        let (now, marks) = (decided.now(), decided.marks);
        let name = |pool: &PoolName| pool.to_string();
        let Statuses { view, pools, profiles, finished } = statuses;
        Self {
            evicted: decided.evicted().cloned().collect(),
            cancelled_evictions: gpu_changes::cancelled_evictions(&decided, &decided.gpu_changes),
            orphaned_canaries: canary::orphaned(&decided, &decided.gpu_changes),
            requests: partitioner::with_labels(requests),
            mig_configs: partitioner::configs(fleet, requests),
            plugin_configs: plugin_configs::write(fleet, ownership),
            phases: decided.views.sums().phases().collect(),
            conflicting: ownership.conflicting.values().copied().collect(),
            silent_agents: silence::pools(decided.silent, &ownership.members, now).map(name).collect(),
            marked_nodes: marks.nodes().filter_map(|node| ownership.pool_of(node)).map(name).collect(),
            flapping: flapping::pools(fleet, decided.demands, now),
            stopped_rollouts: decided.stages.stopped().map(str::to_owned).collect(),
            stranded: decided.plan.plan.stranded.clone(),
            visited: decided.visited.by_reason(),
            wake: wake(&decided),
            view,
            pools,
            profiles,
            finished,
            nodes: decided.nodes,
            labels: decided.labels,
            taints: decided.taints,
            pool_names: decided.pool_names,
        }
    }
}

/// When something follows by time alone.
fn wake(decided: &Decided<'_>) -> Option<Timestamp> {
    let now = decided.now();
    let changes = decided.gpu_changes.values().filter_map(|change| change.requeue_at);
    let requests = decided.requests.values().filter_map(|request| request.requeue_at);
    let windows = decided.windows.values().filter_map(|window| window.as_ref().ok()?.turns());
    let ends = [
        pools::patience_ends(decided),
        decided.bypass.retry_at,
        silence::next_deadline(decided.silent, now),
        decided.marks.next_turn(now),
        decided.demands.next(now),
    ];
    let all = changes.chain(requests).chain(windows).chain(decided.stages.ends());
    all.chain(ends.into_iter().flatten()).chain(plugin_wakes(&decided.inventory())).min()
}

/// When something follows on nodes under NVIDIA's device plugin.
fn plugin_wakes(inventory: &Inventory<'_>) -> impl Iterator<Item = Timestamp> {
    let by_plugin = inventory.fleet.gpu_nodes.values().filter(|node| plugin_configs::is_by_plugin(node));
    by_plugin.filter_map(|node| node_specs::plugin_step(inventory, node, true)?.wake)
}
