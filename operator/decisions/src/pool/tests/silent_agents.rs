//! Agents that are taken off their node and return.

use gputenancy_crds::{GpuNode, reasons};

use super::*;
use crate::{liveness::AgentPod, pool::status::pools};

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The fleet with these pods of the agent.
fn with_pods(fleet: &Fleet, pods: &[(&str, AgentPod)]) -> Fleet {
    let pods = pods.iter().map(|(node, pod)| ((*node).to_owned(), *pod)).collect();
    Fleet { agent_pods: Some(pods), ..fleet.clone() }
}

fn gpu_node(fleet: &mut Fleet) -> &mut GpuNode {
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap())
}

fn absent(since: i64) -> AgentPod {
    AgentPod::Absent { since: Some(time(since)) }
}

#[test]
fn removed_agent_is_supply_for_a_minute_and_then_named_until_it_returns() {
    let fleet = settled();
    let rest = at(&with_pods(&fleet, &[("n", AgentPod::Ready { since: None })]), 1000, &[]);
    assert!(rest.nodes.is_empty() && rest.pools.is_empty(), "{rest:?}");

    let mut gone = with_pods(&fleet, &[("n", absent(1000))]);
    let soon = at(&gone, 1059, &[]);
    assert_eq!(reason_of(&soon.pools["p"].conditions), ("True", "Ready"), "an upgrade of the DaemonSet is no news");
    assert_eq!(condition_of(&soon, "AgentSilent").0, "False");
    assert_eq!(soon.pools["p"].profiles[0].free, 0, "the agent cannot advertise any device");
    assert_eq!((soon.view.tenants["t"].shortages.len(), soon.silent_agents.len()), (0, 0));
    assert_eq!(soon.wake.map(Timestamp::as_second), Some(1060));

    let late = at(&gone, 1060, &[]);
    let (status, reason, message) = condition_of(&late, "AgentSilent");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Silent"));
    assert!(message.contains("node n (the agent has no pod there: "), "{message}");
    assert!(message.contains("nvidia.com/gpu.deploy.client"), "{message}");
    let ready = condition_of(&late, condition::READY).2;
    assert!(ready.contains("n (the agent has no pod there: "), "{ready}");
    assert_eq!((late.view.tenants["t"].shortages.len(), late.silent_agents.len()), (1, 1));
    assert_eq!(late.wake.map(Timestamp::as_second), Some(1300), "a rollout stops then");
    assert_eq!(at(&gone, 1300, &[]).wake, None);

    // a new leader counts from the start, and reports no return meanwhile
    let before = fleet.pools[0].status.clone().unwrap().conditions;
    gone.pools[0].status = late.pools.get("p").cloned();
    gone.agent_pods = Some([("n".to_owned(), absent(2000))].into());
    let restarted = at(&gone, 2001, &[]);
    let now = restarted.pools.get("p").map_or(&late.pools["p"].conditions, |s| &s.conditions);
    assert!(condition::is_true(now, "AgentSilent"));
    let events = |before, now| pools::events(before, now).into_iter().map(|event| event.reason).collect::<Vec<_>>();
    assert_eq!(events(&before, now), [reasons::NODE_NOT_READY, reasons::AGENT_SILENT]);

    let back = at(&with_pods(&gone, &[("n", AgentPod::Ready { since: None })]), 2100, &[]);
    assert_eq!(condition_of(&back, "AgentSilent").1, "Reporting");
    assert_eq!(reason_of(&back.pools["p"].conditions), ("True", "Ready"));
    assert_eq!(back.pools["p"].profiles[0].free, 2);
    assert_eq!(events(now, &back.pools["p"].conditions), [reasons::READY, reasons::AGENT_RETURNED]);
}

#[test]
fn agent_that_reported_its_stop_is_named() {
    let mut fleet = settled();
    let stopped = json!({
        "type": "Ready", "status": "Unknown", "reason": "AgentStopped", "message": "m", "lastTransitionTime": time(1000),
    });
    gpu_node(&mut fleet).status.as_mut().unwrap().conditions = vec![read(stopped)];
    let pass = at(&fleet, 1060, &[]);
    assert!(condition_of(&pass, "AgentSilent").2.contains("n (its agent has stopped: "), "{pass:?}");
    assert!(pass.nodes.is_empty());
}

