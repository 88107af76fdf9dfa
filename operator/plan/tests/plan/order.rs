//! Order of importance: priorities of tenants and pods, outages, changes in progress, and placement.

use gputenancy_crds::{Change, ChangePhase};
use gputenancy_plan::{Plan, Problem, explain};
use serde_json::json;

use crate::support::{boards::a100, fleet::Fleet};

const MIG_1G: &str = "nvidia.com/mig-1g.10gb";

fn catalog() -> Fleet {
    Fleet::default().mig("mig-1g", "1g.10gb").mig("mig-3g", "3g.40gb").mig("mig-4g", "4g.40gb").whole("gpu")
}

fn evicted(plan: &Plan) -> Vec<String> {
    plan.gpus.values().flat_map(|g| &g.evicts).map(|e| e.pod.to_string()).collect()
}

fn got(plan: &Plan, tenant: &str, profile: &str) -> u32 {
    plan.tenants[tenant].get(profile).unwrap().satisfied
}

fn prioritised(mut fleet: Fleet, tenant: &str, priority: i32) -> Fleet {
    let found = fleet.tenants.iter_mut().find(|t| t.metadata.name.as_deref() == Some(tenant)).unwrap();
    found.spec.priority = priority;
    fleet
}

#[test]
fn shortage_serves_higher_priority_first_and_splits_equal_priority_evenly() {
    let fleet = catalog().pool("p", &["mig-1g"]).node("n", "p", &[a100()]);
    let fleet = fleet.tenant("a", &[("mig-1g", 6)]).tenant("b", &[("mig-1g", 6)]);
    let equal = fleet.plan();
    assert!(got(&equal, "a", "mig-1g").abs_diff(got(&equal, "b", "mig-1g")) <= 1, "{:?}", equal.tenants);
    let plan = prioritised(fleet, "b", 1).plan();
    assert_eq!((got(&plan, "a", "mig-1g"), got(&plan, "b", "mig-1g")), (1, 6));
}

#[test]
fn shortage_splits_by_share_of_the_guarantee() {
    let fleet = catalog().pool("p", &["mig-1g"]).node("n", "p", &[a100()]);
    let plan = fleet.tenant("large", &[("mig-1g", 12)]).tenant("small", &[("mig-1g", 2)]).plan();
    assert_eq!((got(&plan, "large", "mig-1g"), got(&plan, "small", "mig-1g")), (6, 1));
}

#[test]
fn stranded_slices_are_the_compute_slice_of_two_halves_and_the_memory_slice_of_seven_parts() {
    let stranded = |profile: &str, count: i32| {
        let fleet = catalog().pool("p", &[profile]).node("n", "p", &[a100()]).tenant("t", &[(profile, count)]);
        let stranded = fleet.settle().plan().stranded["p"];
        (stranded.compute, stranded.memory)
    };
    assert_eq!((stranded("mig-3g", 2), stranded("mig-1g", 7), stranded("mig-1g", 0)), ((1, 0), (0, 1), (0, 0)));
}

#[test]
fn conflicting_profiles_follow_the_higher_priority() {
    let fleet = catalog().pool("p", &["mig-1g", "mig-3g"]).node("n", "p", &[a100()]);
    let fleet = fleet.tenant("ones", &[("mig-1g", 7)]).tenant("threes", &[("mig-3g", 2)]);
    for (first, profile, all) in [("ones", "mig-1g", 7), ("threes", "mig-3g", 2)] {
        let plan = prioritised(fleet.clone(), first, 3).plan();
        assert_eq!(got(&plan, first, profile), all, "{:?}", plan.tenants);
    }
}

#[test]
fn higher_priority_never_removes_a_guaranteed_device_in_use() {
    let fleet = catalog().pool("p", &["mig-1g", "mig-3g"]).node("n", "p", &[a100()]);
    let mut fleet = fleet.tenant("ones", &[("mig-1g", 7)]).settle();
    for pod in 0..7 {
        assert!(fleet.start("ones", &format!("pod-{pod}"), MIG_1G));
    }
    let plan = prioritised(fleet.tenant("threes", &[("mig-3g", 1)]), "threes", 5).plan();
    assert_eq!(evicted(&plan), Vec::<String>::new());
    assert_eq!(got(&plan, "ones", "mig-1g"), 7);
}

