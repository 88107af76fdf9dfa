//! A world with the operator's plan for it.

use std::collections::BTreeMap;

use gputenancy_crds::{
    Change, ChangePhase, GpuPool, GpuSpec, GpuState,
    ids::{GpuKey, NodeName, PoolName},
};
use gputenancy_decisions::partitioner;
use gputenancy_plan::{
    self as plan, Plan, Problem, Snapshot,
    board::BoardGeometry,
    membership,
    snapshot::{Gpu, InUse},
};

use crate::world::World;

pub(super) struct PlannedWorld<'a> {
    pub world: &'a World,
    pub snapshot: Snapshot,
    /// The plan, with its effects on nodes that are partitioned as a whole.
    pub plan: Plan,
    /// GPUs that are repartitioned because of others, with the reason.
    pub bystanders: BTreeMap<GpuKey, String>,
    /// Everything that is wrong, sorted.
    pub problems: Vec<Problem>,
    /// Pools that select each node.
    pub members: BTreeMap<NodeName, Vec<PoolName>>,
}

impl<'a> PlannedWorld<'a> {
    pub fn of(world: &'a World) -> Self {
        // as in the operator: a node within its grace period is still supply
        let cluster = world.taken_at.map_or_else(|| world.fleet.cluster(), |now| world.fleet.cluster_at(now));
        let (snapshot, mut problems) = Snapshot::read(&cluster);
        let mut plan = plan::plan(&snapshot);
        let mut bystanders = BTreeMap::new();
        for (key, gpu) in partitioner::effects((&world.fleet.pools, &world.fleet.gpu_nodes), &snapshot, &plan) {
            if gpu.changed && plan.gpus.get(&key).is_some_and(|planned| !planned.changed) {
                bystanders.extend(plan.reason_of(&key, &gpu).map(|why| (key.clone(), why)));
            }
            plan.gpus.insert(key, gpu);
        }
        problems.extend(plan.problems.iter().cloned());
        problems.sort();
        problems.dedup();
        let members = membership(&cluster.pools, cluster.nodes.iter().map(|n| (n.name, n.labels)));
        Self { world, snapshot, plan, bystanders, problems, members }
    }

    /// The planner's model of a GPU.
    pub fn gpu(&self, key: &GpuKey) -> Option<&Gpu> {
        self.snapshot.nodes.get(key.node.as_str())?.gpus.get(key.uuid.as_str())
    }

    pub fn board(&self, key: &GpuKey) -> Option<&BoardGeometry> {
        let node = self.snapshot.nodes.get(key.node.as_str())?;
        node.boards.get(node.gpus.get(key.uuid.as_str())?.board).map(|board| &**board)
    }

    pub fn state(&self, key: &GpuKey) -> Option<&GpuState> {
        self.world.gpu(key.node.as_str(), key.uuid.as_str()).map(|(_, state)| state)
    }

    pub fn spec(&self, key: &GpuKey) -> Option<&GpuSpec> {
        let node = self.world.fleet.gpu_nodes.get(key.node.as_str())?;
        node.spec.gpus.iter().find(|g| g.uuid == key.uuid.as_str())
    }

    /// The change in progress on a GPU.
    pub fn in_progress(&self, key: &GpuKey) -> Option<&Change> {
        self.spec(key)?.change.as_ref().filter(|c| c.phase < ChangePhase::RolledBack)
    }

    /// The pool, if its nodes are partitioned as a whole.
    pub fn whole(&self, pool: &str) -> Option<&GpuPool> {
        self.world.pool(pool).filter(|p| partitioner::of(p.spec.partitioner).whole_node().is_some())
    }

    /// Every device in use, with its GPU.
    pub fn used(&self) -> impl Iterator<Item = &InUse> {
        self.snapshot.nodes.values().flat_map(|n| n.gpus.values()).flat_map(|g| &g.used)
    }
}
