//! One pass over the fleet: from what the caches show to everything that is to be written. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    Advertiser, AgentStep, Change, ChangePhase, GpuNode, GpuNodeSpec, GpuPool, GpuPoolSpec, GpuPoolStatus,
    GpuProfileStatus, GpuSpec, Guarantee, Layout, Partitioner, Trust, names,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt as _;

use super::{
    canary::{self, Stray},
    devices,
    hands::Hands,
    labels,
    managed::{self, Ask},
    profile_status, status,
    taint::{self, Retaint, Tolerated},
    view,
};
use crate::{
    fleet_view::FleetView,
    plan::{self, GpuKey, NodeName, Plan, Planner, PodName, PoolName, TenantFacts},
};
use gputenancy_engine::{
    change::{
        self, ChangeCandidate, ChangeDecision, ChangeObservation, MigManagerContext, Policy, Window, WindowError,
        Windows,
    },
    fingerprint::fingerprint,
    fleet::{Fleet, Refusals, tenant_facts},
    mig_effects::mig_manager_effects,
    mig_manager::{self, MigConfigs},
    plugin,
};

/// Everything that a pass has decided.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Specs that differ from what the cluster has, by node, with the decisions that they carry out.
    pub nodes: BTreeMap<NodeName, NodeWork>,
    /// Pods that carry a notice of a change that is none of theirs any more.
    pub spared: BTreeMap<PodName, String>,
    /// Canary pods without a purpose.
    pub strays: BTreeMap<PodName, Stray>,
    /// Our labels on nodes that lack them or have others.
    pub labels: BTreeMap<NodeName, BTreeMap<String, String>>,
    /// Taints of nodes that lack their pool's, or have one of ours that nobody wants.
    pub taints: BTreeMap<NodeName, Retaint>,
    /// Labels for NVIDIA's MIG manager, and those that it left paused.
    pub asks: BTreeMap<NodeName, Ask>,
    /// Layouts to be published for NVIDIA's MIG manager, when they differ from those that are.
    pub mig_configs: Option<MigConfigs>,
    /// What tenants need to know.
    pub view: FleetView,
    /// Status of pools that differs.
    pub pools: BTreeMap<String, GpuPoolStatus>,
    /// Status of profiles that differs.
    pub profiles: BTreeMap<String, GpuProfileStatus>,
    /// Pools that are deleted and hold nothing any more.
    pub finished: BTreeSet<String>,
    /// Phases of all changes, for metrics.
    pub phases: Vec<ChangePhase>,
    /// Who else owns GPUs of pools' nodes, once for each node, for metrics.
    pub foreign: Vec<&'static str>,
    /// Look again at this time even if nothing changed.
    pub wake: Option<Timestamp>,
}

/// What is to be done about one node.
#[derive(Clone, Debug, Default)]
pub struct NodeWork {
    /// The new spec, when it differs.
    pub spec: Option<GpuNodeSpec>,
    /// Decisions about its GPUs.
    pub decisions: Vec<ChangeDecision>,
    /// What concerns the node as a whole where NVIDIA's plugin advertises.
    pub plugin: plugin::PluginDecision,
}

/// What a pass is made from, beside the fleet.
pub struct Inputs<'a> {
    /// The time.
    pub now: Timestamp,
    /// Evictions that were refused.
    pub refusals: &'a Refusals,
    /// Our own namespace: canary pods live there.
    pub namespace: &'a str,
    /// Key of the taint that pods of tenants tolerate.
    pub tolerated: &'a Tolerated,
    /// Marks of taints as last seen, by node.
    pub marks: &'a BTreeMap<String, String>,
    /// Nodes whose agreement the cache has not caught up with: left alone.
    pub lagging: &'a BTreeSet<String>,
}

