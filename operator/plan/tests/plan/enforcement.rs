//! Pools that demand a minimum of the limits of shares: a node that cannot give it offers none.

use gputenancy_crds::{Device, Isolation, MemoryScrub, NodeEnforcement, TenantSharing, Trust, UnscrubbedMemory};
use gputenancy_plan::{Plan, explain};
use serde_json::{Value, json};

use crate::{
    properties::evictions,
    support::{boards::a100, fleet::Fleet},
};

fn device(spec: Value) -> Device {
    serde_json::from_value(spec).unwrap()
}

/// Two nodes of two GPUs in one pool with this minimum, and a tenant that is guaranteed these devices.
fn pool(minimum: Isolation, guaranteed: &[(&str, i32)]) -> Fleet {
    let fleet = Fleet::default().whole("gpu").profile("turns", device(json!({"timeSlice": {"replicas": 4}})));
    let fleet = fleet.profile("part", device(json!({"fraction": {"memory": "10Gi", "compute": 10}})));
    let fleet = fleet.profile("mps", device(json!({"mps": {"memory": "10Gi", "threads": 10}})));
    let slices = json!({"timeSlice": {"replicas": 4, "of": {"mig": {"profile": "1g.10gb"}}}});
    let fleet = fleet.profile("slices", device(slices));
    let fleet = fleet.pool("p", &["gpu", "turns", "part", "mps", "slices"]);
    let fleet = fleet.node("n0", "p", &[a100(), a100()]).node("n1", "p", &[a100(), a100()]);
    let mut fleet = guarantee(fleet, guaranteed);
    fleet.pools[0].spec.enforcement.minimum = minimum;
    given(&mut fleet, "n0", Isolation::Software);
    given(&mut fleet, "n1", Isolation::Software);
    fleet
}

fn guarantee(fleet: Fleet, guaranteed: &[(&str, i32)]) -> Fleet {
    let mut fleet = fleet.tenant("t", guaranteed);
    let spec = &mut fleet.tenants[0].spec;
    spec.trust = Trust::Internal;
    spec.sharing = Some(TenantSharing { acknowledged_by: Some("lead@example.com".into()), ..TenantSharing::default() });
    fleet
}

/// The agent of a node reports what limits time-slices and fractions there.
fn given(fleet: &mut Fleet, node: &str, library: Isolation) {
    let reason = (library == Isolation::None).then(|| "limits are off: set agent.memoryLimits: Shim".to_owned());
    let means = NodeEnforcement {
        time_slice: library,
        mps: Isolation::Server,
        fraction: library,
        reason,
        ..NodeEnforcement::default()
    };
    let member = fleet.nodes.iter_mut().find(|n| n.name == node).unwrap();
    member.gpus.status.as_mut().unwrap().enforcement = Some(means);
}

/// Nodes with a GPU that has shares after the plan, whole GPUs or instances.
fn shared(plan: &Plan) -> Vec<&str> {
    let shared = plan
        .gpus
        .iter()
        .filter(|(_, gpu)| gpu.target.as_ref().is_some_and(|l| !l.shares().is_empty() || l.sharing.is_some()));
    shared.map(|(key, _)| key.node.as_str()).collect()
}

fn reasons(plan: &Plan) -> Vec<String> {
    plan.problems.iter().map(|p| p.reason().to_string()).collect()
}

#[test]
fn shares_are_planned_only_on_nodes_that_can_limit_them() {
    for profile in ["turns", "part", "slices"] {
        let mut fleet = pool(Isolation::Software, &[(profile, 4)]);
        given(&mut fleet, "n0", Isolation::None);
        let plan = fleet.plan();
        assert_eq!(shared(&plan), ["n1"], "{profile}: {:#?}", explain(&plan));
        assert!(!reasons(&plan).contains(&"Shortage".to_owned()), "{:#?}", explain(&plan));
        assert!(plan.gpus.values().all(|gpu| gpu.target.is_some()), "GPUs of the other node are offered whole");
    }
}

