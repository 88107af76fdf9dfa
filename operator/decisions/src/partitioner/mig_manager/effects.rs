//! The effects of a plan where NVIDIA's MIG manager partitions: it clears whole GPUs, so all pods on them are evicted, and not only the
//! owners of removed instances.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    GpuNode, GpuPool, GpuState,
    ids::{GpuKey, NodeName, PoolName},
};
use gputenancy_plan::{Evicted, GpuPlan, Plan, Snapshot, Why, plain, snapshot::Node};
use kube::ResourceExt as _;

use super::{adopt::placed, config::Shape, view::sweeps};
use crate::partitioner::of;

/// Why a GPU with an unchanged layout is repartitioned.
pub const REPARTITIONED_WITH_NODE: &str =
    "NVIDIA's MIG manager changes the MIG mode of another GPU of the node and repartitions this GPU as well";

/// The plan of GPUs of nodes that are partitioned as a whole, where it differs from the planner's: all pods on a repartitioned GPU are
/// evicted, GPUs that are repartitioned with others change too, and a change of placement alone is no change.
pub fn effects(
    (pools, nodes): (&[GpuPool], &BTreeMap<String, Arc<GpuNode>>),
    snapshot: &Snapshot,
    plan: &Plan,
) -> BTreeMap<GpuKey, GpuPlan> {
    let whole = pools.iter().filter(|p| of(p.spec.partitioner).whole_node().is_some());
    let pools: BTreeSet<PoolName> = whole.map(|p| p.name_any().into()).collect();
    let planned = snapshot.nodes.iter().filter(|(_, node)| pools.contains(&node.pool));
    let agreed = planned.filter_map(|(name, node)| Some((name, node, nodes.get(name.as_str())?)));
    agreed.flat_map(|(name, node, agreement)| on_node(name, node, agreement, plan)).collect()
}

fn on_node(name: &NodeName, node: &Node, agreement: &GpuNode, plan: &Plan) -> Vec<(GpuKey, GpuPlan)> {
    let key = |state: &GpuState| GpuKey { node: name.clone(), uuid: state.uuid.as_str().into() };
    let target = |state: &GpuState| plan.gpus.get(&key(state)).and_then(|g| g.target.as_deref());
    let wanted = |state: &GpuState| target(state).map_or_else(|| Shape::seen(state), Shape::of);
    let swept = sweeps(agreement, wanted);
    let effect = |state: &GpuState| {
        let key = key(state);
        let gpu = plan.gpus.get(&key).filter(|g| g.target.is_some())?;
        let actual = if swept.contains(&state.uuid) {
            let used = node.gpus.get(&key.uuid).into_iter().flat_map(|g| &g.used);
            let owners: Vec<Evicted> = used.filter_map(Evicted::of).collect();
            repartitioned(gpu, owners, wanted(state) == Shape::seen(state))
        } else {
            kept(agreement, state, gpu)?
        };
        (actual != *gpu).then_some((key, actual))
    };
    agreement.status.iter().flat_map(|s| &s.gpus).filter_map(effect).collect()
}

/// All pods are evicted. `same_layout`: the GPU is repartitioned because of another one.
fn repartitioned(gpu: &GpuPlan, owners: Vec<Evicted>, same_layout: bool) -> GpuPlan {
    let bystander = same_layout && !gpu.changed;
    let why = if bystander { Why::Repartitioned(REPARTITIONED_WITH_NODE) } else { gpu.why.clone() };
    let rank = gpu.rank.max(u8::from(!owners.is_empty()));
    GpuPlan { changed: gpu.changed || bystander, rank, evicts: owners, why, ..gpu.clone() }
}

/// A GPU that is not repartitioned: other placements of the same instances are no change, since the MIG manager chooses them.
fn kept(agreement: &GpuNode, state: &GpuState, gpu: &GpuPlan) -> Option<GpuPlan> {
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
