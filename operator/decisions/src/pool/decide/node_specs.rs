//! The new `GpuNode` spec of every node, with the decisions that it carries out.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    Advertiser, AgentStep, AllocationPolicy, Change, ChangePhase, GpuNode, GpuNodeSpec, GpuSpec, GpuState, Partitioner,
    ShareMinimum,
    ids::{GpuKey, NodeName},
    names,
    projection::SlimNode,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt as _;

use super::scheduled::Scheduled;
use crate::{
    adoption,
    change::{CanaryRequest, ChangeDecision, Eviction, EvictionNotice},
    event::EventMessage,
    fleet::Fleet,
    partitioner::{self, RequestDecision},
    plugin::{self, PluginDecision, PluginObservation},
    pool::{
        derive::{
            marks::Marks,
            ownership::{Assigned, Ownership},
        },
        read::inventory::Inventory,
    },
    verdict::{self, ClearedFaults, cleared_faults},
};

/// What is done about the GPUs of one node.
#[derive(Clone, Debug, Default)]
pub struct GpuWork {
    /// The new spec, if it differs.
    pub spec: Option<GpuNodeSpec>,
    /// Events about it and its GPUs.
    pub events: Vec<EventMessage>,
    /// Pods to evict.
    pub evictions: Vec<Eviction>,
    /// Pods to notify, after the evictions.
    pub notices: Vec<EvictionNotice>,
    /// Canary pods to create unless they exist.
    pub canaries: Vec<CanaryRequest>,
    /// What concerns the node as a whole where NVIDIA's plugin advertises.
    pub plugin: PluginDecision,
}

impl GpuWork {
    fn is_needed(&self) -> bool {
        let Self { spec, events, evictions, notices, canaries, plugin } = self;
        let pods = !(evictions.is_empty() && notices.is_empty() && canaries.is_empty());
        spec.is_some() || !events.is_empty() || pods || plugin.cordon.is_some() || plugin.restart.is_some()
    }
}

/// Of the visited nodes: decided GPUs as decided, others as they are; GPUs that no pool has any more are released once nothing uses them.
/// `bypass`: pods that bypass the memory limit of their share.
pub fn work(
    scheduled: &Scheduled<'_>,
    decisions: &BTreeMap<GpuKey, ChangeDecision>,
    bypass: &BTreeMap<NodeName, BTreeSet<Eviction>>,
) -> BTreeMap<NodeName, GpuWork> {
    let (inventory, ownership, marks) = (&scheduled.inventory(), scheduled.ownership, scheduled.marks);
    // the specs as the API server has them
    let (cached, visited) = (scheduled.cached(), &scheduled.visited);
    let mut by_node: BTreeMap<&str, Vec<(&str, &ChangeDecision)>> = BTreeMap::new();
    for (key, decision) in decisions {
        by_node.entry(key.node.as_str()).or_default().push((key.uuid.as_str(), decision));
    }
    let fleet = inventory.fleet;
    let mut work = BTreeMap::new();
    let readable = |(name, node): &(&String, &Arc<GpuNode>)| {
        !inventory.lagging.contains(*name) && !node.spec.is_of_newer_release()
    };
    let gpu_nodes = visited.iter().filter_map(|name| fleet.gpu_nodes.get_key_value(name));
    for (name, node) in gpu_nodes.filter(readable) {
        let (here, request) =
            (by_node.remove(name.as_str()).unwrap_or_default(), scheduled.requests.get(name.as_str()));
        let written = cached.gpu_nodes.get(name);
        let kubernetes_node = fleet.nodes.get(name).map(AsRef::as_ref);
        let cleared = kubernetes_node.map(|n| cleared_faults(n, inventory.now)).unwrap_or_default();
        let same = request.is_none()
            && written.is_some_and(|n| Arc::ptr_eq(n, node))
            && keeps_marks(marks, &cleared, (name, node))
            && keeps_spec(ownership, (name, &node.spec), ownership.is_pooled(name), &here);
        let spec = (!same).then(|| spec(inventory, ownership, (name, node), &here, request));
        let spec = spec.map(|spec| with_marks(marks, &cleared, (name, node), spec));
        let spec = spec.filter(|spec| written.map(|n| &n.spec) != Some(spec));
        let adopted = written.filter(|n| spec.is_some() && fleet.answers(name) && !Arc::ptr_eq(n, node));
        let requested = request.into_iter().flat_map(|r| r.events.iter().cloned());
        let decisions = || here.iter().map(|(_, decision)| *decision);
        let events = decisions().flat_map(|d| d.events.iter().cloned()).chain(requested);
        let evictions = decisions().flat_map(|d| &d.evictions).chain(bypass.get(name.as_str()).into_iter().flatten());
        let pooled = ownership.is_pooled(name) || partitioner::awaits_answer(node);
        let kubernetes_node = kubernetes_node.filter(|_| !ownership.is_conflicting(name));
        let plugin = kubernetes_node.map(|n| plugin::step(&observation(inventory.now, (n, node), pooled)));
        let plugin = plugin.unwrap_or_default();
        let done = GpuWork {
            events: events.chain(adopted.into_iter().flat_map(|node| adoption::events(node))).collect(),
            evictions: evictions.cloned().collect(),
            notices: decisions().flat_map(|d| d.notices.iter().cloned()).collect(),
            canaries: decisions().flat_map(|d| d.canaries.iter().cloned()).collect(),
            spec,
            plugin,
        };
        if done.is_needed() {
            work.insert(name.as_str().into(), done);
        }
    }
    work.extend(visited.iter().filter_map(|name| Some((name.as_str().into(), left_over(inventory, ownership, name)?))));
    work
}

