//! Nodes that NVIDIA's MIG manager partitions: such a node changes as a whole.

#[cfg(test)]
mod mig_effects_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{ChangePhase, GpuNode, GpuSpec, GpuState, Layout, names};
use kube::ResourceExt as _;

use super::inventory::Inventory;
use crate::plan::{GpuKey, NodeName, Plan, PoolName, plain};
use gputenancy_engine::{
    change,
    fleet::Fleet,
    mig_effects::REPARTITIONED_WITH_NODE,
    mig_manager::{
        self, MigConfigs, MigManagerDecision, MigManagerTimeouts, Shape, base, is_managed, is_ours, placed, sweeps,
    },
};

/// Labels of a Node that are written for NVIDIA's MIG manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigManagerRequest {
    /// Value for `nvidia.com/mig.config`.
    pub config: Option<String>,
    /// Labels of the GPU Operator's parts that are set back to `true`.
    pub unpause: BTreeSet<String>,
}

/// The fleet with placements as the MIG manager chose them; `None`: as it is.
pub fn adopted(fleet: &Fleet) -> Option<Fleet> {
    let managed = fleet.gpu_nodes.iter().filter(|(_, node)| is_managed(node));
    let differing: Vec<_> =
        managed.filter_map(|(name, node)| Some((name.clone(), Arc::new(mig_manager::adopted(node)?)))).collect();
    (!differing.is_empty()).then(|| {
        let mut fleet = fleet.clone();
        fleet.gpu_nodes.extend(differing);
        fleet
    })
}

/// What to do about each MIG manager, by node.
pub fn decisions(inventory: &Inventory<'_>, plan: &Plan) -> BTreeMap<String, MigManagerDecision> {
    let Inventory { fleet, now, lagging, .. } = *inventory;
    let mut managed = fleet.gpu_nodes.iter().filter(|(name, n)| is_managed(n) && !lagging.contains(*name)).peekable();
    if managed.peek().is_none() {
        return BTreeMap::new();
    }
    let pools: BTreeMap<&str, &PoolName> = plan.gpus.iter().map(|(key, gpu)| (key.node.as_str(), &gpu.pool)).collect();
    let decide = |(name, node): (&String, &Arc<GpuNode>)| {
        let labels = fleet.nodes.get(name)?.labels();
        let pool = pools.get(name.as_str()).and_then(|pool| fleet.pools.iter().find(|p| pool.as_str() == p.name_any()));
        let mut rules = pool.and_then(|p| p.spec.mig_manager.clone()).unwrap_or_default();
        // a deleted pool takes its rules with it: the timeout of the request stays
        let kept = node.spec.mig_manager.as_ref().and_then(|run| run.timeout.clone()).filter(|_| pool.is_none());
        rules.timeout = kept.unwrap_or(rules.timeout);
        let decision = mig_manager::step(&mig_manager::MigManagerObservation {
            now,
            node,
            labels,
            agent_alive: fleet.answers(name),
            published: &fleet.mig_configs,
            patience: MigManagerTimeouts::from(&rules),
        });
        Some((name.clone(), decision))
    };
    managed.filter_map(decide).collect()
}

/// Labels to be written for the MIG managers.
pub fn requests(decisions: &BTreeMap<String, MigManagerDecision>) -> BTreeMap<NodeName, MigManagerRequest> {
    let request = |d: &MigManagerDecision| MigManagerRequest { config: d.label.clone(), unpause: d.unpause.clone() };
    let requests = decisions.iter().map(|(node, d)| (NodeName::from(node.as_str()), request(d)));
    requests.filter(|(_, request)| *request != MigManagerRequest::default()).collect()
}

/// The layouts that have to be published, if they differ from those that are.
pub fn configs(fleet: &Fleet, managers: &BTreeMap<String, MigManagerDecision>) -> Option<MigConfigs> {
    let unused = !fleet.gpu_nodes.values().any(|n| is_managed(n)) && fleet.mig_configs == MigConfigs::default();
    if unused {
        return None;
    }
    let mut wanted = MigConfigs::default();
    for node in fleet.gpu_nodes.values().filter(|n| is_managed(n)) {
        for config in mig_manager::configs(node) {
            wanted.add(&config);
        }
    }
    // a MIG manager that starts again reads the label again
    let labels = fleet.nodes.values().filter_map(|n| n.labels().get(names::MIG_CONFIG_LABEL).cloned());
    let runs = managers.values().filter_map(|d| d.run.as_ref()).map(|r| r.config.clone());
    for name in labels.chain(runs).filter(|name| is_ours(name)) {
        wanted.keep(&fleet.mig_configs, base(&name));
    }
    (wanted != fleet.mig_configs).then_some(wanted)
}

/// The layouts that the plan wants where the MIG manager partitions, with the placements that it would leave as they are.
pub fn targets(fleet: &Fleet, plan: &Plan) -> BTreeMap<GpuKey, Layout> {
    if !fleet.gpu_nodes.values().any(|n| is_managed(n)) {
        return BTreeMap::new();
    }
    let target = |(key, gpu): (&GpuKey, &crate::plan::GpuPlan)| {
        let node = fleet.gpu_nodes.get(key.node.as_str()).filter(|n| is_managed(n))?;
        let target = plain(gpu.target.as_deref()?.clone());
        let same = state_of(node, key.uuid.as_str()).filter(|s| target.mig && Shape::of(&target) == Shape::seen(s));
        Some((key.clone(), same.map_or_else(|| target.clone(), |s| placed(&target, s))))
    };
    plan.gpus.iter().filter_map(target).collect()
}

/// Does the MIG manager partition this GPU, and does it have what the plan wants in some placement?
pub fn keeps(fleet: &Fleet, key: &GpuKey, target: Option<&Layout>) -> bool {
    let node = fleet.gpu_nodes.get(key.node.as_str()).filter(|n| is_managed(n));
    let state = node.and_then(|n| state_of(n, key.uuid.as_str()));
    state.is_some_and(|s| target.is_none_or(|t| Shape::of(t) == Shape::seen(s)))
}

/// GPUs that have to be partitioned again though their layout stays, with the reason.
pub fn repartitions(fleet: &Fleet) -> BTreeMap<GpuKey, String> {
    let mut again = BTreeMap::new();
    for (name, node) in fleet.gpu_nodes.iter().filter(|(name, n)| is_managed(n) && fleet.answers(name)) {
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
