//! The plan of the fleet, and what it means where a component partitions nodes as a whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use gputenancy_crds::{
    GpuSpec, Layout,
    ids::{GpuKey, NodeName, PoolName},
};
use gputenancy_plan::{Cluster, GpuPlan, Plan, Planner, Problem, Snapshot, Why};

use super::partitioner;
use crate::{
    fleet::Fleet,
    partitioner::effects,
    pool::{
        derive::Derived,
        read::dirty_nodes::{DirtyNodes, VisitReason},
    },
};

/// The plan of what was derived.
pub struct Planned<'a> {
    derived: Derived<'a>,
    /// The plan.
    pub plan: FleetPlan<'a>,
    /// All nodes that are visited.
    pub visited: DirtyNodes,
}

impl<'a> Planned<'a> {
    /// Plans; `planner` keeps the last plan, so that an unchanged fleet is not planned again.
    pub fn of(derived: Derived<'a>, planner: &'a mut Planner) -> Self {
        let plan = FleetPlan::make(derived.fleet(), &derived.cluster(), &derived.ownership.members, planner);
        let mut visited = derived.dirty.clone();
        visited.add(VisitReason::Plan, plan.differing.iter().map(NodeName::as_str));
        Self { derived, plan, visited }
    }
}

/// A stage has all that the one before it has.
impl<'a> Deref for Planned<'a> {
    type Target = Derived<'a>;

    fn deref(&self) -> &Derived<'a> {
        &self.derived
    }
}

/// The plan, which is made once for the fleet.
pub struct FleetPlan<'a> {
    /// What the planner read.
    pub snapshot: &'a Snapshot,
    /// The plan.
    pub plan: &'a Plan,
    /// GPUs whose target differs from their layout.
    pub changes: &'a [GpuKey],
    /// Nodes whose GPUs had another plan in the last decision.
    pub differing: &'a BTreeSet<NodeName>,
    /// All problems.
    pub problems: Vec<Problem>,
    /// Plans of GPUs whose change has other effects.
    effects: BTreeMap<GpuKey, GpuPlan>,
    /// Layouts with the placements that are left as they are.
    targets: BTreeMap<GpuKey, Layout>,
    /// GPUs that must be partitioned again though their layout stays, with the reason.
    pub repartitions: BTreeMap<GpuKey, String>,
}

impl<'a> FleetPlan<'a> {
    /// `members`: the pools that select each node.
    fn make(
        fleet: &Fleet,
        cluster: &Cluster<'_>,
        members: &BTreeMap<NodeName, Vec<PoolName>>,
        planner: &'a mut Planner,
    ) -> Self {
        let mut problems = planner.read(cluster, members);
        let gputenancy_plan::Planned { snapshot, plan, changes, differing } = planner.planned();
        problems.extend(plan.problems.iter().cloned());
        problems.sort();
        problems.dedup();
        let (effects, targets) =
            (effects((&fleet.pools, &fleet.gpu_nodes), snapshot, plan), partitioner::targets(fleet, plan));
        let mut repartitions = partitioner::repartitions(fleet);
        for (key, why) in &mut repartitions {
            // the plan's reason names all pods that are evicted for it
            if let Some(gpu) = effects.get(key).filter(|gpu| gpu.why != Why::Kept) {
                *why = reason(plan, key, gpu).unwrap_or_default();
            }
        }
        Self { snapshot, plan, changes, differing, problems, effects, targets, repartitions }
    }

    /// The target layout of a GPU.
    pub fn target<'b>(&'b self, key: &GpuKey, gpu: &'b GpuPlan) -> Option<&'b Layout> {
        self.targets.get(key).or(gpu.target.as_deref())
    }

    /// The plan of a GPU with the effects that its change has.
    pub fn effective<'b>(&'b self, key: &GpuKey, gpu: &'b GpuPlan) -> &'b GpuPlan {
        self.effects.get(key).unwrap_or(gpu)
    }

    /// Why a GPU changes. A change in progress keeps the reason that it began with: to the plan it is settled.
    pub fn reason(&self, key: &GpuKey, gpu: &GpuPlan, spec: Option<&GpuSpec>) -> String {
        let begun = || spec.and_then(|s| s.change.as_ref()).map(|c| c.reason.clone());
        reason(self.plan, key, self.effective(key, gpu)).or_else(begun).unwrap_or_default()
    }
}

/// The plan's reason without the name of the GPU, which messages put in front.
fn reason(plan: &Plan, key: &GpuKey, gpu: &GpuPlan) -> Option<String> {
    let reason = plan.reason_of(key, gpu)?;
    let title = format!("{} GPU {}: ", key.node, gpu.index);
    Some(reason.strip_prefix(&title).unwrap_or(&reason).to_owned())
}