/// What ends the cordon of a node whose `GpuNode` was deleted: no change is left that it serves.
fn left_over(inventory: &Inventory<'_>, ownership: &Ownership, name: &str) -> Option<GpuWork> {
    let fleet = inventory.fleet;
    let node =
        fleet.nodes.get(name).filter(|_| !fleet.gpu_nodes.contains_key(name) && !ownership.is_conflicting(name))?;
    let absent = GpuNode::new(name, GpuNodeSpec::default());
    let plugin = plugin::step(&observation(inventory.now, (node, &absent), ownership.is_pooled(name)));
    plugin.cordon.is_some().then(|| GpuWork { plugin, ..GpuWork::default() })
}

/// Whether [`spec`] returns the present spec: most nodes are at rest, and a spec of eight GPUs is long.
fn keeps_spec(
    ownership: &Ownership,
    (name, spec): (&str, &GpuNodeSpec),
    pooled: bool,
    decisions: &[(&str, &ChangeDecision)],
) -> bool {
    let keeps_gpus = pooled && decisions.iter().all(|(_, d)| d.spec.is_none());
    keeps_gpus && spec.mig_manager.is_none() && ownership.has_assigned(name)
}

/// Whether the spec says of each GPU what others say.
fn keeps_marks(marks: &Marks, cleared: &ClearedFaults<'_>, (name, gpu_node): (&str, &GpuNode)) -> bool {
    let withdrawn = marks.withdrawn(name);
    gpu_node.spec.gpus.iter().all(|gpu| {
        let state = states(gpu_node).find(|state| state.uuid == gpu.uuid);
        gpu.withdrawn.as_deref() == withdrawn.get(gpu.uuid.as_str()).map(AsRef::as_ref)
            && gpu.fault_verdict == cleared.verdict(gpu, state)
    })
}

/// The spec with what others say of each GPU.
fn with_marks(
    marks: &Marks,
    cleared: &ClearedFaults<'_>,
    (name, gpu_node): (&str, &GpuNode),
    mut spec: GpuNodeSpec,
) -> GpuNodeSpec {
    let mut withdrawn = marks.withdrawn(name);
    for gpu in &mut spec.gpus {
        let state = states(gpu_node).find(|state| state.uuid == gpu.uuid);
        gpu.withdrawn = withdrawn.remove(gpu.uuid.as_str()).map(Cow::into_owned);
        gpu.fault_verdict = cleared.verdict(gpu, state);
    }
    spec
}

fn spec(
    inventory: &Inventory<'_>,
    ownership: &Ownership,
    (name, node): (&str, &GpuNode),
    decisions: &[(&str, &ChangeDecision)],
    request: Option<&RequestDecision>,
) -> GpuNodeSpec {
    let (fleet, pooled) = (inventory.fleet, ownership.is_pooled(name));
    let mut gpus: BTreeMap<&str, GpuSpec> = node.spec.gpus.iter().map(|g| (g.uuid.as_str(), g.clone())).collect();
    let kubernetes_node = fleet.nodes.get(name);
    // no pool at all: an overlap of two is a mistake that takes no devices away
    if !pooled && kubernetes_node.is_some() {
        gpus.retain(|uuid, spec| !is_releasable(fleet, node, uuid, spec));
        gpus.values_mut().for_each(cancel);
    }
    for (uuid, decision) in decisions {
        if let Some(spec) = &decision.spec {
            gpus.insert(uuid, spec.clone());
        }
    }
    let mig_manager = request.map_or_else(|| node.spec.mig_manager.clone(), |r| r.run.clone());
    let mut spec = GpuNodeSpec { gpus: in_order(node, gpus), mig_manager, ..node.spec.clone() };
    let Assigned { partitioner, advertiser, allocation, enforcement } = ownership.assigned(name, &node.spec);
    (spec.partitioner, spec.advertiser) = (partitioner, advertiser);
    (spec.allocation, spec.enforcement) = (allocation, enforcement);
    let engaged = kubernetes_node.is_some_and(|n| partitioner::is_engaged(node, n.labels()));
    if spec.gpus.is_empty() && !pooled && spec.mig_manager.is_none() && !engaged {
        (spec.partitioner, spec.advertiser) = (Partitioner::default(), Advertiser::default());
        (spec.allocation, spec.enforcement) = (AllocationPolicy::default(), ShareMinimum::default());
    } else if spec.partitioner != node.spec.partitioner {
        spec.gpus.iter_mut().filter_map(|g| g.change.as_mut()).for_each(|c| restart_deadlines(c, inventory.now));
    }
    if partitioner::of(spec.partitioner).whole_node().is_none() && !ownership.is_conflicting(name) {
        spec.mig_manager = None;
    }
    spec
}