/// Two GPUs with a pod each in the way of a third 3g.40gb.
fn two_pods_in_the_way() -> Fleet {
    let fleet = catalog().pool("p", &["mig-1g", "mig-3g"]).node("n", "p", &[a100(), a100()]);
    let mut fleet = fleet.tenant("ones", &[("mig-1g", 14)]).settle();
    fleet.start_at("ones", "left", ("n", 0, 0));
    fleet.start_at("ones", "middle", ("n", 0, 4));
    fleet.start_at("ones", "right", ("n", 1, 0));
    fleet.start_at("ones", "far", ("n", 1, 4));
    fleet.tenant("ones", &[("mig-1g", 4)]).tenant("threes", &[("mig-3g", 2)])
}

#[test]
fn eviction_spares_pods_of_higher_priority_class() {
    let mut fleet = two_pods_in_the_way();
    let mut light = |important: &[(&str, i32)]| {
        fleet.priorities = important.iter().map(|(pod, value)| (("ones".into(), (*pod).into()), *value)).collect();
        evicted(&fleet.plan())
    };
    let names = ["left", "middle", "right", "far"];
    let first = light(&[]);
    assert!(!first.is_empty());
    for name in names {
        let gone = light(&[(name, 1_000_000)]);
        assert!(!gone.contains(&format!("ones/{name}")), "{name} is important: {gone:?}");
        assert_eq!(gone.len(), first.len());
    }
}

fn last_of_its_kind(allow: bool) -> Plan {
    let mut fleet = catalog().pool("p", &["mig-1g", "mig-3g"]).node("n", "p", &[a100()]);
    fleet.pools[0].spec.disruption.allow_outage = allow;
    let mut fleet = fleet.tenant("ones", &[("mig-1g", 2)]).settle();
    fleet.start_at("ones", "one", ("n", 0, 0));
    // the guarantee is gone, the pod still runs
    fleet.tenant("ones", &[]).tenant("threes", &[("mig-3g", 2)]).plan()
}

#[test]
fn last_gpu_of_a_profile_in_use_stays_unless_outage_is_allowed() {
    let refused = last_of_its_kind(false);
    assert_eq!(evicted(&refused), Vec::<String>::new());
    assert_eq!(got(&refused, "threes", "mig-3g"), 1);
    insta::assert_snapshot!(explain(&refused).join("\n"));
    let allowed = last_of_its_kind(true);
    assert_eq!(evicted(&allowed), ["ones/one"]);
    assert_eq!(allowed.problems, []);
}

#[test]
fn fixed_layout_that_removes_the_last_gpu_in_use_is_refused() {
    let fixed =
        |name: &str| json!({"mode": "Fixed", "fixed": [{"gpus": "*", "profiles": [{"name": name, "count": 1}]}]});
    let mut fleet =
        catalog().pool_with("p", &["mig-1g", "mig-3g"], &fixed("mig-1g")).node("n", "p", &[a100()]).settle();
    assert!(fleet.start("a", "one", MIG_1G));
    fleet.pools[0].spec.layout = serde_json::from_value(fixed("mig-3g")).unwrap();
    let refused = fleet.plan();
    assert!(refused.gpus.values().all(|g| !g.changed), "{:#?}", explain(&refused));
    let messages = refused.problems.iter().map(|p| format!("{}: {p}", p.reason())).collect::<Vec<_>>();
    insta::assert_snapshot!(messages.join("\n"));
    fleet.pools[0].spec.disruption.allow_outage = true;
    let plan = fleet.plan();
    // 1g.10gb at 0 fits next to 3g.40gb at 4, and is removed because the fixed layout lacks it
    assert_eq!(evicted(&plan), ["a/one"]);
}

