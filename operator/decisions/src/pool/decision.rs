//! One decision about the fleet, from what the caches show to everything that is to be written. Pure.
//!
//! Each stage is made from the ones before it: [`Inventory`], [`Ownership`], [`FleetPlan`], decisions by GPU and node, status.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    ChangePhase, GpuPoolStatus, GpuProfileStatus, Stranded,
    ids::{GpuKey, NodeName, PodName, PoolName},
};
use gputenancy_plan::{GpuPlan, Planner};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::{
    decide::{
        bypass,
        canary::{self, OrphanedCanary},
        fleet_plan::FleetPlan,
        gpu_changes::{self, ChangeInputs},
        labels::{self, Labels},
        node_specs::{self, GpuWork, NodeDecisions},
        overlap,
        overruns::Overruns,
        partitioner::{self, Requests},
        plugin_configs::{self, ConfigsWrite},
        rollout,
        taints::{self, TaintChange},
        urgent,
    },
    derive::{
        flapping, node_states::NodeStates, node_views::NodeViews, ownership::Ownership, pod_index::PodIndex, silence,
    },
    read::{
        inventory::Inventory,
        visits::{Names, Visits},
    },
    status::{pools, profiles, view},
};
use crate::{
    adoption, change::ChangeDecision, demand::Demands, fleet::Fleet, fleet_view::FleetView, partitioner::MigConfigs,
};

/// Everything that is to be written.
#[derive(Clone, Debug, Default)]
pub struct FleetDecision {
    /// Specs that differ from what the cluster has, by node, with the decisions that they carry out.
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
    /// Decide again at this time even if nothing changed.
    pub wake: Option<Timestamp>,
}

/// Pods that are evicted now, and those of nodes whose agent has yet to report on the last spec: until then no eviction is decided there, and
/// one that is being carried out goes on.
fn evicted<'a>(fleet: &Fleet, decisions: &'a BTreeMap<GpuKey, ChangeDecision>) -> impl Iterator<Item = &'a PodName> {
    decisions.iter().flat_map(|(key, decision)| {
        let node = fleet.gpu_nodes.get(key.node.as_str());
        let observed = node.and_then(|n| n.status.as_ref()?.observed_generation);
        let stale = node.is_some_and(|n| n.metadata.generation != observed) && fleet.answers(key.node.as_str());
        let evicted = decision.evictions.iter().map(|eviction| &eviction.pod);
        evicted.chain(decision.notified.iter().filter(move |_| stale))
    })
}

/// What one decision leaves to the next.
#[derive(Debug, Default)]
pub struct Remembered {
    /// Which nodes are visited.
    pub visits: Visits,
    /// Liveness of agents, and conflicting owners.
    pub states: NodeStates,
    /// Pools and owners of nodes.
    pub ownership: Ownership,
    /// The last plan: an unchanged fleet is not planned again.
    pub planner: Planner,
    /// What follows from each `GpuNode` alone, and totals.
    pub views: NodeViews,
    /// Pods by what they matter for.
    pub pods: PodIndex,
    /// Guarantees that have changed a short time ago.
    pub demands: Demands,
    /// Pools with too many faulty GPUs, and when the last of it ended.
    pub overruns: Overruns,
}

/// The fleet with the guarantees that are planned, if they differ from those that the tenants have now.
fn damped(fleet: &Fleet, demands: &mut Demands, now: Timestamp) -> Option<Fleet> {
    demands.update(fleet, now);
    demands.planned(fleet).map(|tenants| Fleet { tenants, ..fleet.clone() })
}

/// The fleet with the layouts that agents retain, and with placements as the components chose them; `None`: as it is.
fn adopted(fleet: &Fleet) -> Option<Fleet> {
    let retained = adoption::adopted(fleet);
    partitioner::adopted(retained.as_ref().unwrap_or(fleet)).or(retained)
}

/// Requests for nodes that are partitioned as a whole, and that no other component partitions.
fn requests(inventory: &Inventory<'_>, ownership: &Ownership, plan: &FleetPlan<'_>) -> Requests {
    let mut requests = partitioner::requests(inventory, plan.plan);
    requests.retain(|node, _| !ownership.is_conflicting(node.as_str()));
    requests
}

/// Statuses of pools that differ.
fn pool_statuses(seen: &pools::Seen<'_>) -> BTreeMap<String, GpuPoolStatus> {
    let pools = seen.fleet.pools.iter().map(|p| (p, pools::pool(seen, p)));
    pools.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect()
}

/// Statuses of profiles that differ.
fn profile_statuses(seen: &pools::Seen<'_>) -> BTreeMap<String, GpuProfileStatus> {
    let profiles = seen.fleet.profiles.iter().map(|p| (p, profiles::status(seen, p)));
    profiles.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect()
}

/// When something follows on nodes under NVIDIA's device plugin.
fn plugin_wakes(inventory: &Inventory<'_>) -> impl Iterator<Item = Timestamp> {
    let by_plugin = inventory.fleet.gpu_nodes.values().filter(|node| plugin_configs::is_by_plugin(node));
    by_plugin.filter_map(|node| node_specs::plugin_step(inventory, node, true)?.wake)
}

/// Nodes about which something is written.
fn written(decision: &FleetDecision) -> impl Iterator<Item = &NodeName> {
    let nodes = decision.nodes.keys().chain(decision.labels.keys()).chain(decision.taints.keys());
    nodes.chain(&decision.pool_names)
}

