//! One decision about the fleet, from what the caches show to everything that is to be written. Pure.
//!
//! Each stage is made from the ones before it: [`Inventory`], [`Ownership`], [`FleetPlan`], decisions by GPU and node, status.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{ChangePhase, GpuPoolStatus, GpuProfileStatus};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::{
    bypass,
    canary::{self, OrphanedCanary},
    devices,
    fleet_plan::FleetPlan,
    gpu_changes::{self, ChangeInputs, NodesAtRest},
    inventory::Inventory,
    labels::{self, Labels, SettledLabels},
    mig_manager::{self, MigManagerRequest},
    node_specs::{self, GpuWork, NodeDecisions},
    node_views::NodeViews,
    ownership::Ownership,
    plugin_configs::{self, ConfigsWrite},
    profile_status, rollout, silence, status,
    taints::{self, TaintChange},
    view,
};
use crate::{
    fleet_view::FleetView,
    plan::{NodeName, Planner, PodName},
};
use gputenancy_engine::mig_manager::MigConfigs;

/// Everything that is to be written.
#[derive(Clone, Debug, Default)]
pub struct FleetDecision {
    /// Specs that differ from what the cluster has, by node, with the decisions that they carry out.
    pub nodes: BTreeMap<NodeName, GpuWork>,
    /// Pods with a notice of an eviction that is cancelled, with their UID.
    pub cancelled_evictions: BTreeMap<PodName, String>,
    /// Canary pods that no change needs, by the node that they were created for.
    pub orphaned_canaries: BTreeMap<NodeName, Vec<OrphanedCanary>>,
    /// The operator's labels of nodes that lack them or have others.
    pub labels: BTreeMap<NodeName, Labels>,
    /// Taints of nodes that lack their pool's, or have one of the operator's that no pool wants.
    pub taints: BTreeMap<NodeName, TaintChange>,
    /// Labels for NVIDIA's MIG manager, and those that it left paused.
    pub mig_manager_requests: BTreeMap<NodeName, MigManagerRequest>,
    /// Layouts for NVIDIA's MIG manager, if they differ from the published ones.
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
    /// Pools whose rollout has stopped, for metrics.
    pub stopped_rollouts: Vec<String>,
    /// Decide again at this time even if nothing changed.
    pub wake: Option<Timestamp>,
}

/// What one decision leaves to the next.
#[derive(Debug, Default)]
pub struct Remembered {
    /// The last plan: an unchanged fleet is not planned again.
    pub planner: Planner,
    /// What follows from each `GpuNode` alone.
    pub views: NodeViews,
    /// Nodes whose GPUs do not change.
    pub at_rest: NodesAtRest,
    /// Nodes whose labels are as they shall be.
    pub labels: SettledLabels,
}

/// Decides. What is remembered of the last decision saves the work for what has not changed since.
pub fn decide(
    cached: &Inventory<'_>,
    Remembered { planner, views, at_rest, labels }: &mut Remembered,
) -> FleetDecision {
    let adopted = mig_manager::adopted(cached.fleet);
    let fleet = adopted.as_ref().unwrap_or(cached.fleet);
    let inventory = &Inventory { fleet, ..*cached };
    let (cluster, silent) = &fleet.cluster_and_silent(inventory.now);
    let ownership = &Ownership::of(fleet, cluster);
    let plan = &FleetPlan::make(fleet, cluster, &ownership.members, planner);

    views.update(fleet, silent);
    let (views, windows) = (&*views, gpu_changes::windows(inventory));
    let mut mig_managers = mig_manager::decisions(inventory, plan.plan);
    mig_managers.retain(|node, _| !ownership.is_conflicting(node));
    let stages = rollout::stages(inventory, ownership, plan);
    let inputs =
        ChangeInputs { inventory, ownership, plan, windows: &windows, mig_managers: &mig_managers, stages: &stages };
    let decisions = gpu_changes::decisions(&inputs, views, at_rest);
    let bypass = bypass::evictions(inventory, ownership, views);
    let made = NodeDecisions { decisions: &decisions, mig_managers: &mig_managers, bypass: &bypass.evictions };
    let nodes = node_specs::work(inventory, cached.fleet, ownership, &made);

    let seen = status::Seen {
        fleet,
        plan: plan.plan,
        problems: &plan.problems,
        members: &ownership.members,
        decisions: &decisions,
        views,
        devices: &devices::sums(views.devices()),
        silent,
        windows: &windows,
        stages: &stages,
        tolerated: inventory.tolerated,
        now: inventory.now,
    };
    let by_plugin = fleet.gpu_nodes.values().filter(|node| plugin_configs::is_by_plugin(node));
    let pools = fleet.pools.iter().map(|p| (p, status::pool(&seen, p)));
    let profiles = fleet.profiles.iter().map(|p| (p, profile_status::status(&seen, p)));
    FleetDecision {
        orphaned_canaries: canary::orphaned(inventory, &decisions),
        cancelled_evictions: gpu_changes::cancelled_evictions(inventory, ownership, &decisions),
        labels: labels::labels(fleet, ownership, views, labels),
        taints: taints::taints(inventory, ownership),
        mig_manager_requests: mig_manager::requests(&mig_managers),
        mig_configs: mig_manager::configs(fleet, &mig_managers),
        plugin_configs: plugin_configs::write(fleet, ownership),
        view: view::view(&seen, plan.snapshot),
        pools: pools.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect(),
        profiles: profiles.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect(),
        finished: status::finished(&seen),
        phases: views.phases().collect(),
        conflicting: ownership.conflicting.values().copied().collect(),
        silent_agents: silence::pools(silent, &ownership.members, inventory.now).map(ToString::to_string).collect(),
        stopped_rollouts: stages.stopped().map(str::to_owned).collect(),
        wake: decisions
            .values()
            .filter_map(|d| d.requeue_at)
            .chain(mig_managers.values().filter_map(|d| d.requeue_at))
            .chain(status::patience_ends(&seen))
            .chain(stages.ends())
            .chain(bypass.retry_at)
            .chain(fleet.next_silence_deadline(silent, inventory.now))
            .chain(by_plugin.filter_map(|n| node_specs::plugin_step(inventory, n, true)?.wake))
            .chain(windows.values().filter_map(|w| w.as_ref().ok()?.turns()))
            .min(),
        nodes,
    }
}
