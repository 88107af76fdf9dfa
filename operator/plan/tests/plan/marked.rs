//! Nodes that others have marked: what runs there counts, and nothing new is planned there.

use gputenancy_plan::Problem;
use proptest::prelude::*;

use crate::support::{
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

/// Four A100 on two nodes, in any use.
fn four(small: i32, pods: usize) -> Fleet {
    let fleet = Fleet::default().mig("small", "1g.10gb").whole("gpu").pool("p", &["small", "gpu"]);
    let fleet = fleet.node("a", "p", &[a100(), a100()]).node("b", "p", &[a100(), a100()]);
    let mut fleet = fleet.tenant("t", &[("small", small)]).settle();
    for pod in 0..pods {
        fleet.start("t", &format!("pod-{pod}"), "nvidia.com/mig-1g.10gb");
    }
    fleet
}

#[test]
fn withdrawn_gpu_gets_no_new_demand_and_its_neighbour_does() {
    let mut fleet = four(0, 0).tenant("t", &[("gpu", 4)]);
    let uuid = fleet.nodes[0].gpus.spec.gpus.first().map(|gpu| gpu.uuid.clone());
    let uuid = uuid.unwrap_or_else(|| fleet.nodes[0].gpus.status.as_ref().unwrap().gpus[0].uuid.clone());
    fleet.nodes[0].withdrawn.insert(uuid.clone(), format!("{uuid} is withdrawn"));
    let problems = fleet.plan().problems;
    let [Problem::Shortage { got, why, .. }] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(*got, 3);
    assert!(why.contains(&format!("node a: {uuid} is withdrawn")), "{why}");
}

proptest! {
    /// A verdict on one GPU changes neither it nor what is planned to stay, and it evicts no pod of it.
    #[test]
    fn withdrawn_gpu_keeps_its_layout_and_its_pods(small in 0..8i32, more in 0..12i32, pods in 0..8usize, which in 0..4usize) {
        let mut fleet = four(small, pods).tenant("t", &[("small", small + more)]);
        let status = fleet.nodes[which / 2].gpus.status.as_ref().unwrap();
        let (uuid, node) = (status.gpus[which % 2].uuid.clone(), fleet.nodes[which / 2].name.clone());
        fleet.nodes[which / 2].withdrawn.insert(uuid.clone(), "withdrawn".into());
        let plan = fleet.plan();
        let (_, gpu) = plan.gpus.iter().find(|(key, _)| (key.node.as_str(), key.uuid.as_str()) == (&*node, &*uuid)).unwrap();
        prop_assert!(!gpu.changed && gpu.evicts.is_empty(), "{:?}", gpu);
    }

    /// A verdict on a GPU that no node has changes no plan.
    #[test]
    fn verdict_on_an_unknown_gpu_changes_nothing(small in 0..8i32, more in 0..12i32, pods in 0..8usize) {
        let mut fleet = four(small, pods).tenant("t", &[("small", small + more)]);
        let before = fleet.plan();
        fleet.nodes[0].withdrawn.insert("GPU-of-another-node".into(), "withdrawn".into());
        prop_assert_eq!(format!("{:?}", fleet.plan()), format!("{before:?}"));
    }
}