/// The node as the decisions about NVIDIA's plugin see it; `None`: there is no such node.
pub fn plugin_observation<'a>(
    inventory: &Inventory<'a>,
    gpu_node: &'a GpuNode,
    pooled: bool,
) -> Option<PluginObservation<'a>> {
    let node = inventory.fleet.nodes.get(gpu_node.metadata.name.as_deref()?)?;
    Some(observation(inventory.now, (node, gpu_node), pooled))
}

fn observation<'a>(
    now: Timestamp,
    (node, gpu_node): (&'a SlimNode, &'a GpuNode),
    pooled: bool,
) -> PluginObservation<'a> {
    let mark = node.annotations().get(names::CORDONED).map(String::as_str);
    let config = node.labels().get(names::DEVICE_PLUGIN_CONFIG_LABEL).map(String::as_str);
    let (unschedulable, shared) = (node.spec.unschedulable, verdict::others_cordon(node));
    PluginObservation { now, node: gpu_node, pooled, unschedulable, mark, shared, config }
}

/// What is done where NVIDIA's plugin advertises.
pub fn plugin_step(inventory: &Inventory<'_>, gpu_node: &GpuNode, pooled: bool) -> Option<PluginDecision> {
    plugin_observation(inventory, gpu_node, pooled).map(|seen| plugin::step(&seen))
}

/// Cancels a change that has not begun to partition: its notices are withdrawn too, so that it may not continue in a later pool.
fn cancel(gpu: &mut GpuSpec) {
    if gpu.change.as_ref().is_some_and(|c| c.phase < ChangePhase::Partitioning) {
        gpu.change = None;
        gpu.hold.clear();
    }
}

/// The deadlines of a change start again when another component partitions: it could not proceed meanwhile.
fn restart_deadlines(change: &mut Change, now: Timestamp) {
    change.phase_since = Time(now);
    change.started_at = Time(now);
    if let Some(at) = change.evict_after.as_mut().filter(|at| at.0 < now) {
        *at = Time(now);
    }
}

/// GPUs that are listed keep their place, new ones follow by index: the order of a list must not make a difference.
fn in_order(node: &GpuNode, mut gpus: BTreeMap<&str, GpuSpec>) -> Vec<GpuSpec> {
    let mut ordered: Vec<GpuSpec> = node.spec.gpus.iter().filter_map(|g| gpus.remove(g.uuid.as_str())).collect();
    ordered.extend(states(node).filter_map(|s| gpus.remove(s.uuid.as_str())));
    ordered.extend(gpus.into_values());
    ordered
}

fn states(node: &GpuNode) -> impl Iterator<Item = &GpuState> {
    node.status.iter().flat_map(|s| &s.gpus)
}

/// May a GPU that no pool has any more be released? Only if nothing uses it and it is not being partitioned.
pub fn is_releasable(fleet: &Fleet, node: &GpuNode, uuid: &str, spec: &GpuSpec) -> bool {
    let state = states(node).find(|g| g.uuid == uuid);
    let idle = state.is_none_or(|s| {
        let mut devices = s.devices();
        s.holders.is_empty() && devices.all(|d| d.owner.is_none() && d.clients == 0)
    });
    let change = spec.change.as_ref().map(|c| c.phase);
    let status = node.status.as_ref();
    let fresh = status.is_some_and(|s| s.observed_generation == node.metadata.generation);
    let rests = state.is_none_or(|s| {
        matches!(s.step, AgentStep::Steady | AgentStep::Unmanaged | AgentStep::Failed | AgentStep::LeftAlone)
    });
    let half_done = matches!(change, Some(ChangePhase::Partitioning | ChangePhase::RollingBack)) && !(fresh && rests);
    // a request is carried out with or without a pool: until then the GPU may still change
    idle && !half_done && !partitioner::awaits_answer(node) && fleet.answers(&node.name_any())
}
