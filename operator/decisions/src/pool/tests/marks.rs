//! Nodes that others have cordoned, tainted or marked as unhealthy.

use gputenancy_crds::{NodeHealth, ids::NodeName, reasons};

use super::{
    silent_agents::{changing as begins, two_nodes},
    *,
};
use crate::{plugin::CordonAction, pool::status::pools};

/// Marks as their authors write them, and what they make of a change in each phase.
const CASES: &str = include_str!("../../../../../integration/cases/node-health.json");

/// Changes the node `n` of a fleet.
fn edit(fleet: &mut Fleet, edit: impl FnOnce(&mut gputenancy_crds::projection::SlimNode)) {
    let mut node = (*fleet.nodes["n"]).clone();
    edit(&mut node);
    fleet.nodes.insert("n".into(), Arc::new(node));
}

fn cordon(fleet: &mut Fleet, cordoned: bool) {
    edit(fleet, |node| node.spec.unschedulable = cordoned);
}

#[test]
fn cordoned_node_is_no_supply_and_is_named_until_a_while_after_its_uncordon() {
    let mut fleet = settled();
    let mut remembered = Remembered::default();
    let rest = next(&fleet, &mut remembered, 1000, &[]);
    assert!(rest.nodes.is_empty() && rest.pools.is_empty(), "{rest:?}");

    cordon(&mut fleet, true);
    let marked = next(&fleet, &mut remembered, 1001, &[]);
    assert!(marked.nodes.is_empty());
    let (status, reason, message) = condition_of(&marked, "NodesMarked");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "TooManyMarked"), "one node is the whole pool");
    assert!(
        message.starts_with(
            "node n: it is cordoned (kubectl uncordon n lifts it): devices that no pod holds do not count"
        ),
        "{message}"
    );
    assert!(
        message.contains("2 of 2 GPUs are withdrawn or on nodes with a fault, and spec.health.maxUnavailable is 1"),
        "{message}"
    );
    assert_eq!((marked.pools["p"].profiles[0].free, marked.marked_nodes.len()), (0, 1));
    let shortages = &marked.view.tenants["t"].shortages;
    assert!(shortages[0].contains("node n: it is cordoned"), "{shortages:?}");
    let before = fleet.pools[0].status.clone().unwrap().conditions;
    let events = |before: &_, pass: &FleetDecision| {
        pools::events(before, &pass.pools["p"].conditions).into_iter().map(|event| event.reason).collect::<Vec<_>>()
    };
    assert_eq!(events(&before, &marked), [reasons::TOO_MANY_MARKED]);

    fleet.pools[0].status = marked.pools.get("p").cloned();
    cordon(&mut fleet, false);
    let gone = next(&fleet, &mut remembered, 1010, &[]);
    assert!(
        condition_of(&gone, "NodesMarked").2.contains(
            "node n: it was cordoned; its free devices count again at 1970-01-01T00:18:50Z (spec.health.clearAfter)"
        ),
        "{gone:?}"
    );
    assert_eq!(gone.wake.map(Timestamp::as_second), Some(1130));
    let back = next(&fleet, &mut remembered, 1130, &[]);
    assert_eq!(condition_of(&back, "NodesMarked").1, "Unmarked");
    assert_eq!((back.pools["p"].profiles[0].free, back.view.tenants["t"].shortages.len()), (2, 0));
    assert_eq!(events(&marked.pools["p"].conditions, &back), [reasons::UNMARKED]);
}

#[test]
fn running_pod_counts_for_its_guarantee_on_a_marked_node() {
    let mut fleet = settled();
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let whole = node.status.as_mut().unwrap().gpus[0].whole.as_mut().unwrap();
    whole.owner = Some(read(json!({"namespace": "t", "pod": "a", "container": "c"})));
    cordon(&mut fleet, true);
    let pass = at(&fleet, 1000, &[]);
    assert_eq!(pass.view.tenants["t"].shortages.len(), 0, "{:?}", pass.view.tenants);
    Arc::make_mut(&mut fleet.tenants[0]).spec.gpus[0].count = 2;
    let pass = at(&fleet, 1000, &[]);
    assert_eq!(pass.view.tenants["t"].shortages.len(), 1, "new demand gets nothing there");
}

