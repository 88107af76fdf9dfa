//! Nodes that others have cordoned, tainted or marked as unhealthy.

use gputenancy_crds::reasons;

use super::*;
use crate::pool::status;

/// Changes the node `n` of a fleet.
fn edit(fleet: &mut Fleet, edit: impl FnOnce(&mut gputenancy_engine::projection::SlimNode)) {
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
    assert!(message.starts_with("node n: it is cordoned: devices that no pod holds do not count"), "{message}");
    assert!(message.contains("2 of 2 GPUs are on marked nodes, and spec.health.maxUnavailable is 1"), "{message}");
    assert_eq!((marked.pools["p"].profiles[0].free, marked.marked_nodes.len()), (0, 1));
    let shortages = &marked.view.tenants["t"].shortages;
    assert!(shortages[0].contains("node n: it is cordoned"), "{shortages:?}");
    let before = fleet.pools[0].status.clone().unwrap().conditions;
    let news = |before: &_, pass: &FleetDecision| {
        status::news(before, &pass.pools["p"].conditions).into_iter().map(|(_, r, _)| r).collect::<Vec<_>>()
    };
    assert_eq!(news(&before, &marked), [reasons::TOO_MANY_MARKED]);

    fleet.pools[0].status = marked.pools.get("p").cloned();
    cordon(&mut fleet, false);
    let gone = next(&fleet, &mut remembered, 1010, &[]);
    assert!(condition_of(&gone, "NodesMarked").2.contains("which is gone and counts until"), "{gone:?}");
    assert_eq!(gone.wake.map(Timestamp::as_second), Some(1130));
    let back = next(&fleet, &mut remembered, 1130, &[]);
    assert_eq!(condition_of(&back, "NodesMarked").1, "Unmarked");
    assert_eq!((back.pools["p"].profiles[0].free, back.view.tenants["t"].shortages.len()), (2, 0));
    assert_eq!(news(&marked.pools["p"].conditions, &back), [reasons::UNMARKED]);
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