/// Steps of changes, by GPU.
fn changes(
    inputs: &ChangeInputs<'_>,
    views: &NodeViews,
    pods: &PodIndex,
    (busy, visited): (&[(&GpuKey, &GpuPlan)], &Names),
) -> BTreeMap<GpuKey, ChangeDecision> {
    let mut changes = gpu_changes::decisions(inputs, views, pods, busy);
    changes.extend(overlap::decisions(inputs, pods, visited));
    changes
}

/// Decides. What is remembered of the last decision saves the work for what has not changed since.
pub fn decide(cached: &Inventory<'_>, remembered: &mut Remembered) -> FleetDecision {
    let Remembered { visits, states, ownership, planner, views, pods, demands, overruns } = remembered;
    let adopted = adopted(cached.fleet);
    let fleet = adopted.as_ref().unwrap_or(cached.fleet);
    let damped = damped(fleet, demands, cached.now);
    let fleet = damped.as_ref().unwrap_or(fleet);
    let inventory = &Inventory { fleet, ..*cached };
    let mut visited = visits.begin(inventory);
    pods.update(fleet);
    states.update(fleet, &visited);
    ownership.update(fleet, states, &visited);
    states.update_silent(|name| ownership.is_pooled(name), &visited);
    states.update_marks(fleet, inventory.tolerated, inventory.now, &visited);
    views.update(fleet, ownership, states, &visited);
    let cluster = states.cluster(fleet, pods, inventory.now);
    let plan = &FleetPlan::make(fleet, &cluster, &ownership.members, planner);
    visited.extend(plan.differing.iter().map(ToString::to_string));

    let (ownership, views, pods, demands) = (&*ownership, &*views, &*pods, &*demands);
    let (silent, marks) = (states.silent(), states.marks());
    let windows = gpu_changes::windows(inventory);
    let requests = &requests(inventory, ownership, plan);
    overruns.update(fleet, ownership, marks, inventory.now);
    let overruns = &*overruns;
    let stages = rollout::stages(inventory, ownership, plan, marks);
    let urgent = urgent::changes(&urgent::Faults { inventory, ownership, marks, windows: &windows }, plan.plan);
    let inputs = ChangeInputs {
        inventory,
        ownership,
        plan,
        windows: &windows,
        requests,
        stages: &stages,
        marks,
        overruns,
        urgent: &urgent,
    };
    let busy = gpu_changes::busy(&inputs, &visited);
    let decisions = &changes(&inputs, views, pods, (&busy, &visited));
    let bypass = bypass::evictions(inventory, ownership, views, pods);
    let made = NodeDecisions { decisions, requests, visited: &visited, bypass: &bypass.evictions, marks };
    let nodes = node_specs::work(inventory, cached.fleet, ownership, &made);
    let labels = labels::labels(fleet, ownership, views, &visited);
    let taints = taints::taints(inventory, ownership, &visited);

    let seen = pools::Seen {
        fleet,
        plan: plan.plan,
        problems: &plan.problems,
        changes: plan.changes,
        ownership,
        states,
        pods,
        decisions,
        views,
        windows: &windows,
        stages: &stages,
        overruns,
        tolerated: inventory.tolerated,
        demands,
        now: inventory.now,
    };
    let decision = FleetDecision {
        orphaned_canaries: canary::orphaned(inventory, ownership, decisions),
        cancelled_evictions: gpu_changes::cancelled_evictions(inventory, ownership, pods, decisions),
        evicted: evicted(fleet, decisions).chain(bypass.pods()).cloned().collect(),
        labels,
        taints,
        pool_names: labels::pool_names(fleet, &visited),
        requests: partitioner::with_labels(requests),
        mig_configs: partitioner::configs(fleet, requests),
        plugin_configs: plugin_configs::write(fleet, ownership),
        view: view::view(&seen, plan.snapshot),
        pools: pool_statuses(&seen),
        profiles: profile_statuses(&seen),
        finished: pools::finished(&seen),
        phases: views.sums().phases().collect(),
        conflicting: ownership.conflicting.values().copied().collect(),
        silent_agents: silence::pools(silent, &ownership.members, inventory.now).map(ToString::to_string).collect(),
        marked_nodes: marks.nodes().filter_map(|n| ownership.pool_of(n)).map(ToString::to_string).collect(),
        flapping: flapping::pools(fleet, demands, inventory.now),
        stopped_rollouts: stages.stopped().map(str::to_owned).collect(),
        stranded: plan.plan.stranded.clone(),
        wake: decisions
            .values()
            .filter_map(|d| d.requeue_at)
            .chain(requests.values().filter_map(|d| d.requeue_at))
            .chain(pools::patience_ends(&seen))
            .chain(stages.ends().chain(bypass.retry_at))
            .chain(silence::next_deadline(silent, inventory.now))
            .chain(marks.next_turn(inventory.now))
            .chain(demands.next(inventory.now))
            .chain(plugin_wakes(inventory))
            .chain(windows.values().filter_map(|w| w.as_ref().ok()?.turns()))
            .min(),
        nodes,
    };
    // a node about which something was decided may need the same again, if it is not carried out; so may one with a request, and
    // one for which time alone makes a difference
    let again = written(&decision).chain(requests.keys()).chain(decisions.keys().map(|key| &key.node));
    let again = again.chain(busy.iter().map(|(key, _)| &key.node)).map(NodeName::as_str);
    let again = again.chain(silent.keys().chain(marks.visited_again()).chain(inventory.lagging).map(String::as_str));
    let again = again.chain(views.bypassed().map(|(name, _)| name));
    visits.end(again.map(str::to_owned).collect());
    decision
}
