//! Nodes that a component partitions as a whole, at requests of the operator: such a node changes as a whole.

#[cfg(test)]
mod effects_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    ChangePhase, GpuNode, GpuSpec, GpuState, Layout,
    ids::{GpuKey, NodeName, PoolName},
    names,
};
use gputenancy_plan::{Plan, plain};
use kube::ResourceExt as _;

use crate::{
    change,
    fleet::Fleet,
    partitioner::{
        self, MigConfigs, REPARTITIONED_WITH_NODE, RequestDecision, RequestObservation, RequestTimeouts, Shape, base,
        is_ours, is_whole, placed, sweeps,
    },
    pool::{derive::Derived, read::inventory::Inventory},
};

/// What is decided about requests, by node.
pub type Requests = BTreeMap<NodeName, RequestDecision>;

/// The nodes that are partitioned as a whole.
fn whole(fleet: &Fleet) -> impl Iterator<Item = (&String, &Arc<GpuNode>)> {
    fleet.gpu_nodes.iter().filter(|(_, node)| is_whole(node))
}

/// What to do about the request for each node.
pub fn requests(derived: &Derived<'_>, plan: &Plan) -> Requests {
    let Inventory { fleet, now, lagging, .. } = derived.inventory();
    let mut nodes = whole(fleet).filter(|(name, _)| !lagging.contains(*name)).peekable();
    if nodes.peek().is_none() {
        return BTreeMap::new();
    }
    let pools: BTreeMap<&str, &PoolName> = plan.gpus.iter().map(|(key, gpu)| (key.node.as_str(), &gpu.pool)).collect();
    let decide = |(name, node): (&String, &Arc<GpuNode>)| {
        let labels = fleet.nodes.get(name)?.labels();
        let pool = pools.get(name.as_str()).and_then(|pool| derived.pool(pool.as_str()));
        let decision = partitioner::step(&RequestObservation {
            now,
            node,
            labels,
            agent_alive: fleet.answers(name),
            published: &fleet.mig_configs,
            patience: RequestTimeouts::of(pool, node.spec.mig_manager.as_ref()),
        });
        Some((name.as_str().into(), decision))
    };
    nodes.filter_map(decide).collect()
}

/// Those for which labels are to be written.
pub fn with_labels(requests: &Requests) -> Requests {
    let written = requests.iter().filter(|(_, r)| r.label.is_some() || !r.unpause.is_empty());
    written.map(|(node, request)| (node.clone(), request.clone())).collect()
}

/// The layouts that have to be published, if they differ from those that are.
pub fn configs(fleet: &Fleet, requests: &Requests) -> Option<MigConfigs> {
    if whole(fleet).next().is_none() && fleet.mig_configs == MigConfigs::default() {
        return None;
    }
    let mut wanted = MigConfigs::default();
    whole(fleet).flat_map(|(_, node)| partitioner::configs(node)).for_each(|config| wanted.add(&config));
    // a MIG manager that starts again reads the label again
    let labels = fleet.nodes.values().filter_map(|n| n.labels().get(names::MIG_CONFIG_LABEL).cloned());
    let runs = requests.values().filter_map(|d| d.run.as_ref()).map(|r| r.config.clone());
    for name in labels.chain(runs).filter(|name| is_ours(name)) {
        wanted.keep(&fleet.mig_configs, base(&name));
    }
    (wanted != fleet.mig_configs).then_some(wanted)
}

/// The layouts that the plan wants on nodes that are partitioned as a whole, with the placements that would stay as they are.
pub fn targets(fleet: &Fleet, plan: &Plan) -> BTreeMap<GpuKey, Layout> {
    if whole(fleet).next().is_none() {
        return BTreeMap::new();
    }
    let target = |(key, gpu): (&GpuKey, &gputenancy_plan::GpuPlan)| {
        let node = fleet.gpu_nodes.get(key.node.as_str()).filter(|n| is_whole(n))?;
        let target = plain(gpu.target.as_deref()?.clone());
        let same = state_of(node, key.uuid.as_str()).filter(|s| target.mig && Shape::of(&target) == Shape::seen(s));
        Some((key.clone(), same.map_or_else(|| target.clone(), |s| placed(&target, s))))
    };
    plan.gpus.iter().filter_map(target).collect()
}