/// Decides. `planner` keeps the last plan: an unchanged fleet is not planned again.
pub fn pass(fleet: &Fleet, planner: &mut Planner, inputs: &Inputs<'_>) -> Pass {
    let known = fleet;
    let current = managed::current(fleet);
    let fleet = current.as_ref().unwrap_or(fleet);
    let cluster = fleet.cluster_at(inputs.now);
    let windows = windows(fleet, inputs.now);
    let mut problems = planner.read(&cluster);
    let (snapshot, plan) = planner.planned();
    problems.extend(plan.problems.iter().cloned());
    problems.sort();
    problems.dedup();
    let members = plan::membership(&cluster.pools, cluster.nodes.iter().map(|n| (n.name, n.labels)));

    let foreign = cluster.nodes.iter().filter_map(|n| Some((NodeName::from(n.name), n.foreign.as_ref()?.by)));
    let hands = Hands::of(fleet, &members, foreign.collect());

    let devices = devices::all(fleet);
    let mut managers = managed::decisions(fleet, plan, inputs);
    managers.retain(|node, _| !hands.is_foreign(&NodeName::from(node.as_str())));
    let reached = mig_manager_effects(fleet, snapshot, plan);
    let mut decisions = decisions(fleet, (plan, &reached), &windows, (&managers, &hands), inputs);
    name_places(&mut decisions, &devices);
    let nodes = nodes((fleet, known), &decisions, &managers, &members, &hands, inputs);
    let seen = status::Seen {
        fleet,
        plan,
        problems: &problems,
        members: &members,
        decisions: &decisions,
        devices: &devices,
        windows: &windows,
        tolerated: inputs.tolerated,
        now: inputs.now,
    };
    let pools = fleet.pools.iter().map(|p| (p, status::pool(&seen, p)));
    let profiles = fleet.profiles.iter().map(|p| (p, profile_status::status(&seen, p)));
    Pass {
        strays: canary::strays(fleet, &decisions, inputs),
        spared: spared(fleet, &decisions, &hands, inputs),
        labels: labels::labels(fleet, &members, &hands),
        taints: taint::taints(fleet, &members, &hands, inputs),
        asks: asks(&managers),
        mig_configs: managed::configs(fleet, &managers),
        view: view::view(&seen, snapshot),
        pools: pools.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect(),
        profiles: profiles.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect(),
        finished: status::finished(&seen),
        phases: fleet
            .gpu_nodes
            .values()
            .flat_map(|n| &n.spec.gpus)
            .filter_map(|g| Some(g.change.as_ref()?.phase))
            .collect(),
        foreign: hands.foreign.values().copied().collect(),
        wake: decisions
            .values()
            .filter_map(|d| d.requeue_at)
            .chain(managers.values().filter_map(|d| d.requeue_at))
            .chain(status::patience_ends(&seen))
            .chain(fleet.next_grace_period_end(inputs.now))
            .chain(fleet.gpu_nodes.values().filter_map(|n| plugin_steps(fleet, n, true, inputs.now)?.wake))
            .chain(windows.values().filter_map(|w| w.as_ref().ok()?.turns()))
            .min(),
        nodes,
    }
}

/// Whether changes may begin now, for each pool; a pool whose windows cannot be read begins none.
fn windows(fleet: &Fleet, now: Timestamp) -> BTreeMap<String, Result<Window, WindowError>> {
    let of = |pool: &GpuPool| Windows::read(&pool.spec.disruption.windows, now).map(|w| w.at(now));
    fleet.pools.iter().map(|pool| (pool.name_any(), of(pool))).collect()
}

fn asks(managers: &BTreeMap<String, mig_manager::MigManagerDecision>) -> BTreeMap<NodeName, Ask> {
    let ask = |d: &mig_manager::MigManagerDecision| Ask { config: d.label.clone(), unpause: d.unpause.clone() };
    let asks = managers.iter().map(|(node, d)| (NodeName::from(node.as_str()), ask(d)));
    asks.filter(|(_, ask)| *ask != Ask::default()).collect()
}

