//! Time-slices in pools of NVIDIA's device plugin: all GPUs of a node without MIG are alike.

use gputenancy_crds::{Advertiser, Device, GpuPoolSpec, Partitioner};
use serde_json::{Value, json};

use crate::support::{boards::a100, fleet::Fleet};

fn device(spec: Value) -> Device {
    serde_json::from_value(spec).unwrap()
}

/// A pool of NVIDIA's plugin with these profiles, and one node of two GPUs.
fn pool(profiles: &[&str]) -> Fleet {
    let fleet = Fleet::default().whole("gpu").mig("mig-small", "1g.10gb");
    let fleet = fleet.profile("turns", device(json!({"timeSlice": {"replicas": 4}})));
    let fleet = fleet.profile("mps", device(json!({"mps": {"replicas": 4}})));
    let fleet = fleet.profile("part", device(json!({"fraction": {"memory": "10Gi", "compute": 15}})));
    let mut fleet = fleet.pool("p", profiles).node("n", "p", &[a100(), a100()]);
    fleet.pools[0].spec.advertiser = Advertiser::NvidiaDevicePlugin;
    fleet
}

fn shares(numbers: std::ops::Range<i32>) -> String {
    numbers.map(|n| format!("nvidia.com/gpu.shared#{n}")).collect::<Vec<_>>().join(" ")
}

fn layouts(fleet: &Fleet) -> [String; 2] {
    [0, 1].map(|gpu| fleet.layout("n", gpu))
}

#[test]
fn all_gpus_without_mig_are_time_sliced_before_any_tenant_needs_them() {
    let fleet = pool(&["turns"]).settle();
    assert_eq!(layouts(&fleet), [shares(0..4), shares(0..4)]);
    let again = fleet.plan();
    assert_eq!((again.problems.len(), again.gpus.values().filter(|g| g.changed).count()), (0, 0), "{again:?}");
}

#[test]
fn changed_replicas_are_numbered_from_0_and_owners_of_removed_numbers_leave() {
    let mut fleet = pool(&["turns"]).settle();
    (0..3).for_each(|n| fleet.start_at("team", &format!("pod-{n}"), ("n", 0, n)));
    fleet.profiles[2].spec.device = device(json!({"timeSlice": {"replicas": 2}}));
    let plan = fleet.plan();
    let evicted: Vec<&str> = plan.gpus.values().flat_map(|g| &g.evicts).map(|e| e.pod.name.as_str()).collect();
    assert_eq!(evicted, ["pod-2"]);
    fleet.apply(&plan);
    assert_eq!(layouts(&fleet), [shares(0..2), shares(0..2)]);
}

#[test]
fn gpus_are_whole_again_when_the_profile_leaves_the_pool() {
    for profiles in [&["gpu"][..], &["mig-small"], &["gpu", "turns"]] {
        let mut fleet = pool(&["turns"]).settle();
        fleet.pools[0].spec.profiles = profiles.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(layouts(&fleet.settle()), ["whole", "whole"], "{profiles:?}");
    }
}

#[test]
fn guaranteed_instances_take_single_gpus_and_the_others_stay_time_sliced() {
    let fleet = pool(&["turns", "mig-small"]).settle().tenant("team", &[("mig-small", 7)]).settle();
    let mut both = layouts(&fleet);
    both.sort();
    assert!(both[0].starts_with("1g.10gb@0") && both[1] == shares(0..4), "{both:?}");
}

type Edit<'a> = &'a dyn Fn(&mut GpuPoolSpec);

#[test]
fn shares_that_the_plugin_cannot_serve_are_refused_with_a_remedy() {
    let fixed = json!({"mode": "Fixed", "fixed": [{"gpus": "0", "profiles": [{"name": "turns", "count": 4}]}]});
    let as_is = |_: &mut GpuPoolSpec| {};
    let cases: [(&[&str], Edit<'_>); 6] = [
        (&["mps"], &as_is),
        (&["part"], &as_is),
        (&["turns", "gpu"], &as_is),
        (&["turns", "part"], &as_is),
        (&["turns"], &|pool| pool.layout = serde_json::from_value(fixed.clone()).unwrap()),
        (&["turns"], &|pool| pool.partitioner = Partitioner::MigManager),
    ];
    let mut lines = Vec::new();
    for (profiles, edit) in cases {
        let mut fleet = pool(profiles);
        edit(&mut fleet.pools[0].spec);
        let problems = fleet.plan().problems;
        lines.extend(problems.iter().map(|p| format!("{}: {p}", p.reason())));
        assert_eq!(layouts(&fleet.settle()), ["whole", "whole"], "{profiles:?}");
    }
    let mut renamed = pool(&["turns"]);
    renamed.profiles[2].spec.resource_name = Some("example.com/turn".into());
    lines.extend(renamed.plan().problems.iter().map(|p| format!("{}: {p}", p.reason())));
    insta::assert_snapshot!(lines.join("\n"));
}
