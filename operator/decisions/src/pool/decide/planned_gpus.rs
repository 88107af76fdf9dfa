//! What the plan wants of each GPU, and whether it could begin: limits of pools and stages of rollouts decide from it.

use std::collections::BTreeMap;

use gputenancy_crds::{
    ChangePhase, GpuNode, GpuSpec, Layout,
    ids::{GpuKey, NodeName},
};
use gputenancy_plan::GpuPlan;
use k8s_openapi::jiff::Timestamp;

use super::{fleet_plan::Planned, partitioner};
use crate::{
    change::{self, Policy},
    fleet::Fleet,
    liveness::{GRACE_PERIOD, Liveness, SLOT_TIMEOUT},
};

/// What the plan wants of a GPU, and what keeps it from it.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug)]
pub struct PlannedGpu<'a> {
    /// The GPU.
    pub key: &'a GpuKey,
    /// Its plan.
    pub plan: &'a GpuPlan,
    /// Its spec, if it is listed.
    pub spec: Option<&'a GpuSpec>,
    /// Its next layout; `None`: the present one stays.
    pub target: Option<&'a Layout>,
    /// A change is in progress and takes a slot, or may have begun and the cache does not show it yet.
    pub changing: bool,
    /// It does not have that layout.
    pub wanted: bool,
    /// It cannot begin.
    pub blocked: bool,
    /// Order of the plan.
    pub rank: u8,
    /// The node's agent has not reported for longer than the grace period.
    pub silent: bool,
}

/// All GPUs of the plan but those with a conflicting owner, who suspends changes.
pub fn planned_gpus<'a>(planned: &'a Planned<'_>) -> impl Iterator<Item = PlannedGpu<'a>> {
    let (inventory, ownership, plan) = (planned.inventory(), planned.ownership, &planned.plan);
    let fleet = inventory.fleet;
    let here = with_nodes(fleet, &plan.plan.gpus).filter(move |(key, ..)| !ownership.is_conflicting(key.node.as_str()));
    let mut last: Option<(&NodeName, Liveness)> = None;
    here.map(move |(key, gpu, node)| {
        let known = last.filter(|(name, _)| **name == key.node);
        let (_, liveness) = *last.insert(known.unwrap_or_else(|| (&key.node, fleet.liveness(key.node.as_str()))));
        let spec = node.and_then(|n| n.spec.gpus.iter().find(|g| g.uuid == key.uuid.as_str()));
        let phase = spec.and_then(|s| s.change.as_ref()).map(|c| c.phase);
        // a change on a node that has been silent for long takes no slot
        let changing = phase.is_some_and(|p| p < ChangePhase::RolledBack) && holds_slot(liveness, inventory.now);
        // a GPU that is not listed yet has no devices, and waits for no slot unless it must be partitioned
        let target = plan.target(key, gpu);
        // another placement alone is no change where the component chooses it
        let kept = || partitioner::keeps(fleet, key, target);
        let differs = |target: &Layout| spec.is_some_and(|s| !gputenancy_plan::has_layout(s, target));
        let wanted = gpu.changed && !kept() || plan.repartitions.contains_key(key) || target.is_some_and(differs);
        // what cannot begin must not be admitted in place of another GPU
        let blocked =
            wanted && (inventory.failing.contains(key.node.as_str()) || waits_to_retry(planned, spec, (gpu, target)));
        let unknown = [inventory.lagging, inventory.writing].into_iter().any(|nodes| nodes.contains(key.node.as_str()));
        let rank = plan.effective(key, gpu).rank;
        let silent = liveness.is_silent_for(GRACE_PERIOD, inventory.now);
        let changing = changing || wanted && unknown && !silent;
        PlannedGpu { key, plan: gpu, spec, target, changing, wanted, blocked, rank, silent }
    })
}

/// Does a change on a node with this liveness count for the pool's limit? Not once the agent has been silent for [`SLOT_TIMEOUT`]: it cannot
/// proceed, and other nodes must not wait for it.
fn holds_slot(liveness: Liveness, now: Timestamp) -> bool {
    !liveness.is_silent_for(SLOT_TIMEOUT, now)
}

/// A failed change of this GPU is not yet to be retried.
fn waits_to_retry(planned: &Planned<'_>, spec: Option<&GpuSpec>, (gpu, target): (&GpuPlan, Option<&Layout>)) -> bool {
    let Some(change) = spec.and_then(|s| s.change.as_ref()) else { return false };
    let policy = planned.pool(gpu.pool.as_str()).map(|pool| Policy::from(&pool.spec.disruption));
    policy.is_some_and(|policy| change::waits_to_retry(change, target, &policy, planned.now()))
}

/// Planned GPUs with their nodes. GPUs of one node follow each other, so that each node is looked up once.
fn with_nodes<'a>(
    fleet: &'a Fleet,
    gpus: &'a BTreeMap<GpuKey, GpuPlan>,
) -> impl Iterator<Item = (&'a GpuKey, &'a GpuPlan, Option<&'a GpuNode>)> {
    let mut last: Option<(&NodeName, Option<&GpuNode>)> = None;
    gpus.iter().map(move |(key, gpu)| {
        let known = last.filter(|(name, _)| **name == key.node);
        let (_, node) =
            *last.insert(known.unwrap_or_else(|| (&key.node, fleet.gpu_nodes.get(key.node.as_str()).map(|n| &**n))));
        (key, gpu, node)
    })
}