/// Steps the change machine of every GPU that a pool has.
fn decisions(
    fleet: &Fleet,
    (plan, reached): (&Plan, &BTreeMap<GpuKey, plan::GpuPlan>),
    windows: &BTreeMap<String, Result<Window, WindowError>>,
    (managers, hands): (&BTreeMap<String, mig_manager::MigManagerDecision>, &Hands),
    inputs: &Inputs<'_>,
) -> BTreeMap<GpuKey, ChangeDecision> {
    let intent = intent(fleet);
    let canaries = canary::pods(fleet, inputs.namespace);
    let targets = managed::targets(fleet, plan);
    let mut anew = managed::anew(fleet);
    for (key, why) in &mut anew {
        // the plan's words name everybody who has to move for it
        if let Some(told) = reached.get(key).filter(|gpu| gpu.why != plan::Why::Kept) {
            *why = reason(plan, (key, told), None);
        }
    }
    let admitted = admitted(fleet, (plan, reached), hands, &targets, &anew);
    let decide = |key: &GpuKey, gpu: &plan::GpuPlan, together: bool| {
        let name = key.node.as_str();
        let node = fleet.gpu_nodes.get(name).filter(|_| !inputs.lagging.contains(name))?;
        // what a pass decides is told to an agent that knows already whether it carves
        if hands.is_foreign(&key.node) || !hands.are_told(&key.node, &node.spec) {
            return None;
        }
        let pool = fleet.pools.iter().find(|p| p.name_any() == gpu.pool.as_str())?;
        let deadline = spec_of(fleet, key).and_then(|s| s.change.as_ref()?.evict_after.as_ref()).map(|t| t.0);
        let (pods, allocatable) = (fleet.pods_on(name, deadline, inputs.refusals), fleet.allocatable(name));
        let window = match windows.get(gpu.pool.as_str()) {
            Some(Ok(window)) => *window,
            _ => Window::Closed { next: None },
        };
        let managed = managers.get(name);
        let managed = managed.map(|m| MigManagerContext {
            state: &m.state,
            others_idle: together,
            recreate: anew.get(key).map(String::as_str),
        });
        Some(change::step(&ChangeObservation {
            now: inputs.now,
            uuid: key.uuid.as_str(),
            node,
            allocatable: &allocatable,
            cordoned: plugin_view(fleet, node, true, inputs.now).and_then(|seen| plugin::closed(&seen)),
            target: targets.get(key).or(gpu.target.as_deref()),
            reason: &reason(plan, (key, reached.get(key).unwrap_or(gpu)), spec_of(fleet, key)),
            intent: &intent,
            canaries: &canaries,
            pods: &pods,
            policy: &Policy { window, canary: pool.spec.verify.canary.clone(), ..Policy::from(&pool.spec.disruption) },
            agent_alive: fleet.answers(name),
            mig_manager: managed,
            may_start: admitted.contains(key),
        }))
    };
    let all = |gpus: &mut dyn Iterator<Item = (&GpuKey, &plan::GpuPlan)>,
               together: bool|
     -> BTreeMap<GpuKey, ChangeDecision> {
        gpus.filter_map(|(key, gpu)| Some((key.clone(), decide(key, gpu, together)?))).collect()
    };
    let mut decisions = all(&mut plan.gpus.iter(), true);
    for name in managers.keys() {
        let here: BTreeMap<&str, &ChangeDecision> =
            decisions.iter().filter(|(k, _)| k.node.as_str() == name).map(|(k, d)| (k.uuid.as_str(), d)).collect();
        let swept = anew.keys().filter(|k| k.node.as_str() == name).map(|k| k.uuid.as_str()).collect();
        if fleet.gpu_nodes.get(name).is_some_and(|node| managed::hasty(node, &here, &swept)) {
            decisions.extend(all(&mut plan.gpus.iter().filter(|(k, _)| k.node.as_str() == name), false));
        }
    }
    decisions
}

/// What people have written, as far as a plan follows from it: while this is the same, plans differ only because of what runs.
pub(super) fn intent(fleet: &Fleet) -> String {
    let profiles = fleet.profiles.iter().map(|p| (p.name_any(), &p.spec));
    let pools = fleet.pools.iter().map(|p| {
        let GpuPoolSpec {
            node_selector,
            profiles,
            layout,
            partitioner,
            mig_manager: _,
            advertiser,
            disruption,
            taint: _,
            verify: _,
        } = &p.spec;
        (p.name_any(), (node_selector, profiles, layout, partitioner, advertiser, disruption.allow_outage))
    });
    let tenants = fleet.tenants.iter().map(|t| (t.name_any(), demanded(tenant_facts(t))));
    fingerprint(&(by_name(profiles), by_name(pools), by_name(tenants)))
}

/// What a tenant asks for.
fn demanded(tenant: TenantFacts<'_>) -> (Vec<String>, Trust, i32, Vec<Guarantee>) {
    let TenantFacts { name: _, namespaces, trust, priority, gpus } = tenant;
    let namespaces: Vec<String> = namespaces.iter().map(|n| n.name.clone()).collect();
    (namespaces, trust, priority, gpus.to_vec())
}