#[test]
fn nodes_and_means_and_remedy_are_named_for_each_profile() {
    let mut fleet = pool(Isolation::Software, &[]);
    given(&mut fleet, "n0", Isolation::None);
    let plan = fleet.plan();
    assert_eq!(reasons(&plan), ["EnforcementTooWeak"; 3], "not of whole GPUs and not of MPS: {:#?}", explain(&plan));
    let text = explain(&plan).join("\n");
    assert!(
        text.contains(
            "pool p offers no shares of profile turns on 1 node: spec.enforcement.minimum of the pool is Software, and there they are limited by None on n0 (limits are off: set agent.memoryLimits: Shim); or lower the minimum"
        ),
        "{text}"
    );
    given(&mut fleet, "n0", Isolation::Software);
    assert_eq!(fleet.plan().problems, []);
}

#[test]
fn guarantee_that_no_node_may_serve_is_a_shortage_with_the_minimum_as_its_cause() {
    let mut fleet = pool(Isolation::Software, &[("turns", 1)]);
    given(&mut fleet, "n0", Isolation::None);
    given(&mut fleet, "n1", Isolation::None);
    let plan = fleet.plan();
    assert_eq!(shared(&plan), Vec::<&str>::new());
    let shortage = plan.problems.iter().find(|p| p.reason() == "Shortage").unwrap().to_string();
    assert!(shortage.contains("spec.enforcement.minimum") && shortage.contains("n0, n1"), "{shortage}");
}

#[test]
fn stronger_minimum_leaves_the_shares_that_meet_it() {
    let served = |minimum| {
        let fleet = pool(minimum, &[("turns", 4), ("mps", 2)]);
        let tenant = fleet.plan().tenants.into_values().next().unwrap();
        ["turns", "mps"].map(|profile| tenant[profile].satisfied)
    };
    assert_eq!(served(Isolation::None), [4, 2]);
    assert_eq!(served(Isolation::Software), [4, 2]);
    assert_eq!(served(Isolation::Server), [0, 2]);
    assert_eq!(served(Isolation::Hardware), [0, 0]);
}

#[test]
fn driver_limits_shares_of_whole_gpus_and_no_slices_of_instances() {
    let fleet = |profile| {
        let mut fleet = pool(Isolation::Driver, &[(profile, 2)]);
        for node in ["n0", "n1"] {
            given(&mut fleet, node, Isolation::Driver);
        }
        fleet
    };
    let satisfied = |plan: &Plan, profile: &str| plan.tenants.values().next().unwrap()[profile].satisfied;
    let plan = fleet("turns").plan();
    assert_eq!(satisfied(&plan, "turns"), 2);
    let plan = fleet("slices").plan();
    assert_eq!(satisfied(&plan, "slices"), 0);
    // MPS shares of the pool are too weak as well
    let weak: Vec<String> = plan.problems.iter().map(ToString::to_string).collect();
    let of_slices = |text: &&String| {
        text.starts_with("pool p offers no shares of profile slices") && text.contains("Software on n0, n1")
    };
    assert_eq!(weak.iter().filter(of_slices).count(), 1, "{weak:?}");
}

