//! GPUs on which neither the old layout nor the new one can be had: their free devices do not exist, and another layout may be tried.

use gputenancy_crds::{Change, Layout};
use serde_json::json;

use crate::support::{boards::a100, fleet::Fleet};

/// Nodes with one A100 each, whose first one is stuck on its way to small instances: NVML shows none.
fn fleet(nodes: usize, guarantees: &[(&str, i32)]) -> Fleet {
    let fleet = Fleet::default().mig("small", "1g.10gb").whole("gpu").pool("p", &["small", "gpu"]);
    let fleet = ["a", "b"].iter().take(nodes).fold(fleet, |fleet, name| fleet.node(name, "p", &[a100()]));
    let mut fleet = fleet.tenant("t", &[("small", 7)]).settle();
    let layout =
        fleet.nodes[0].gpus.spec.gpus.first().map(gputenancy_crds::GpuSpec::layout).filter(|layout| layout.mig);
    let to = layout.expect("the first node serves the guarantee");
    let (from, time) = (Layout::default(), "2026-01-01T00:00:00Z");
    let change: Change = serde_json::from_value(json!({
        "phase": "Stuck", "from": from, "to": to, "startedAt": time, "phaseSince": time, "reason": "r", "failures": 1,
    }))
    .unwrap();
    fleet.nodes[0].gpus.spec.gpus[0].change = Some(change);
    fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[0].instances.clear();
    fleet.tenant("t", guarantees)
}

#[test]
fn demand_of_a_stuck_gpu_is_served_by_another() {
    let plan = fleet(2, &[("small", 7)]).plan();
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    let changed: Vec<&str> =
        plan.gpus.iter().filter(|(_, gpu)| gpu.changed).map(|(key, _)| key.node.as_str()).collect();
    assert_eq!(changed, ["b"]);
}

#[test]
fn stuck_gpu_gets_a_layout_that_another_demand_needs() {
    let plan = fleet(1, &[("gpu", 1)]).plan();
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    let gpu = plan.gpus.values().next().unwrap();
    assert_eq!((gpu.changed, gpu.target.as_deref()), (true, Some(&Layout::default())));
}

#[test]
fn what_only_a_stuck_gpu_would_have_is_a_shortage() {
    let plan = fleet(1, &[("small", 7)]).plan();
    assert!(!plan.problems.is_empty() || plan.gpus.values().any(|gpu| gpu.changed), "{plan:?}");
    let served = plan.profiles.iter().find(|(name, _)| name.to_string() == "small").unwrap().1;
    assert_eq!(served.before, 0, "no instance exists");
}