fn by_name<T>(written: impl Iterator<Item = (String, T)>) -> Vec<(String, T)> {
    let mut written: Vec<_> = written.collect();
    written.sort_by(|a, b| a.0.cmp(&b.0));
    written
}

/// Notices say where the same is free; devices that are about to go are not.
fn name_places(decisions: &mut BTreeMap<GpuKey, ChangeDecision>, devices: &[devices::Device]) {
    for decision in decisions.values_mut() {
        decision.notices = std::mem::take(&mut decision.notices)
            .into_iter()
            .map(|mut notice| {
                notice.elsewhere = notice.resource.as_deref().map_or_else(String::new, |r| places(devices, r));
                notice
            })
            .collect();
    }
}

fn places(devices: &[devices::Device], resource: &str) -> String {
    let mut free: BTreeMap<&str, usize> = BTreeMap::new();
    for device in devices.iter().filter(|d| d.resource == resource && d.usage == devices::Use::Free) {
        *free.entry(&device.node).or_default() += 1;
    }
    let places: Vec<String> = free.iter().take(5).map(|(node, n)| format!("{node} ({n})")).collect();
    if places.is_empty() {
        return format!("no {resource} is free now");
    }
    format!("{resource} is free on {}{}", places.join(", "), if free.len() > 5 { " and others" } else { "" })
}

/// Pods that carry a notice though no change on their node needs them away, with their uid. Nothing is said about nodes that
/// cannot be judged now.
fn spared(
    fleet: &Fleet,
    decisions: &BTreeMap<GpuKey, ChangeDecision>,
    hands: &Hands,
    inputs: &Inputs<'_>,
) -> BTreeMap<PodName, String> {
    let told: BTreeSet<&PodName> = decisions.values().flat_map(|d| &d.notified).collect();
    let mut spared = BTreeMap::new();
    for (name, pod) in &fleet.pods {
        let noticed = pod.annotations().contains_key(names::EVICTION_NOTICE);
        let node = pod.spec.node_name.as_deref().unwrap_or_default();
        let ours = !hands.is_foreign(&NodeName::from(node));
        let judged = ours && fleet.answers(node) && !inputs.lagging.contains(node);
        let stays = pod.metadata.deletion_timestamp.is_none() && !pod.is_over();
        if noticed && judged && stays && !told.contains(name) {
            spared.insert(name.clone(), pod.uid().unwrap_or_default());
        }
    }
    spared
}

/// The plan's sentence without the GPU's name, which whoever tells it puts in front. A change under way keeps the reason
/// that it began with: to the plan it is settled.
fn reason(plan: &Plan, (key, gpu): (&GpuKey, &plan::GpuPlan), spec: Option<&GpuSpec>) -> String {
    let Some(reason) = plan.reason_of(key, gpu) else {
        return spec.and_then(|s| s.change.as_ref()).map(|c| c.reason.clone()).unwrap_or_default();
    };
    let title = format!("{} GPU {}: ", key.node, gpu.index);
    reason.strip_prefix(&title).unwrap_or(&reason).to_owned()
}

fn spec_of<'a>(fleet: &'a Fleet, key: &GpuKey) -> Option<&'a GpuSpec> {
    fleet.gpu_nodes.get(key.node.as_str())?.spec.gpus.iter().find(|g| g.uuid == key.uuid.as_str())
}