/// Is the node of this GPU partitioned as a whole, and has the GPU what the plan wants in some placement?
pub fn keeps(fleet: &Fleet, key: &GpuKey, target: Option<&Layout>) -> bool {
    let node = fleet.gpu_nodes.get(key.node.as_str()).filter(|n| is_whole(n));
    let state = node.and_then(|n| state_of(n, key.uuid.as_str()));
    state.is_some_and(|s| target.is_none_or(|t| Shape::of(t) == Shape::seen(s)))
}

/// GPUs that have to be partitioned again though their layout stays, with the reason.
pub fn repartitions(fleet: &Fleet) -> BTreeMap<GpuKey, String> {
    let mut again = BTreeMap::new();
    for (name, node) in whole(fleet).filter(|(name, _)| fleet.answers(name)) {
        let key = |uuid: &str| GpuKey { node: name.as_str().into(), uuid: uuid.into() };
        // what has not begun may not begin for long
        let wanted = |state: &GpuState| match spec_of(node, &state.uuid).and_then(|s| s.change.as_ref()) {
            Some(c) if c.phase <= ChangePhase::Partitioning => Shape::of(&c.to),
            Some(c) if c.phase == ChangePhase::RollingBack => Shape::of(&c.from),
            _ => Shape::seen(state),
        };
        let swept = sweeps(node, wanted);
        for state in node.status.iter().flat_map(|s| &s.gpus) {
            // a GPU that is not listed was never allocated
            let Some(spec) = spec_of(node, &state.uuid) else { continue };
            let shown = Shape::seen(state);
            if swept.contains(&state.uuid) && wanted(state) == shown {
                again.insert(key(&state.uuid), REPARTITIONED_WITH_NODE.to_owned());
            } else if has_drifted(spec, state) {
                let agreed = Shape::of(&spec.layout()).words();
                again.insert(key(&state.uuid), format!("NVML shows {} and not {agreed}", shown.words()));
            }
        }
    }
    again
}

/// NVML shows another layout than the spec, as after a reboot, and nothing uses what is there.
fn has_drifted(spec: &GpuSpec, state: &GpuState) -> bool {
    let mut devices = state.devices();
    let idle = state.holders.is_empty() && devices.all(|d| d.owner.is_none() && d.clients == 0);
    let rests = spec.change.as_ref().is_none_or(|c| c.phase == ChangePhase::RolledBack);
    rests && idle && Shape::of(&spec.layout()) != Shape::seen(state)
}

/// Would a GPU of the node be partitioned now while another one that must be partitioned with it is not idle yet?
pub fn partitions_too_early(
    node: &GpuNode,
    decisions: &BTreeMap<&str, &change::ChangeDecision>,
    again: &BTreeSet<&str>,
) -> bool {
    let before = |uuid: &str| spec_of(node, uuid).and_then(|s| s.change.as_ref()).map(|c| c.phase);
    let after = |uuid: &str| match decisions.get(uuid).and_then(|d| d.spec.as_ref()) {
        Some(spec) => spec.change.as_ref().map(|c| c.phase),
        None => before(uuid),
    };
    let uuids: Vec<&str> = node.status.iter().flat_map(|s| &s.gpus).map(|g| g.uuid.as_str()).collect();
    let carves = |p: Option<ChangePhase>| p == Some(ChangePhase::Partitioning);
    let starts = uuids.iter().any(|u| carves(after(u)) && !carves(before(u)));
    let waits = uuids.iter().any(|u| {
        let phase = after(u);
        phase.is_some_and(|p| p <= ChangePhase::Idle) || (again.contains(u) && !carves(phase))
    });
    starts && waits
}

fn state_of<'a>(node: &'a GpuNode, uuid: &str) -> Option<&'a GpuState> {
    node.status.iter().flat_map(|s| &s.gpus).find(|g| g.uuid == uuid)
}

fn spec_of<'a>(node: &'a GpuNode, uuid: &str) -> Option<&'a GpuSpec> {
    node.spec.gpus.iter().find(|g| g.uuid == uuid)
}
