//! One step of the change machine for every GPU that a pool has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    ChangePhase, GpuNode, GpuPoolSpec, GpuSpec, Guarantee, QueueingSystem, Trust,
    ids::{GpuKey, PodName, PoolName},
};
use gputenancy_plan::{GpuPlan, Plan, TenantFacts};
use kube::ResourceExt as _;

use super::{
    canary,
    fleet_plan::FleetPlan,
    node_specs::plugin_observation,
    partitioner,
    planned_gpus::{PlannedGpu, planned_gpus},
    plugin_configs,
    rollout::Standing,
    scheduled::Scheduled,
    urgent,
};
use crate::{
    change::{self, CanaryPod, ChangeCandidate, ChangeDecision, ChangeObservation, EvictionNotice, Policy, Window},
    fingerprint::fingerprint,
    fleet::{Fleet, pod_facts},
    partitioner::{is_whole, of},
    plugin,
    pool::derive::devices::NodeDevices,
};

/// Decides for one GPU; `true`: all other GPUs of its node that have to change are idle.
type Decide<'a> = &'a dyn Fn((&GpuKey, &GpuPlan), bool) -> Option<(GpuKey, ChangeDecision)>;

/// What all GPUs share.
struct Shared<'a> {
    intent: String,
    canaries: BTreeMap<String, CanaryPod>,
    admitted: BTreeSet<&'a GpuKey>,
    /// GPUs that a rollout keeps from their change, with the reason.
    staged: BTreeMap<&'a GpuKey, Arc<str>>,
}

/// The GPUs of the visited nodes that are not at rest. What is decided about a request follows from more than the node and the plan.
pub fn busy<'a>(scheduled: &Scheduled<'a>) -> Vec<(&'a GpuKey, &'a GpuPlan)> {
    let (fleet, plan) = (scheduled.fleet(), &scheduled.plan);
    let of = |name: &String| {
        let node = fleet.gpu_nodes.get(name)?;
        let whole = scheduled.requests.contains_key(name.as_str());
        let here = plan.plan.gpus.range(GpuKey { node: name.as_str().into(), uuid: "".into() }..);
        let here = here.take_while(|(key, _)| key.node.as_str() == name);
        let at_rest =
            |key: &GpuKey, gpu: &GpuPlan| !whole && change::is_at_rest(node, key.uuid.as_str(), plan.target(key, gpu));
        Some(here.filter(|(key, gpu)| !at_rest(key, gpu)).collect::<Vec<_>>())
    };
    scheduled.visited.iter().filter_map(of).flatten().collect()
}

/// Decides for every GPU that is not at rest; notices name places where the same is free.
pub fn decisions(scheduled: &Scheduled<'_>, busy: &[(&GpuKey, &GpuPlan)]) -> BTreeMap<GpuKey, ChangeDecision> {
    let FleetPlan { plan, repartitions, .. } = &scheduled.plan;
    let (fleet, requests) = (scheduled.fleet(), &scheduled.requests);
    if busy.is_empty() {
        return BTreeMap::new();
    }
    let (intent, canaries) = (intent(fleet), canary::pods(&scheduled.inventory()));
    let (admitted, staged) = admitted(scheduled);
    let shared = Shared { intent, canaries, admitted, staged };
    let decide = |(key, gpu): (&GpuKey, &GpuPlan), others_idle| {
        Some((key.clone(), decision(scheduled, &shared, (key, gpu), others_idle)?))
    };
    let mut decisions: BTreeMap<_, _> = busy.iter().filter_map(|gpu| decide(*gpu, true)).collect();
    for name in requests.keys() {
        let again = repartitions.keys().filter(|k| k.node == *name).map(|k| k.uuid.as_str()).collect();
        wait_for_others(fleet, plan, name.as_str(), &again, &mut decisions, &decide);
    }
    for name in plugin_configs::whole_nodes(fleet, plan) {
        wait_for_others(fleet, plan, name, &BTreeSet::new(), &mut decisions, &decide);
        if plugin_configs::is_inexpressible_after(fleet, name, &decisions) {
            wait_all(plan, name, &mut decisions, &decide);
        }
    }
    let held = devices_after(fleet, &decisions);
    for decision in decisions.values_mut() {
        let notices = std::mem::take(&mut decision.notices).into_iter().map(|notice| {
            let elsewhere =
                notice.resource.as_deref().map_or_else(String::new, |r| places(scheduled.views.by_node(), &held, r));
            EvictionNotice { elsewhere, ..notice }
        });
        decision.notices = notices.collect();
    }
    decisions
}