/// GPUs that may begin a change now, by each pool's limit.
fn admitted(
    fleet: &Fleet,
    (plan, reached): (&Plan, &BTreeMap<GpuKey, plan::GpuPlan>),
    hands: &Hands,
    targets: &BTreeMap<GpuKey, Layout>,
    anew: &BTreeMap<GpuKey, String>,
) -> BTreeSet<GpuKey> {
    let mut by_pool: BTreeMap<&PoolName, Vec<ChangeCandidate<GpuKey>>> = BTreeMap::new();
    // a change that stands still where somebody else carves keeps nobody waiting
    for (key, gpu) in plan.gpus.iter().filter(|(key, _)| !hands.is_foreign(&key.node)) {
        let spec = spec_of(fleet, key);
        let phase = spec.and_then(|s| s.change.as_ref()).map(|c| c.phase);
        let changing = phase.is_some_and(|p| p < ChangePhase::RolledBack);
        // a GPU that is not listed yet has nothing to lose, and waits for nobody unless it must be carved
        let present = spec.map(|s| plan::plain(s.layout()));
        let target = targets.get(key).or(gpu.target.as_deref());
        // where the MIG manager places, another placement alone is no change
        let kept = managed::keeps(fleet, key, target);
        let wanted =
            gpu.changed && !kept || anew.contains_key(key) || target.is_some_and(|t| differs(present.as_ref(), t));
        let rank = reached.get(key).unwrap_or(gpu).rank;
        by_pool.entry(&gpu.pool).or_default().push(ChangeCandidate { gpu: key.clone(), changing, wanted, rank });
    }
    let limit = |pool: &PoolName| {
        let found = fleet.pools.iter().find(|p| p.name_any() == pool.as_str());
        found.map(|p| p.spec.disruption.max_unavailable.clone())
    };
    let managed = |turns: &[ChangeCandidate<GpuKey>]| {
        let mut nodes = turns.iter().filter_map(|t| fleet.gpu_nodes.get(t.gpu.node.as_str()));
        nodes.any(mig_manager::is_managed)
    };
    let admit = |(pool, turns): (&PoolName, Vec<ChangeCandidate<GpuKey>>)| {
        Some(if managed(&turns) { change::admit_node(&turns, anew) } else { change::admit(&turns, &limit(pool)?) })
    };
    by_pool.into_iter().filter_map(admit).flatten().collect()
}

fn differs(present: Option<&Layout>, target: &Layout) -> bool {
    present.is_some_and(|p| p != target)
}

/// The new spec of every node: decided GPUs as decided, others as they are, and GPUs that no pool has any more leave once
/// nothing uses them.
fn nodes(
    (fleet, known): (&Fleet, &Fleet),
    decisions: &BTreeMap<GpuKey, ChangeDecision>,
    managers: &BTreeMap<String, mig_manager::MigManagerDecision>,
    members: &BTreeMap<NodeName, Vec<PoolName>>,
    hands: &Hands,
    inputs: &Inputs<'_>,
) -> BTreeMap<NodeName, NodeWork> {
    let mut by_node: BTreeMap<&NodeName, Vec<(&str, &ChangeDecision)>> = BTreeMap::new();
    for (key, decision) in decisions {
        by_node.entry(&key.node).or_default().push((key.uuid.as_str(), decision));
    }
    let mut work = BTreeMap::new();
    for (name, node) in &fleet.gpu_nodes {
        if inputs.lagging.contains(name) {
            continue;
        }
        let key = NodeName::from(name.as_str());
        let here = by_node.remove(&key).unwrap_or_default();
        let mut gpus: BTreeMap<&str, GpuSpec> = node.spec.gpus.iter().map(|g| (g.uuid.as_str(), g.clone())).collect();
        // no pool at all: an overlap of two is a mistake that costs nobody a device
        if !members.contains_key(&key) && fleet.nodes.contains_key(name) {
            gpus.retain(|uuid, spec| !may_leave(fleet, node, uuid, spec));
        }
        for (uuid, decision) in &here {
            if let Some(spec) = &decision.spec {
                gpus.insert(uuid, spec.clone());
            }
        }
        let manager = managers.get(name);
        let mig_manager = manager.map_or_else(|| node.spec.mig_manager.clone(), |m| m.run.clone());
        let mut spec = GpuNodeSpec { gpus: in_order(node, gpus), mig_manager, ..node.spec.clone() };
        (spec.partitioner, spec.advertiser) = hands.of_node(&key);
        let engaged = fleet.nodes.get(name).is_some_and(|n| mig_manager::is_engaged(node, n.labels()));
        if spec.gpus.is_empty() && !members.contains_key(&key) && spec.mig_manager.is_none() && !engaged {
            // no business of ours
            (spec.partitioner, spec.advertiser) = (Partitioner::default(), Advertiser::default());
        } else if spec.partitioner != node.spec.partitioner {
            spec.gpus.iter_mut().filter_map(|g| g.change.as_mut()).for_each(|c| begin_anew(c, inputs.now));
        }
        if spec.partitioner != Partitioner::MigManager && !hands.is_foreign(&key) {
            spec.mig_manager = None;
        }
        let spec = (known.gpu_nodes.get(name).map(|n| &n.spec) != Some(&spec)).then_some(spec);
        let told = manager.map(|m| ChangeDecision { events: m.events.clone(), ..ChangeDecision::default() });
        let decisions: Vec<ChangeDecision> =
            here.into_iter().map(|(_, d)| d.clone()).chain(told).filter(has_work).collect();
        let ours = !hands.is_foreign(&key);
        let pooled = members.contains_key(&key) || mig_manager::awaits_answer(node);
        let plugin = ours.then(|| plugin_steps(fleet, node, pooled, inputs.now));
        let plugin = plugin.flatten().unwrap_or_default();
        if spec.is_some() || !decisions.is_empty() || plugin.cordon.is_some() || plugin.restart.is_some() {
            work.insert(key, NodeWork { spec, decisions, plugin });
        }
    }
    work
}