#[test]
fn marks_that_a_pool_ignores_make_no_difference() {
    let mut fleet = settled();
    fleet.pools[0].spec.health = read(json!({"cordons": "Ignore"}));
    cordon(&mut fleet, true);
    let pass = at(&fleet, 1000, &[]);
    assert_eq!((pass.view.tenants["t"].shortages.len(), pass.marked_nodes.len()), (0, 0));
    let taint = |key: &str| read(json!({"key": key, "effect": "NoSchedule"}));
    edit(&mut fleet, |node| node.spec.taints = vec![taint("nvidia.com/gpu")]);
    assert_eq!(at(&fleet, 1000, &[]).marked_nodes.len(), 0, "pods of tenants tolerate it");
    edit(&mut fleet, |node| node.spec.taints = vec![taint("nvidia.com/gpu-xid-error")]);
    assert_eq!(at(&fleet, 1000, &[]).marked_nodes, ["p"]);
}

#[test]
fn cordon_of_ours_counts_and_stays_until_nvsentinel_ends_its_quarantine() {
    let mut fleet = settled();
    fleet.pools[0].spec.advertiser = Advertiser::NvidiaDevicePlugin;
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).spec.advertiser = Advertiser::NvidiaDevicePlugin;
    let quarantine = |quarantined: bool| {
        let annotations = [(names::CORDONED, "2026-01-01T00:00:00Z"), ("quarantineHealthEvent", "set")];
        let here = annotations.into_iter().take(if quarantined { 2 } else { 1 });
        here.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
    };
    let mut decided = |quarantined: bool| {
        edit(&mut fleet, |node| {
            node.spec.unschedulable = true;
            node.metadata.annotations = Some(quarantine(quarantined));
        });
        let pass = at(&fleet, 1000, &[]);
        let cordon = pass.nodes.get(&NodeName::from("n")).and_then(|work| work.plugin.cordon.clone());
        (cordon, pass)
    };
    let (cordon, pass) = decided(true);
    assert_eq!(cordon, None);
    let message = condition_of(&pass, "NodesMarked").2;
    assert!(message.starts_with("node n: it is cordoned, also by NVSentinel: "), "{message}");
    assert_eq!(decided(false).0, Some(CordonAction::Lift));
}

#[test]
fn pool_reports_the_taint_that_pods_tolerate_unless_it_is_the_usual_one() {
    let fleet = settled();
    let statuses = |key: &str| {
        let (tolerated, none, now) = (key.parse().unwrap(), BTreeSet::new(), Timestamp::from_second(1000).unwrap());
        let inventory = Inventory {
            fleet: &fleet,
            now,
            refusals: &Refusals::new(),
            namespace: "home",
            tolerated: &tolerated,
            marks: &BTreeMap::new(),
            lagging: &none,
            failing: &none,
            writing: &none,
        };
        decide(&inventory, &mut Remembered::default()).pools
    };
    assert_eq!((statuses("nvidia.com/gpu").len(), statuses("").len()), (0, 0), "nothing is written");
    assert_eq!(statuses("example.com/gpus")["p"].tolerated_taint.as_deref(), Some("example.com/gpus"));
}

