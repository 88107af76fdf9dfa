//! How far a plan reaches where NVIDIA's MIG manager carves: it clears whole GPUs, so that everybody on them has to move, and not only
//! whoever has a device that goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{GpuNode, GpuState, Partitioner};
use kube::ResourceExt as _;

use super::fleet::Fleet;
use crate::plan::{Evicted, GpuKey, GpuPlan, NodeName, Plan, PoolName, Snapshot, Why, plain, snapshot::Node};
use gputenancy_engine::mig_manager::{Shape, placed, sweeps};

/// Why a GPU is carved anew whose layout stays.
pub(super) const BYSTANDER: &str =
    "NVIDIA's MIG manager changes the MIG mode of another GPU of the node and carves this one anew for it";

/// What the plan comes to on GPUs of pools with `partitioner: MigManager`, wherever that differs from the plan: everybody on a GPU
/// that is carved anew moves, GPUs that are carved with others change too, and a mere change of places is none.
pub fn reach(fleet: &Fleet, snapshot: &Snapshot, plan: &Plan) -> BTreeMap<GpuKey, GpuPlan> {
    let managed = fleet.pools.iter().filter(|p| p.spec.partitioner == Partitioner::MigManager);
    let pools: BTreeSet<PoolName> = managed.map(|p| p.name_any().into()).collect();
    let nodes = snapshot.nodes.iter().filter(|(_, node)| pools.contains(&node.pool));
    let agreed = nodes.filter_map(|(name, node)| Some((name, node, fleet.gpu_nodes.get(name.as_str())?)));
    agreed.flat_map(|(name, node, agreement)| on_node(name, node, agreement, plan)).collect()
}

fn on_node(name: &NodeName, node: &Node, agreement: &GpuNode, plan: &Plan) -> Vec<(GpuKey, GpuPlan)> {
    let key = |state: &GpuState| GpuKey { node: name.clone(), uuid: state.uuid.as_str().into() };
    let target = |state: &GpuState| plan.gpus.get(&key(state)).and_then(|g| g.target.as_deref());
    let wanted = |state: &GpuState| target(state).map_or_else(|| Shape::seen(state), Shape::of);
    let swept = sweeps(agreement, wanted);
    let reached = |state: &GpuState| {
        let key = key(state);
        let gpu = plan.gpus.get(&key).filter(|g| g.target.is_some())?;
        let reached = if swept.contains(&state.uuid) {
            let used = node.gpus.get(&key.uuid).into_iter().flat_map(|g| &g.used);
            let owners: Vec<Evicted> = used.filter_map(Evicted::of).collect();
            carved(gpu, owners, wanted(state) == Shape::seen(state))
        } else {
            stays(agreement, state, gpu)?
        };
        (reached != *gpu).then_some((key, reached))
    };
    agreement.status.iter().flat_map(|s| &s.gpus).filter_map(reached).collect()
}

/// Everybody leaves. `stays`: the layout is the same, and the GPU is carved because of another one.
fn carved(gpu: &GpuPlan, owners: Vec<Evicted>, stays: bool) -> GpuPlan {
    let bystander = stays && !gpu.changed;
    let why = if bystander { Why::Repartitioned(BYSTANDER) } else { gpu.why.clone() };
    let rank = gpu.rank.max(u8::from(!owners.is_empty()));
    GpuPlan { changed: gpu.changed || bystander, rank, evicts: owners, why, ..gpu.clone() }
}

/// A GPU that is not carved anew: other places for the same instances are no change, since the MIG manager chooses them.
fn stays(agreement: &GpuNode, state: &GpuState, gpu: &GpuPlan) -> Option<GpuPlan> {
    let spec = agreement.spec.gpus.iter().find(|s| s.uuid == state.uuid)?;
    let target = plain(gpu.target.as_deref().filter(|t| gpu.changed && t.mig)?.clone());
    let placed = placed(&target, state);
    let target = Some(Arc::new(placed.clone()));
    (placed == plain(spec.layout())).then(|| GpuPlan {
        changed: false,
        target,
        evicts: Vec::new(),
        why: Why::Kept,
        ..gpu.clone()
    })
}

#[cfg(test)]
mod tests;