#[test]
fn fixed_layout_that_does_not_fit_is_refused_with_numbers() {
    let mut messages = Vec::new();
    for (a, b, c) in [(2, 0, 0), (1, 1, 1), (0, 3, 0)] {
        let wanted = [("mig-4g", a), ("mig-3g", b), ("mig-1g", c)];
        let profiles: Vec<_> =
            wanted.iter().filter(|(_, n)| *n > 0).map(|(p, n)| json!({"name": p, "count": n})).collect();
        let layout = json!({"mode": "Fixed", "fixed": [{"gpus": "0", "profiles": profiles}]});
        let plan = catalog().pool_with("p", &["mig-1g", "mig-3g", "mig-4g"], &layout).node("n", "p", &[a100()]).plan();
        assert!(matches!(plan.problems.as_slice(), [Problem::FixedDoesNotFit { .. }]), "{:?}", plan.problems);
        messages.extend(plan.problems.iter().map(ToString::to_string));
    }
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn shortage_names_the_pods_in_the_way() {
    let fleet = catalog().pool("p", &["mig-1g", "mig-3g"]).node("gpu-node-3", "p", &[a100()]);
    let mut fleet = fleet.tenant("team-a", &[("mig-1g", 7)]).settle();
    for start in [0, 1, 2, 4, 6] {
        fleet.start_at("team-a", &format!("pod-{start}"), ("gpu-node-3", 0, start));
    }
    let plan = fleet.tenant("team-a", &[("mig-1g", 5)]).tenant("team-b", &[("mig-3g", 1)]).plan();
    insta::assert_snapshot!(explain(&plan).join("\n"));
    let for_tenant: Vec<String> = plan.problems.iter().map(Problem::for_tenant).collect();
    let [message] = for_tenant.as_slice() else { panic!("one problem: {for_tenant:?}") };
    assert!(
        message.ends_with("lower a guarantee; the platform's administrators see in status.unsatisfied of GpuPool p which pods could be moved"),
        "{message}"
    );
    assert!(!message.contains("pod-"), "{message}");
}

#[test]
fn change_in_progress_keeps_its_target() {
    let fleet = two_pods_in_the_way();
    let first = fleet.plan();
    let (key, gpu) = first.gpus.iter().find(|(_, g)| g.changed && !g.evicts.is_empty()).unwrap();
    let target = gpu.target.as_deref().cloned().unwrap();
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    for phase in [
        ChangePhase::Noticed,
        ChangePhase::Held,
        ChangePhase::Evicting,
        ChangePhase::Idle,
        ChangePhase::Partitioning,
        ChangePhase::Verifying,
    ] {
        for gone in [false, true] {
            let mut fleet = fleet.clone();
            let member = fleet.nodes.iter_mut().find(|n| n.name == key.node.as_str()).unwrap();
            let spec = member.gpus.spec.gpus.iter_mut().find(|g| g.uuid == key.uuid.as_str()).unwrap();
            let from = spec.layout();
            spec.change = Some(Change {
                phase,
                from: from.clone(),
                to: target.clone(),
                started_at: now.clone(),
                phase_since: now.clone(),
                evict_after: None,
                intent: String::new(),
                failures: 0,
                reason: String::new(),
            });
            if gone {
                // evicted, and pending
                let state = member.gpus.status.as_mut().unwrap().gpus.iter_mut().find(|g| g.uuid == key.uuid.as_str());
                for device in crate::support::fleet::devices(state.unwrap()) {
                    let owner = device.owner.as_ref().map(|o| format!("{}/{}", o.namespace, o.pod));
                    if owner.is_some_and(|o| gpu.evicts.iter().any(|e| e.pod.to_string() == o)) {
                        (device.owner, device.clients) = (None, 0);
                    }
                }
            }
            let next = fleet.plan();
            assert_eq!(
                next.gpus.get(key).unwrap().target.as_deref(),
                Some(&target),
                "{phase:?}, gone: {gone}: {:#?}",
                explain(&next)
            );
            assert!(!next.gpus.get(key).unwrap().changed);
        }
    }
}

#[test]
fn new_instances_go_to_nodes_with_the_fewest_of_them() {
    let mut fleet = catalog().pool("p", &["mig-3g"]);
    for node in ["a", "b", "c"] {
        fleet = fleet.node(node, "p", &[a100(), a100()]);
    }
    let fleet = fleet.tenant("t", &[("mig-3g", 2)]).settle().tenant("t", &[("mig-3g", 6)]).settle();
    for node in ["a", "b", "c"] {
        let layouts = [fleet.layout(node, 0), fleet.layout(node, 1)].concat();
        assert_eq!(layouts.matches("3g").count(), 2, "{node}: {layouts}");
    }
}