/// Where a node changes as a whole: an idle GPU waits until all others that have to change are idle as well.
fn wait_for_others(
    fleet: &Fleet,
    plan: &Plan,
    name: &str,
    again: &BTreeSet<&str>,
    decisions: &mut BTreeMap<GpuKey, ChangeDecision>,
    decide: Decide<'_>,
) {
    let node = GpuKey { node: name.into(), uuid: "".into() }..;
    let here = decisions.range(node.clone()).take_while(|(k, _)| k.node.as_str() == name);
    let here: BTreeMap<&str, &ChangeDecision> = here.map(|(k, d)| (k.uuid.as_str(), d)).collect();
    if fleet.gpu_nodes.get(name).is_some_and(|n| partitioner::partitions_too_early(n, &here, again)) {
        wait_all(plan, name, decisions, decide);
    }
}

/// No GPU of a node begins to be partitioned now.
fn wait_all(plan: &Plan, name: &str, decisions: &mut BTreeMap<GpuKey, ChangeDecision>, decide: Decide<'_>) {
    let gpus = plan.gpus.range(GpuKey { node: name.into(), uuid: "".into() }..);
    let waiting: Vec<_> =
        gpus.take_while(|(k, _)| k.node.as_str() == name).filter_map(|gpu| decide(gpu, false)).collect();
    decisions.extend(waiting);
}

fn decision(
    scheduled: &Scheduled<'_>,
    shared: &Shared<'_>,
    (key, gpu): (&GpuKey, &GpuPlan),
    others_idle: bool,
) -> Option<ChangeDecision> {
    let Scheduled { windows, requests, overruns, urgent, .. } = scheduled;
    let (inventory, ownership, marks) = (&scheduled.inventory(), scheduled.ownership, scheduled.marks);
    let plan = &scheduled.plan;
    let (fleet, name) = (inventory.fleet, key.node.as_str());
    let node = fleet.gpu_nodes.get(name).filter(|_| !inventory.lagging.contains(name))?;
    // the agent has to know first whether it partitions
    if ownership.is_conflicting(name) || !ownership.has_assigned_owners(name, &node.spec) {
        return None;
    }
    let pool = scheduled.pool(gpu.pool.as_str())?;
    let spec = node.spec.gpus.iter().find(|g| g.uuid == key.uuid.as_str());
    let deadline = spec.and_then(|s| s.change.as_ref()?.evict_after.as_ref()).map(|t| t.0);
    let pods = scheduled.pods.on_node(name);
    let (pods, allocatable) = (pod_facts(fleet, &pods, deadline, inventory.refusals), fleet.allocatable(name));
    let urgent = urgent.get(key);
    let window = match windows.get(gpu.pool.as_str()) {
        Some(Ok(_)) if urgent.is_some() => Window::Always,
        Some(Ok(window)) => *window,
        _ => Window::Closed { next: None },
    };
    let liveness = fleet.liveness(name);
    let marked =
        marks.of_gpu(name, key.uuid.as_str()).map(|why| format!("node {name}: {why}; it proceeds when that is gone"));
    let mut reason = plan.reason(key, gpu, spec);
    if let Some(why) = urgent.filter(|_| plan.plan.gpus.get(key).is_some_and(|gpu| gpu.changed)) {
        reason = urgent::with_clause(&reason, why);
    }
    let ended = marks.ended(name, key.uuid.as_str()).max(overruns.ended(gpu.pool.as_str()));
    let policy = Policy { window, canary: pool.spec.verify.canary.clone(), ..Policy::from(&pool.spec.disruption) };
    let cordoned = plugin_observation(inventory, node, true).and_then(|seen| plugin::closed(&seen));
    let step = |foreign: Option<&String>| {
        let held_back = foreign.map(|why| format!("Pending: {why}"));
        let staged = shared.staged.get(key);
        let limit = || (!shared.admitted.contains(key)).then_some(change::LIMIT_REACHED);
        let mut decision = change::step(&ChangeObservation {
            now: inventory.now,
            uuid: key.uuid.as_str(),
            node,
            allocatable: &allocatable,
            cordoned,
            target: plan.target(key, gpu),
            reason: &reason,
            intent: &shared.intent,
            canaries: &shared.canaries,
            pods: &pods,
            policy: &policy,
            others_idle,
            // as on a node whose agent is away: nothing proceeds, and no time limit runs
            agent_alive: liveness.is_alive() && foreign.is_none(),
            alive_since: liveness.since.filter(|_| liveness.is_alive()).max(ended),
            partitioner: of(node.spec.partitioner),
            request: requests.get(name).map(|request| &request.state),
            recreate: plan.repartitions.get(key).map(String::as_str),
            staged: staged.is_some(),
            waits: held_back.as_deref().or(staged.map(|why| &**why)).or_else(limit),
        });
        if let Some(held_back) = held_back.filter(|_| liveness.is_alive() && decision.pending.is_some()) {
            decision.pending = Some(held_back);
        }
        decision
    };
    let mut decision = step(marked.as_ref());
    let begun = spec.and_then(|s| s.change.as_ref()).is_some_and(|c| c.phase < ChangePhase::RolledBack);
    // a change in progress evicts what has a removed device now, whatever the plan said
    let evicts = !decision.notified.is_empty() || !begun && !gpu.evicts.is_empty();
    let over = overruns.of(gpu.pool.as_str()).filter(|_| marked.is_none() && evicts);
    let over = over.map(|over| format!("{over}: no pod is evicted; raise it if these nodes are faulty indeed"));
    if over.is_some() {
        decision = step(over.as_ref());
    }
    let foreign = marked.or(over);
    let suspended = match (liveness.cause(), liveness.remedy()) {
        (Some(cause), Some(remedy)) => Some(format!("suspended: {cause}; {remedy}")),
        _ => foreign.map(|why| format!("suspended: {why}")),
    };
    if let (Some(progress), Some(suspended)) = (&mut decision.progress, suspended) {
        // a failure keeps its cause
        let failed = progress.phase >= ChangePhase::RolledBack;
        progress.message = if failed { format!("{}; {suspended}", progress.message) } else { suspended };
    }
    Some(decision)
}