#[test]
fn pods_keep_their_shares_and_idle_ones_are_no_supply_when_a_node_loses_its_limit() {
    let mut fleet = pool(Isolation::Software, &[("turns", 4)]).settle();
    let node = ["n0", "n1"]
        .into_iter()
        .find(|n| fleet.layout(n, 0).contains("shared") || fleet.layout(n, 1).contains("shared"));
    let node = node.unwrap();
    assert!(fleet.start("t", "pod", "nvidia.com/gpu.shared"));
    // without a minimum nothing changes
    given(&mut fleet, node, Isolation::None);
    fleet.pools[0].spec.enforcement.minimum = Isolation::None;
    assert!(fleet.plan().gpus.values().all(|gpu| !gpu.changed));
    fleet.pools[0].spec.enforcement.minimum = Isolation::Software;
    let plan = fleet.plan();
    assert_eq!(evictions(&plan), 0, "{:#?}", explain(&plan));
    assert_eq!(plan.tenants.values().next().unwrap()["turns"].satisfied, 4, "by the other node: {:#?}", explain(&plan));
    fleet.carry_out(&plan);
    let again = fleet.plan();
    assert!(again.gpus.values().all(|gpu| !gpu.changed), "{:#?}", explain(&again));
    // the one in use counts, and the three idle ones next to it do not
    let other = if node == "n0" { "n1" } else { "n0" };
    given(&mut fleet, other, Isolation::None);
    let plan = fleet.plan();
    assert_eq!(plan.tenants.values().next().unwrap()["turns"].satisfied, 1, "{:#?}", explain(&plan));
    assert_eq!(evictions(&plan), 0);
    given(&mut fleet, node, Isolation::Software);
    given(&mut fleet, other, Isolation::Software);
    let healed = fleet.plan();
    assert!(healed.gpus.values().all(|gpu| !gpu.changed), "{:#?}", explain(&healed));
    assert_eq!(healed.tenants.values().next().unwrap()["turns"].satisfied, 4);
}

#[test]
fn time_slices_of_instances_in_use_count_without_their_idle_neighbours() {
    let mut fleet = pool(Isolation::Software, &[("slices", 4)]).settle();
    assert!(fleet.start("t", "pod", "nvidia.com/mig-1g.10gb.shared"));
    for node in ["n0", "n1"] {
        given(&mut fleet, node, Isolation::None);
    }
    let plan = fleet.plan();
    assert_eq!(plan.tenants.values().next().unwrap()["slices"].satisfied, 1, "{:#?}", explain(&plan));
    assert_eq!(evictions(&plan), 0);
}

#[test]
fn fixed_layout_with_a_share_names_the_minimum_where_it_cannot_be() {
    let mut fleet = pool(Isolation::Software, &[]);
    let fixed = json!({"mode": "Fixed", "fixed": [{"gpus": "*", "profiles": [{"name": "turns", "count": 4}]}]});
    fleet.pools[0].spec.layout = serde_json::from_value(fixed).unwrap();
    given(&mut fleet, "n0", Isolation::None);
    let plan = fleet.plan();
    let misfit = plan.problems.iter().find(|p| p.reason() == "FixedDoesNotFit").unwrap().to_string();
    assert!(misfit.contains("node n0") && misfit.contains("spec.enforcement.minimum"), "{misfit}");
    assert_eq!(shared(&plan), ["n1", "n1"]);
}

#[test]
fn agent_that_has_not_reported_its_means_gets_no_shares() {
    let mut fleet = pool(Isolation::Software, &[("turns", 4)]);
    for member in &mut fleet.nodes {
        member.gpus.status.as_mut().unwrap().enforcement = None;
    }
    let plan = fleet.plan();
    assert!(shared(&plan).is_empty());
    assert!(explain(&plan).join("\n").contains("its agent has not reported"), "{:#?}", explain(&plan));
}

#[test]
fn node_that_leaves_freed_memory_as_it_is_serves_no_guarantee_unless_the_pool_accepts_it() {
    let with = |scrub, unscrubbed| {
        let mut fleet = pool(Isolation::None, &[("gpu", 4)]);
        fleet.pools[0].spec.enforcement.unscrubbed_memory = unscrubbed;
        fleet.nodes[0].gpus.status.as_mut().unwrap().memory_scrub = scrub;
        let plan = fleet.plan();
        (reasons(&plan).contains(&"Shortage".to_owned()), explain(&plan).join("\n"))
    };
    let (short, text) = with(Some(MemoryScrub::Off), UnscrubbedMemory::Refuse);
    assert!(
        short
            && text.contains("2 more cannot be used: a GPU of node ")
            && text.contains(": its driver leaves freed memory as it is"),
        "{text}"
    );
    assert!(!with(Some(MemoryScrub::Off), UnscrubbedMemory::Accept).0);
    for scrub in [Some(MemoryScrub::On), Some(MemoryScrub::Unknown), None] {
        assert!(!with(scrub, UnscrubbedMemory::Refuse).0, "{scrub:?}");
    }
}