/// Nodes `n` and `o` of a pool, whose GPUs are all guaranteed.
pub(super) fn two_nodes() -> Fleet {
    let mut fleet = fleet(&["p"]);
    let mut other = (*fleet.gpu_nodes["n"]).clone();
    other.metadata.name = Some("o".into());
    for gpu in &mut other.status.as_mut().unwrap().gpus {
        gpu.uuid = format!("{}-o", gpu.uuid);
    }
    let mut node = (*fleet.nodes["n"]).clone();
    node.metadata.name = Some("o".into());
    fleet.gpu_nodes.insert("o".into(), Arc::new(other));
    fleet.nodes.insert("o".into(), Arc::new(node));
    Arc::make_mut(&mut fleet.tenants[0]).spec.gpus[0].count = 4;
    for second in 0..30 {
        let pass = at(&fleet, second, &[]);
        carry_out(&mut fleet, &pass);
    }
    fleet
}

/// Nodes `n` and `o` of a pool that changes one GPU at a time, where every GPU has to change and one of `n` has begun.
fn begun() -> Fleet {
    let mut fleet = two_nodes();
    fleet.profiles[0].spec.resource_name = Some("gputenancy.io/gpu".into());
    let pass = at(&fleet, 1000, &[]);
    assert_eq!(pass.nodes.keys().map(ToString::to_string).collect::<Vec<_>>(), ["n"]);
    gpu_node(&mut fleet).spec = pass.nodes["n"].spec.clone().unwrap();
    fleet
}

pub(super) fn changing(pass: &FleetDecision) -> Vec<String> {
    let begins = |work: &crate::pool::decide::node_specs::GpuWork| {
        work.spec.iter().flat_map(|s| &s.gpus).any(|g| g.change.is_some())
    };
    pass.nodes.iter().filter(|(_, work)| begins(work)).map(|(node, _)| node.to_string()).collect()
}

#[test]
fn change_on_a_silent_node_releases_its_slot_after_five_minutes() {
    let fleet = begun();
    let gone = with_pods(&fleet, &[("n", absent(1010)), ("o", AgentPod::Ready { since: None })]);
    let waiting = at(&gone, 1309, &[]);
    assert_eq!(changing(&waiting), Vec::<String>::new(), "the change on n holds the only slot");
    assert_eq!(waiting.wake.map(Timestamp::as_second), Some(1310));
    let released = at(&gone, 1310, &[]);
    assert_eq!(changing(&released), ["o"], "{:?}", released.nodes);

    let back = with_pods(&fleet, &[("n", AgentPod::Ready { since: None }), ("o", AgentPod::Ready { since: None })]);
    let pass = at(&back, 1310, &[]);
    assert!(!changing(&pass).contains(&"o".to_owned()), "the change on n holds the slot again");
    let progress = pass.pools["p"].changes.iter().map(|c| c.node.as_str()).collect::<Vec<_>>();
    assert_eq!(progress, ["n"]);
}

#[test]
fn gpu_of_a_silent_node_is_not_admitted_in_place_of_another() {
    let mut fleet = begun();
    for gpu in &mut gpu_node(&mut fleet).spec.gpus {
        gpu.change = None;
        gpu.hold.clear();
    }
    let gone = with_pods(&fleet, &[("n", absent(1000)), ("o", AgentPod::Ready { since: None })]);
    assert_eq!(changing(&at(&gone, 1059, &[])), Vec::<String>::new(), "a short pause changes no order");
    assert_eq!(changing(&at(&gone, 1060, &[])), ["o"]);
}

#[test]
fn slot_is_for_a_gpu_that_can_begin_and_counts_what_may_have_begun() {
    let mut fleet = begun();
    for gpu in &mut gpu_node(&mut fleet).spec.gpus {
        gpu.change = None;
        gpu.hold.clear();
    }
    let changing = |nodes| changing(&decided(&fleet, &mut Remembered::default(), 1000, nodes));
    assert_eq!(changing([&[], &[], &[]]), ["n"]);
    assert_eq!(changing([&[], &["n"], &[]]), ["o"], "a GpuNode that cannot be written takes no slot");
    assert_eq!(changing([&[], &[], &["n"]]), Vec::<String>::new(), "a GpuNode that is being written may have begun");
    assert_eq!(changing([&["n"], &[], &[]]), Vec::<String>::new(), "and so may one that the cache does not show yet");
}