/// The settled fleet with two nodes more, so that one marked node is not too many, and a change of the GPU that has a pod.
fn changing(phase: &str) -> Fleet {
    let mut fleet = settled();
    fleet.profiles[0].spec.resource_name = Some("gputenancy.io/gpu".into());
    fleet.pools[0].spec.health = read(json!({"maxUnavailable": "100%"}));
    fleet.pools[0].spec.verify = read(json!({"canary": {"image": "canary"}}));
    let intent = intent(&fleet);
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let time = "1970-01-01T00:00:10Z";
    // a whole GPU has a canary if it was shared before
    let shares = json!({"mode": "TimeSlice", "shares": [{"resource": "gputenancy.io/turns", "numbers": [0, 1]}]});
    let old = if phase == "Canary" { json!({"sharing": shares}) } else { json!({"resource": "nvidia.com/gpu"}) };
    let new = json!({"resource": "gputenancy.io/gpu"});
    node.spec.gpus[0].change = Some(read(json!({"phase": phase, "from": old, "to": new, "startedAt": time,
        "phaseSince": time, "evictAfter": time, "reason": "r", "intent": intent})));
    let whole = node.status.as_mut().unwrap().gpus[0].whole.as_mut().unwrap();
    if ["Partitioning", "Canary", "Verifying"].contains(&phase) {
        node.spec.gpus[0].resource = Some("gputenancy.io/gpu".into());
        whole.resource = Some("gputenancy.io/gpu".into());
        return fleet;
    }
    whole.owner = Some(read(json!({"namespace": "t", "pod": "w", "container": "c"})));
    let pod = PodName { namespace: "t".into(), name: "w".into() };
    let meta = json!({"name": "w", "namespace": "t", "uid": "w"});
    fleet.pods.insert(pod, Arc::new(read(json!({"metadata": meta, "spec": {"nodeName": "n"}}))));
    fleet
}