/// The node as [`plugin`] looks at it; `None`: there is no such node.
fn plugin_view<'a>(
    fleet: &'a Fleet,
    agreement: &'a GpuNode,
    pooled: bool,
    now: Timestamp,
) -> Option<plugin::PluginObservation<'a>> {
    let node = fleet.nodes.get(agreement.metadata.name.as_deref()?)?;
    let mark = node.annotations().get(names::CORDONED).map(String::as_str);
    Some(plugin::PluginObservation { now, node: agreement, pooled, unschedulable: node.spec.unschedulable, mark })
}

fn plugin_steps(fleet: &Fleet, agreement: &GpuNode, pooled: bool, now: Timestamp) -> Option<plugin::PluginDecision> {
    plugin_view(fleet, agreement, pooled, now).map(|seen| plugin::step(&seen))
}

/// A change that goes on in other hands has its time again: what passed while nobody was allowed to act is not its fault.
fn begin_anew(change: &mut Change, now: Timestamp) {
    change.phase_since = Time(now);
    change.started_at = Time(now);
    if let Some(at) = change.evict_after.as_mut().filter(|at| at.0 < now) {
        *at = Time(now);
    }
}

fn has_work(decision: &ChangeDecision) -> bool {
    !decision.events.is_empty()
        || !decision.canaries.is_empty()
        || !decision.evictions.is_empty()
        || !decision.notices.is_empty()
}

/// GPUs that are listed keep their place, new ones follow by index: the order of a list must not make a difference.
fn in_order(node: &gputenancy_crds::GpuNode, mut gpus: BTreeMap<&str, GpuSpec>) -> Vec<GpuSpec> {
    let mut ordered: Vec<GpuSpec> = node.spec.gpus.iter().filter_map(|g| gpus.remove(g.uuid.as_str())).collect();
    let states = node.status.iter().flat_map(|s| &s.gpus);
    ordered.extend(states.filter_map(|s| gpus.remove(s.uuid.as_str())));
    ordered.extend(gpus.into_values());
    ordered
}

/// May a GPU that no pool has any more be given up? Only with nothing on it and no carving half done.
pub(super) fn may_leave(fleet: &Fleet, node: &gputenancy_crds::GpuNode, uuid: &str, spec: &GpuSpec) -> bool {
    let state = node.status.iter().flat_map(|s| &s.gpus).find(|g| g.uuid == uuid);
    let idle = state.is_none_or(|s| {
        let mut devices = s.instances.iter().map(|i| &i.device).chain(&s.whole);
        s.holders.is_empty() && devices.all(|d| d.owner.is_none() && d.clients == 0)
    });
    let change = spec.change.as_ref().map(|c| c.phase);
    let status = node.status.as_ref();
    let fresh = status.is_some_and(|s| s.observed_generation == node.metadata.generation);
    let rests = state.is_none_or(|s| {
        matches!(s.step, AgentStep::Steady | AgentStep::Unmanaged | AgentStep::Failed | AgentStep::LeftAlone)
    });
    let half_done = matches!(change, Some(ChangePhase::Partitioning | ChangePhase::RollingBack)) && !(fresh && rests);
    // what NVIDIA's MIG manager was asked for it does, pool or not: nobody is to find the GPU changing under his hands
    idle && !half_done && !mig_manager::awaits_answer(node) && fleet.answers(&node.name_any())
}