#[test]
fn a_silent_node_is_not_acted_on_and_named() {
    let mut fleet = settled();
    let mut node = (*fleet.nodes["n"]).clone();
    node.status.conditions.clear();
    fleet.nodes.insert("n".into(), Arc::new(node));
    let pass = at(&fleet, 30, &[]);
    assert!(pass.nodes.is_empty());
    assert_eq!(reason_of(&pass.pools["p"].conditions), ("False", "NodeNotReady"));
}

#[test]
fn pool_whose_only_changes_are_suspended_names_the_node_and_its_remedy() {
    let mut fleet = begun();
    let mut node = (*fleet.nodes["n"]).clone();
    let since = Timestamp::from_second(900).unwrap();
    node.status.conditions = vec![read(json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": since}))];
    fleet.nodes.insert("n".into(), Arc::new(node));
    let pass = at(&fleet, 1000, &[]);
    let conditions = &pass.pools["p"].conditions;
    assert_eq!(reason_of(conditions), ("False", "NodeNotReady"));
    let message = conditions.iter().find(|c| c.type_ == "Ready").unwrap().message.clone();
    assert!(message.contains("node n (the Node is not Ready: repair the node)"), "{message}");
    assert!(message.ends_with("there is suspended"), "{message}");
}

#[test]
fn failed_change_of_a_silent_node_keeps_its_cause() {
    let mut fleet = begun();
    for gpu in &mut gpu_node(&mut fleet).spec.gpus {
        if let Some(change) = &mut gpu.change {
            (change.phase, change.reason) =
                (gputenancy_crds::ChangePhase::Stuck, "nvmlGpuInstanceDestroy failed".into());
        }
    }
    let mut node = (*fleet.nodes["n"]).clone();
    node.status.conditions.clear();
    fleet.nodes.insert("n".into(), Arc::new(node));
    let pass = at(&fleet, 1000, &[]);
    let conditions = &pass.pools["p"].conditions;
    assert_eq!(reason_of(conditions), ("False", "ChangeStuck"));
    let message = conditions.iter().find(|c| c.type_ == "Ready").unwrap().message.clone();
    assert!(message.contains("nvmlGpuInstanceDestroy failed") && message.contains("suspended: "), "{message}");
}

#[test]
fn a_node_that_is_silent_for_a_moment_is_still_supply() {
    let mut fleet = settled();
    let mut node = (*fleet.nodes["n"]).clone();
    let since = Timestamp::from_second(1000).unwrap();
    node.status.conditions = vec![read(json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": since}))];
    fleet.nodes.insert("n".into(), Arc::new(node));
    let short = |pass: &FleetDecision| pass.view.tenants["t"].shortages.len();
    let soon = at(&fleet, 1059, &[]);
    assert_eq!((short(&soon), soon.wake.map(Timestamp::as_second)), (0, Some(1060)));
    assert!(soon.nodes.is_empty(), "nothing is done on its last word");
    let later = at(&fleet, 1060, &[]);
    assert_eq!((short(&later), later.wake.map(Timestamp::as_second)), (1, Some(1300)));
}

#[test]
fn only_nodes_of_a_pool_and_those_with_a_gpu_node_are_expected_to_report() {
    let mut fleet = settled();
    let mut node = (*fleet.nodes["n"]).clone();
    (node.metadata.name, node.metadata.labels) = (Some("cpu".into()), None);
    fleet.nodes.insert("cpu".into(), Arc::new(node.clone()));
    let mut remembered = Remembered::default();
    let silent = |fleet: &Fleet, remembered: &mut Remembered| {
        next(fleet, remembered, 1000, &[]);
        remembered.derived.silent.nodes().cloned().collect::<Vec<_>>()
    };
    assert_eq!(silent(&fleet, &mut remembered), Vec::<String>::new());
    node.metadata.labels = Some([("x".to_owned(), "y".to_owned())].into());
    fleet.nodes.insert("cpu".into(), Arc::new(node.clone()));
    assert_eq!(silent(&fleet, &mut remembered), ["cpu"], "the pool selects it");
    node.metadata.labels = None;
    fleet.nodes.insert("cpu".into(), Arc::new(node));
    assert_eq!(silent(&fleet, &mut remembered), Vec::<String>::new());
}