/// Merges a mark into the node `n`.
fn mark(fleet: &mut Fleet, mark: &Value) {
    let mut node = serde_json::to_value(&*fleet.nodes["n"]).unwrap();
    let mut conditions = node["status"]["conditions"].as_array().unwrap().clone();
    conditions.extend(mark["status"]["conditions"].as_array().cloned().unwrap_or_default());
    merge(&mut node, mark);
    node["status"]["conditions"] = json!(conditions);
    fleet.nodes.insert("n".into(), Arc::new(read(node)));
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

#[test]
fn each_mark_cancels_or_suspends_a_change_in_each_phase() {
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let node = NodeName::from("n");
    let found = |pass: &FleetDecision| pass.nodes.get(&node).and_then(|work| work.spec.clone());
    for (phase, effect) in cases["phases"].as_object().unwrap() {
        let unmarked = next(&changing(phase), &mut Remembered::default(), 10, &[]);
        for row in cases["marks"].as_array().unwrap() {
            let (mut fleet, case) = (changing(phase), format!("{phase}: {row}"));
            mark(&mut fleet, &row["node"]);
            let pass = next(&fleet, &mut Remembered::default(), 10, &[]);
            if row["says"].is_null() {
                assert_eq!((found(&pass), &pass.evicted), (found(&unmarked), &unmarked.evicted), "{case}");
                continue;
            }
            assert!(pass.evicted.is_empty(), "{case}");
            let before = fleet.gpu_nodes["n"].spec.clone();
            let after = pass.nodes.get(&node).and_then(|work| work.spec.clone()).unwrap_or_else(|| before.clone());
            let phases = |spec: &GpuNodeSpec| spec.gpus[0].change.as_ref().map(|change| change.phase);
            match effect.as_str().unwrap() {
                "Cancelled" => assert_eq!(phases(&after), None, "{case}"),
                "Suspended" => assert_eq!(phases(&after), phases(&before), "{case}"),
                other => panic!("{other}"),
            }
            let layout = |spec: &GpuNodeSpec| spec.gpus[0].layout();
            assert_eq!(layout(&after), layout(&before), "{case}");
            assert!(condition_of(&pass, "NodesMarked").2.contains(row["says"].as_str().unwrap()), "{case}");
        }
    }
}

/// The changing fleet with nodes `n` to `n4`, two GPUs each, of which so many others are marked.
fn five_nodes(marked: usize) -> Fleet {
    let mut fleet = changing("Noticed");
    fleet.pools[0].spec.health = NodeHealth::default();
    for number in 1..5 {
        let name = format!("n{number}");
        let mut gpus = (*fleet.gpu_nodes["n"]).clone();
        gpus.metadata.name = Some(name.clone());
        for gpu in &mut gpus.spec.gpus {
            (gpu.uuid, gpu.change) = (format!("{}-{number}", gpu.uuid), None);
        }
        for gpu in &mut gpus.status.as_mut().unwrap().gpus {
            gpu.uuid = format!("{}-{number}", gpu.uuid);
            gpu.whole.as_mut().unwrap().owner = None;
        }
        let mut node = (*fleet.nodes["n"]).clone();
        node.metadata.name = Some(name.clone());
        node.spec.unschedulable = number <= marked;
        fleet.gpu_nodes.insert(name.clone(), Arc::new(gpus));
        fleet.nodes.insert(name, Arc::new(node));
    }
    fleet
}

#[test]
fn with_three_of_five_nodes_marked_at_once_no_pod_is_evicted() {
    let phase = |marked| {
        let pass = next(&five_nodes(marked), &mut Remembered::default(), 10, &[]);
        let work = pass.nodes.get(&NodeName::from("n")).and_then(|work| work.spec.clone());
        let phase = work.and_then(|spec| Some(spec.gpus[0].change.as_ref()?.phase));
        (phase, condition_of(&pass, "NodesMarked").1)
    };
    let evicting = Some(ChangePhase::Evicting);
    assert_eq!(phase(0), (evicting, "Unmarked".to_owned()));
    assert_eq!(phase(2), (evicting, "Marked".to_owned()), "40 % of the GPUs");
    assert_eq!(phase(3), (None, "TooManyMarked".to_owned()), "60 % of the GPUs: nothing is written");
}

/// The phase that the change of the node `n` is written with.
fn written_phase(pass: &FleetDecision) -> Option<ChangePhase> {
    let work = pass.nodes.get(&NodeName::from("n"))?;
    Some(work.spec.as_ref()?.gpus[0].change.as_ref()?.phase)
}

#[test]
fn change_that_evicts_no_pod_goes_on_while_too_many_are_marked() {
    let mut fleet = five_nodes(3);
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let change = node.spec.gpus[0].change.as_mut().unwrap();
    (change.phase, change.evict_after) = (ChangePhase::Held, None);
    let gpu = &mut node.status.as_mut().unwrap().gpus[0];
    gpu.whole.as_mut().unwrap().owner = None;
    let pass = next(&fleet, &mut Remembered::default(), 10, &[]);
    assert_eq!(condition_of(&pass, "NodesMarked").1, "TooManyMarked");
    let spec = pass.nodes.get(&NodeName::from("n")).and_then(|work| work.spec.clone());
    assert_eq!(spec.map(|spec| spec.gpus[0].hold.clone()), Some(vec![0]), "{pass:?}");
    // a pod got the device meanwhile
    let owned = next(&five_nodes(3), &mut Remembered::default(), 10, &[]);
    assert!(owned.nodes.is_empty() && owned.evicted.is_empty(), "{owned:?}");
}

#[test]
fn time_limits_begin_again_when_no_longer_too_many_are_marked() {
    let mut fleet = five_nodes(3);
    fleet.pools[0].spec.health = read(json!({"clearAfter": "0s"}));
    fleet.pools[0].spec.disruption.drain_timeout = read(json!("5m"));
    let mut remembered = Remembered::default();
    for second in [10, 100_000] {
        let pass = next(&fleet, &mut remembered, second, &[]);
        assert_eq!((written_phase(&pass), condition_of(&pass, "NodesMarked").1.as_str()), (None, "TooManyMarked"));
    }
    for name in ["n1", "n2", "n3"] {
        Arc::make_mut(fleet.nodes.get_mut(name).unwrap()).spec.unschedulable = false;
    }
    assert_eq!(written_phase(&next(&fleet, &mut remembered, 100_001, &[])), Some(ChangePhase::Evicting));
    assert_eq!(written_phase(&next(&fleet, &mut remembered, 100_301, &[])), Some(ChangePhase::RollingBack));
}

#[test]
fn maintenance_that_is_planned_for_later_stops_no_eviction() {
    let mut fleet = five_nodes(0);
    for name in ["n1", "n2", "n3", "n4"] {
        let planned = json!({"type": "MaintenancePlanned", "status": "True", "reason": "R"});
        Arc::make_mut(fleet.nodes.get_mut(name).unwrap()).status.conditions.push(read(planned));
    }
    let pass = next(&fleet, &mut Remembered::default(), 10, &[]);
    assert_eq!(condition_of(&pass, "NodesMarked").1, "Marked");
    assert_eq!(written_phase(&pass), Some(ChangePhase::Evicting));
}

#[test]
fn end_of_a_verdict_is_never_later_than_now() {
    let mut fleet = settled();
    fleet.pools[0].spec.health = read(json!({"clearAfter": "0s"}));
    let (mut remembered, uuid) = (Remembered::default(), uuids(&fleet)[0].clone());
    withdraw(&mut fleet, &uuid);
    next(&fleet, &mut remembered, 100_000, &[]);
    withdraw(&mut fleet, "");
    cordon(&mut fleet, true);
    next(&fleet, &mut remembered, 100_001, &[]);
    cordon(&mut fleet, false);
    for second in [100_002, 1000] {
        next(&fleet, &mut remembered, second, &[]);
        let at = |end: Option<Timestamp>| end.map(Timestamp::as_second);
        let marks = &remembered.derived.marks;
        assert_eq!(at(marks.ended("n", &uuid)), Some(second));
        assert_eq!(at(remembered.overruns.ended("p")), Some(second));
    }
}

fn withdraw(fleet: &mut Fleet, text: &str) {
    let annotations = BTreeMap::from([(gputenancy_crds::names::WITHDRAWN_GPUS.to_owned(), text.to_owned())]);
    edit(fleet, |node| node.metadata.annotations = Some(annotations).filter(|_| !text.is_empty()));
}

/// UUIDs of the GPUs of the node `n`.
fn uuids(fleet: &Fleet) -> Vec<String> {
    fleet.gpu_nodes["n"].spec.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
}

#[test]
fn withdrawn_gpu_is_named_in_its_spec_alone_until_a_while_after_the_annotation_is_gone() {
    let (mut fleet, mut remembered) = (settled(), Remembered::default());
    let uuids = uuids(&fleet);
    next(&fleet, &mut remembered, 1000, &[]);
    withdraw(&mut fleet, &format!("{}=row remapping failed", uuids[0]));
    let marked = next(&fleet, &mut remembered, 1001, &[]);
    let (status, reason, message) = condition_of(&marked, "NodesMarked");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Marked"), "{message}");
    assert!(message.starts_with(&format!("node n: {} is withdrawn by", uuids[0])), "{message}");
    assert!(message.contains("(row remapping failed)"), "{message}");
    let spec = marked.nodes.values().find_map(|work| work.spec.clone()).unwrap();
    assert!(spec.gpus[0].withdrawn.as_ref().is_some_and(|why| why.contains("row remapping failed")), "{spec:?}");
    assert_eq!(spec.gpus[1], fleet.gpu_nodes["n"].spec.gpus[1]);
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).spec = spec;
    assert!(next(&fleet, &mut remembered, 1002, &[]).nodes.is_empty(), "nothing is written twice");

    withdraw(&mut fleet, "");
    assert!(next(&fleet, &mut remembered, 1010, &[]).nodes.is_empty(), "it counts for clearAfter");
    let back = next(&fleet, &mut remembered, 1130, &[]);
    let spec = back.nodes.values().find_map(|work| work.spec.clone()).unwrap();
    assert!(spec.gpus.iter().all(|gpu| gpu.withdrawn.is_none()), "{spec:?}");
    assert_eq!(condition_of(&back, "NodesMarked").1, "Unmarked");
}