/// Fingerprint of the specs that a plan follows from: while it is the same, plans differ only because of what runs.
pub fn intent(fleet: &Fleet) -> String {
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
            rollout: _,
            strategy,
            allocation: _,
            enforcement,
            health: _,
            queueing,
        } = &p.spec;
        let owners = (partitioner, advertiser, strategy);
        // absent without queues: the fingerprint of a pool that has none is that of earlier releases
        let queues = (queueing.system != QueueingSystem::None).then_some(queueing.system);
        let name = queues.map_or_else(|| p.name_any(), |system| format!("{} {system:?}", p.name_any()));
        (name, (node_selector, profiles, layout, owners, disruption.allow_outage, enforcement))
    });
    let tenants = fleet.demands().map(|(tenant, facts)| (tenant.name_any(), demand(facts)));
    fingerprint(&(by_name(profiles), by_name(pools), by_name(tenants)))
}

/// What a tenant asks for.
fn demand(tenant: TenantFacts<'_>) -> (Vec<String>, Trust, bool, i32, Vec<Guarantee>, Option<String>) {
    let TenantFacts { name: _, namespaces, refused, trust, acknowledged, priority, gpus, equivalents } = tenant;
    let own = namespaces.iter().filter(|n| !refused.contains_key(n.name.as_str()));
    let namespaces: Vec<String> = own.map(|n| n.name.clone()).collect();
    (namespaces, trust, acknowledged, priority, gpus.to_vec(), equivalents.map(str::to_owned))
}

fn by_name<T>(objects: impl Iterator<Item = (String, T)>) -> Vec<(String, T)> {
    let mut objects: Vec<_> = objects.collect();
    objects.sort_by(|a, b| a.0.cmp(&b.0));
    objects
}

