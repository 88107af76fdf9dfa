//! Nodes that others have marked: what runs there counts, and nothing new is planned there.

use gputenancy_plan::Problem;

use crate::{
    boards::a100,
    fleet::{Fleet, Member},
};

/// Two nodes with one A100 each, and a team with a guarantee of small instances, as far as they are there.
fn fleet(small: i32) -> Fleet {
    let fleet = Fleet::default().mig("small", "1g.10gb").whole("gpu").pool("p", &["small", "gpu"]);
    fleet.node("a", "p", &[a100()]).node("b", "p", &[a100()]).tenant("t", &[("small", small)])
}

fn mark(fleet: &mut Fleet, node: &str) {
    let find = |member: &&mut Member| member.name == node;
    fleet.nodes.iter_mut().find(find).unwrap().marked = Some("it is cordoned");
}

#[test]
fn demand_is_planned_on_other_nodes() {
    let mut fleet = fleet(0).settle().tenant("t", &[("small", 7)]);
    mark(&mut fleet, "a");
    let plan = fleet.plan();
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    let changed: Vec<&str> =
        plan.gpus.iter().filter(|(_, gpu)| gpu.changed).map(|(key, _)| key.node.as_str()).collect();
    assert_eq!(changed, ["b"]);
    mark(&mut fleet, "b");
    let problems = fleet.plan().problems;
    let [Problem::Shortage { got, why, .. }] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(*got, 0);
    assert!(why.contains("node a: it is cordoned; node b: it is cordoned"), "{why}");
}

#[test]
fn free_devices_of_a_marked_node_do_not_count() {
    let mut fleet = fleet(7).settle();
    let home = fleet.plan().gpus.into_iter().find(|(_, gpu)| gpu.target.as_ref().is_some_and(|l| l.mig)).unwrap().0;
    mark(&mut fleet, home.node.as_str());
    let plan = fleet.plan();
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    let changed: Vec<&str> =
        plan.gpus.iter().filter(|(_, gpu)| gpu.changed).map(|(key, _)| key.node.as_str()).collect();
    assert_eq!(changed.len(), 1);
    assert_ne!(changed[0], home.node.as_str());
}

#[test]
fn devices_that_pods_hold_on_a_marked_node_count() {
    let mut fleet = fleet(7).settle();
    for pod in ["x", "y", "z"] {
        assert!(fleet.start("t", pod, "nvidia.com/mig-1g.10gb"));
    }
    let home = fleet.plan().gpus.into_iter().find(|(_, gpu)| gpu.target.as_ref().is_some_and(|l| l.mig)).unwrap().0;
    mark(&mut fleet, home.node.as_str());
    let plan = fleet.plan();
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    assert!(plan.gpus.values().all(|gpu| gpu.evicts.is_empty()));
    let supply = plan.profiles.iter().find(|(name, _)| name.to_string() == "small").unwrap().1;
    assert_eq!((supply.before, supply.after >= 7), (3, true), "{supply:?}");
}