#[test]
fn invalid_annotation_withdraws_nothing_and_is_named_with_its_remedy() {
    for text in ["all", "0", "GPU-of-another-node", "MIG-a=hot"] {
        let mut fleet = settled();
        withdraw(&mut fleet, text);
        let pass = at(&fleet, 1000, &[]);
        assert_eq!(pass.view.tenants["t"].shortages.len(), 0, "{text}");
        let spec = pass.nodes.values().find_map(|work| work.spec.as_ref());
        assert!(spec.is_none_or(|spec| spec.gpus.iter().all(|gpu| gpu.withdrawn.is_none())), "{spec:?}");
        let (status, reason, message) = condition_of(&pass, "NodesMarked");
        assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidMark"), "{message}");
        for part in ["node n: ", text.split('=').next().unwrap(), "gputenancy.io/withdrawn-gpus", "write UUIDs"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn marked_node_is_no_first_node_of_a_rollout_and_the_rollout_does_not_wait_for_it() {
    let mut fleet = two_nodes();
    fleet.pools[0].spec.rollout = read(json!({"canaryNodes": 1, "soak": "10m"}));
    let pass = at(&fleet, 100, &[]);
    carry_out(&mut fleet, &pass);
    fleet.profiles[0].spec.resource_name = Some("gputenancy.io/gpu".into());
    let first = |pass: &FleetDecision| pass.pools["p"].rollout.clone().unwrap().nodes;
    let chosen = at(&fleet, 1000, &[]);
    assert_eq!(first(&chosen), ["n"]);
    let mut marked = fleet.clone();
    cordon(&mut marked, true);
    assert_eq!(first(&at(&marked, 1000, &[])), ["o"]);

    // it is marked after it was chosen
    marked.pools[0].status = chosen.pools.get("p").cloned();
    let replaced = at(&marked, 1001, &[]);
    assert_eq!((first(&replaced), begins(&replaced)), (vec!["o".to_owned()], vec![]));
    marked.pools[0].status = replaced.pools.get("p").cloned();
    assert_eq!(begins(&at(&marked, 1002, &[])), ["o"]);

    // a withdrawn GPU leaves the others of its node
    let gpus = uuids(&fleet);
    withdraw(&mut fleet, &gpus[0]);
    assert_eq!(first(&at(&fleet, 1000, &[])), ["n"]);
    withdraw(&mut fleet, &gpus.join(","));
    assert_eq!(first(&at(&fleet, 1000, &[])), ["o"]);
}

#[test]
fn silent_agent_of_a_marked_first_node_does_not_stop_the_rollout() {
    let mut fleet = two_nodes();
    // the fixed layout of the marked node stays, whatever is new in it
    fleet.pools[0].spec.layout =
        read(json!({"mode": "Fixed", "fixed": [{"gpus": "*", "profiles": [{"name": "gpu", "count": 1}]}]}));
    fleet.pools[0].spec.rollout = read(json!({"canaryNodes": 1, "soak": "10m"}));
    let pass = at(&fleet, 100, &[]);
    carry_out(&mut fleet, &pass);
    let rollout = fleet.pools[0].status.as_mut().unwrap().rollout.as_mut().unwrap();
    rollout.proven.clear();
    rollout.nodes = vec!["n".into()];
    let silent =
        json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": Timestamp::from_second(1000).unwrap()});
    edit(&mut fleet, |node| node.status.conditions = vec![read(silent)]);
    let reason = |fleet: &Fleet| condition_of(&at(fleet, 2000, &[]), "RolledOut").1;
    assert_eq!(reason(&fleet), "RolloutStopped");
    cordon(&mut fleet, true);
    assert_eq!(reason(&fleet), "RolloutStaged");
    let message = condition_of(&at(&fleet, 2000, &[]), "RolledOut").2;
    assert!(
        message.ends_with("; a marked node is not waited for (node n: it is cordoned (kubectl uncordon n lifts it))"),
        "{message}"
    );
}