/// The devices of nodes whose specs are about to be written: a device that a change removes is free until then.
fn devices_after(fleet: &Fleet, decisions: &BTreeMap<GpuKey, ChangeDecision>) -> BTreeMap<String, NodeDevices> {
    if decisions.values().all(|decision| decision.notices.is_empty()) {
        return BTreeMap::new();
    }
    let mut specs: BTreeMap<&str, Vec<&GpuSpec>> = BTreeMap::new();
    for (key, spec) in decisions.iter().filter_map(|(key, decision)| Some((key, decision.spec.as_ref()?))) {
        specs.entry(key.node.as_str()).or_default().push(spec);
    }
    let after = |(name, specs): (&str, Vec<&GpuSpec>)| {
        let mut node = GpuNode::clone(fleet.gpu_nodes.get(name)?);
        for spec in specs {
            node.spec.gpus.iter_mut().filter(|gpu| gpu.uuid == spec.uuid).for_each(|gpu| gpu.clone_from(spec));
        }
        Some((name.to_owned(), NodeDevices::of(&node, true)))
    };
    specs.into_iter().filter_map(after).collect()
}

/// Where a resource is free; removed instances are not.
fn places<'a>(
    views: impl Iterator<Item = (&'a str, &'a NodeDevices)>,
    held: &BTreeMap<String, NodeDevices>,
    resource: &str,
) -> String {
    let number = |devices: &NodeDevices| devices.by_resource.get(resource).map_or(0, |capacity| capacity.free);
    let free = |(node, devices): (_, &NodeDevices)| {
        let after = held.get(node).map_or(i32::MAX, number);
        Some((node, number(devices).min(after)))
    };
    let free: Vec<(&str, i32)> = views.filter_map(free).filter(|(_, n)| *n > 0).collect();
    let places: Vec<String> = free.iter().take(5).map(|(node, n)| format!("{node} ({n})")).collect();
    if places.is_empty() {
        return format!("no {resource} is free now");
    }
    format!("{resource} is free on {}{}", places.join(", "), if free.len() > 5 { " and others" } else { "" })
}

/// Does a change on the node still drain? Its notices hold as long.
fn drains(node: &GpuNode) -> bool {
    let mut changes = node.spec.gpus.iter().filter_map(|gpu| gpu.change.as_ref());
    changes.any(|change| change.phase < ChangePhase::Partitioning)
}

/// Pods with a notice that no change on their node evicts, with their UID. Pods on nodes about which nothing is decided now are left out.
pub fn cancelled_evictions(
    scheduled: &Scheduled<'_>,
    decisions: &BTreeMap<GpuKey, ChangeDecision>,
) -> BTreeMap<PodName, String> {
    let (fleet, ownership) = (scheduled.fleet(), scheduled.ownership);
    let notified: BTreeSet<&PodName> = decisions.values().flat_map(|d| &d.notified).collect();
    let mut cancelled = BTreeMap::new();
    for (name, pod) in scheduled.pods.noticed() {
        let node = pod.spec.node_name.as_deref().unwrap_or_default();
        let waits = || ownership.overlaps(node) && fleet.gpu_nodes.get(node).is_some_and(|n| drains(n));
        let ours = !ownership.is_conflicting(node) && !waits();
        let decided = ours && fleet.answers(node) && !scheduled.inventory().lagging.contains(node);
        let stays = pod.metadata.deletion_timestamp.is_none() && !pod.is_over();
        if decided && stays && !notified.contains(name) {
            cancelled.insert(name.clone(), pod.uid().unwrap_or_default());
        }
    }
    cancelled
}

/// GPUs that may begin a change now, by each pool's limit; the stage of a rollout keeps others from it, with the reason.
fn admitted<'a>(scheduled: &'a Scheduled<'_>) -> (BTreeSet<&'a GpuKey>, BTreeMap<&'a GpuKey, Arc<str>>) {
    let Scheduled { windows, stages, overruns, urgent, .. } = scheduled;
    let (fleet, plan, marks) = (scheduled.fleet(), &scheduled.plan, scheduled.marks);
    let mut by_pool: BTreeMap<&PoolName, Vec<ChangeCandidate<&GpuKey>>> = BTreeMap::new();
    let mut staged = BTreeMap::new();
    let hurried: BTreeSet<&str> =
        urgent.keys().filter_map(|key| Some(plan.plan.gpus.get(key)?.pool.as_str())).collect();
    let closed =
        |pool: &str| hurried.contains(pool) && !matches!(windows.get(pool), Some(Ok(window)) if window.is_open());
    for planned in planned_gpus(scheduled) {
        let marked = marks.of_gpu(planned.key.node.as_str(), planned.key.uuid.as_str()).is_some();
        let waits = closed(planned.plan.pool.as_str()) && !urgent.contains_key(planned.key);
        // the plan no longer counts on a silent or marked node, and others must not wait for it; nor do urgent changes for those that wait for a window
        let wanted = planned.wanted && !planned.silent && !marked && !waits;
        let changing = planned.changing && !marked;
        let PlannedGpu { key, plan: gpu, blocked, rank, .. } = planned;
        let blocked = blocked || overruns.of(gpu.pool.as_str()).is_some() && !gpu.evicts.is_empty();
        let standing = stages.standing(&PlannedGpu { wanted, ..planned });
        let (blocked, rank) = match standing {
            Some(Standing::First) => (blocked, 0),
            Some(Standing::Waits(why)) => {
                staged.insert(key, why);
                (true, rank)
            }
            None => (blocked, rank),
        };
        let blocked = wanted && blocked;
        by_pool.entry(&gpu.pool).or_default().push(ChangeCandidate { gpu: key, changing, wanted, blocked, rank });
    }
    let limit = |pool: &PoolName| scheduled.pool(pool.as_str()).map(|p| p.spec.disruption.max_unavailable.clone());
    let whole = |gpu: &GpuKey| fleet.gpu_nodes.get(gpu.node.as_str()).is_some_and(|node| is_whole(node));
    let shared = plugin_configs::whole_nodes(fleet, plan.plan);
    let admit = |(pool, candidates): (&PoolName, Vec<ChangeCandidate<&'a GpuKey>>)| {
        Some(if candidates.iter().any(|c| whole(c.gpu)) {
            change::admit_node(&candidates, &plan.repartitions)
        } else if candidates.iter().any(|c| shared.contains(c.gpu.node.as_str())) {
            // the rest of a node joins at any time: its config holds for all GPUs
            let joining = candidates.iter().filter(|c| c.wanted && !c.blocked);
            change::admit_node(&candidates, &joining.map(|c| (c.gpu.clone(), String::new())).collect())
        } else {
            change::admit(&candidates, &limit(pool)?)
        })
    };
    (by_pool.into_iter().filter_map(admit).flatten().collect(), staged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn notice_names_no_place_that_the_same_change_removes() {
        const MIG: &str = "nvidia.com/mig-1g.10gb";
        let device = json!({"resource": MIG, "allocatable": true, "clients": 0});
        let instance = |start: i32| json!({"start": start, "profile": "1g.10gb", "gi": start, "uuid": format!("MIG-{start}"), "device": device});
        let entry = |start: i32| json!({"start": start, "profile": "1g.10gb"});
        let gpu = json!({"uuid": "GPU-0", "mig": true, "instances": [entry(0), entry(1), entry(2)]});
        let node: GpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {"gpus": [gpu]},
            "status": {"gpus": [{"uuid": "GPU-0", "index": 0, "board": 0, "health": "Healthy", "step": "Steady",
                "instances": [instance(0), instance(1), instance(2)]}]},
        }))
        .unwrap();
        let now = NodeDevices::of(&node, true);
        let mut spec = node.spec.gpus[0].clone();
        spec.hold = vec![1, 2];
        let fleet = Fleet { gpu_nodes: [("n".to_owned(), Arc::new(node))].into(), ..Fleet::default() };
        let notice = EvictionNotice {
            pod: PodName { namespace: "t".into(), name: "w".into() },
            uid: String::new(),
            deadline: k8s_openapi::jiff::Timestamp::default(),
            reason: String::new(),
            resource: Some(MIG.to_owned()),
            elsewhere: String::new(),
        };
        let free = |decision: ChangeDecision| {
            let decisions = [(GpuKey { node: "n".into(), uuid: "GPU-0".into() }, decision)].into();
            places([("n", &now)].into_iter(), &devices_after(&fleet, &decisions), MIG)
        };
        let decided = ChangeDecision { spec: Some(spec), notices: [notice].into(), ..ChangeDecision::default() };
        assert_eq!(free(ChangeDecision::default()), "nvidia.com/mig-1g.10gb is free on n (3)");
        assert_eq!(free(decided), "nvidia.com/mig-1g.10gb is free on n (1)");
    }
}
