//! Plans in common situations.

use gputenancy_crds::{
    Advertiser, ChangePhase, Device, Health, Holder, InstanceSpec, Layout, Mig, MigMode, QueueingSystem, Strategy,
};
use gputenancy_plan::{Plan, Problem, explain};
use serde_json::json;

use crate::support::{
    boards::{a30, a100, rtx6000, t4},
    fleet::{Fleet, carve},
};

const MIG_1G: &str = "nvidia.com/mig-1g.10gb";
const MIG_3G: &str = "nvidia.com/mig-3g.40gb";

fn catalog() -> Fleet {
    Fleet::default().mig("mig-1g", "1g.10gb").mig("mig-2g", "2g.20gb").mig("mig-3g", "3g.40gb").whole("gpu")
}

fn demo() -> Fleet {
    catalog().pool("inference", &["mig-1g", "mig-3g", "gpu"]).node("gpu-node-1", "inference", &[a100(), a100()]).node(
        "gpu-node-2",
        "inference",
        &[a100(), a100()],
    )
}

fn evicted(plan: &Plan) -> Vec<String> {
    plan.gpus.values().flat_map(|g| &g.evicts).map(|e| e.pod.to_string()).collect()
}

fn touched(plan: &Plan) -> usize {
    plan.gpus.values().filter(|g| g.changed).count()
}

fn problems(plan: &Plan) -> Vec<String> {
    plan.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn guarantees_that_fit_on_one_gpu_change_one_gpu() {
    let fleet = demo().tenant("team-a", &[("mig-1g", 2)]).tenant("team-b", &[("mig-3g", 1)]).settle();
    assert_eq!(fleet.layout("gpu-node-1", 0), "1g.10gb@0 1g.10gb@1 3g.40gb@4");
    for (node, gpu) in [("gpu-node-1", 1), ("gpu-node-2", 0), ("gpu-node-2", 1)] {
        assert_eq!(fleet.layout(node, gpu), "whole");
    }
    assert!(fleet.plan().problems.is_empty());
    assert_eq!(touched(&fleet.plan()), 0, "nothing is left to do");
}

#[test]
fn profile_that_exists_keeps_its_resource_from_a_new_one_with_an_earlier_name() {
    let mut fleet = demo().mig("dup-1g", "1g.10gb").tenant("team-a", &[("mig-1g", 2)]);
    fleet.pools[0].spec.profiles.push("dup-1g".into());
    let existing = fleet.profiles.iter_mut().find(|p| p.metadata.name.as_deref() == Some("mig-1g")).unwrap();
    existing.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let read = fleet.snapshot().1.into_iter().map(|problem| problem.to_string());
    let problems: Vec<String> = read.chain(problems(&fleet.plan())).collect();
    let refused = |p: &String| p.contains("profile dup-1g uses resource") && p.contains("profile mig-1g has already");
    assert!(problems.iter().any(refused), "{problems:?}");
    assert!(!problems.iter().any(|p| p.contains("create GpuProfile")), "{problems:?}");
    let of_pool = fleet.snapshot().1.into_iter().filter(|problem| problem.concerns_pool("inference"));
    let reasons: Vec<String> = of_pool.map(|problem| problem.reason().to_string()).collect();
    assert_eq!(reasons, ["ResourceNameConflict"], "the pool lists the refused profile");
}

#[test]
fn shortage_names_nodes_that_several_pools_select_and_the_remedy() {
    let mut fleet = catalog().pool("p", &["gpu"]).pool("q", &["gpu"]).node("n", "p", &[a100()]);
    fleet.pools[1].spec.node_selector = fleet.pools[0].spec.node_selector.clone();
    let fleet = fleet.tenant("t", &[("gpu", 1)]);
    let expected = "tenant t is guaranteed 1 of profile gpu and gets 0: pools p and q have no GPU that can be partitioned into it, \
                    and node n is selected by pools p and q: narrow spec.nodeSelector of one pool, or add nodes with such boards";
    assert_eq!(problems(&fleet.plan()), [expected]);

    let fleet = fleet.pool("r", &["gpu"]).node("m", "r", &[a100()]).tenant("t", &[("gpu", 2)]);
    let text = problems(&fleet.plan()).join(" | ");
    let able = "1 GPU of pools p, q and r can carry it, and node n is selected by pools p and q, with room for 1 ";
    assert!(text.contains(able) && text.contains(": narrow spec.nodeSelector of one pool, or add GPUs"), "{text}");

    let mut fleet = fleet;
    fleet.pools.remove(1);
    assert_eq!(problems(&fleet.plan()), Vec::<String>::new(), "one pool selects the node");
}

#[test]
fn products_of_labels_do_not_divide_a_pool() {
    let plain = demo().tenant("team-a", &[("mig-1g", 9)]);
    let mut labelled = demo().tenant("team-a", &[("mig-1g", 9)]);
    for (node, product) in
        labelled.nodes.iter_mut().zip(["NVIDIA-A100-SXM4-80GB-SHARED", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"])
    {
        node.labels.insert("nvidia.com/gpu.product".to_owned(), product.to_owned());
    }
    let (plain, labelled) = (plain.settle(), labelled.settle());
    for (node, gpu) in [("gpu-node-1", 0), ("gpu-node-1", 1), ("gpu-node-2", 0), ("gpu-node-2", 1)] {
        assert_eq!(plain.layout(node, gpu), labelled.layout(node, gpu));
    }
    assert_eq!(problems(&labelled.plan()), Vec::<String>::new());
}

#[test]
fn grown_guarantee_takes_free_gpus_first() {
    let mut fleet = demo().tenant("team-a", &[("mig-1g", 2)]).tenant("team-b", &[("mig-3g", 1)]).settle();
    for pod in ["one", "two"] {
        assert!(fleet.start("team-a", pod, MIG_1G));
    }
    assert!(fleet.start("team-b", "three", MIG_3G));
    let plan = fleet.tenant("team-b", &[("mig-3g", 4)]).plan();
    assert_eq!(evicted(&plan), Vec::<String>::new());
    assert_eq!(problems(&plan), Vec::<String>::new());
    assert_eq!(touched(&plan), 2, "three more 3g.40gb need two GPUs");
}

#[test]
fn scarce_gpus_evict_only_the_pod_in_the_way() {
    // 1g pods on two GPUs; seven 3g.40gb need one of these GPUs as a whole, the other keeps both 1g.
    let mut fleet = demo().tenant("team-a", &[("mig-1g", 2)]).tenant("team-b", &[("mig-3g", 6)]).settle();
    let status = |fleet: &mut Fleet, node: usize, gpu: usize, layout| {
        let member = &mut fleet.nodes[node].gpus;
        let spec = member.spec.gpus.iter_mut().find(|g| g.uuid == format!("GPU-gpu-node-{}-{gpu}", node + 1)).unwrap();
        spec.mig = true;
        spec.instances = serde_json::from_value(layout).unwrap();
        let layout = spec.layout();
        carve(&mut member.status.as_mut().unwrap().gpus[gpu], &layout);
    };
    let split = json!([{"start": 0, "profile": "1g.10gb"}, {"start": 4, "profile": "3g.40gb"}]);
    let both = json!([{"start": 0, "profile": "3g.40gb"}, {"start": 4, "profile": "3g.40gb"}]);
    status(&mut fleet, 0, 0, split.clone());
    status(&mut fleet, 0, 1, both.clone());
    status(&mut fleet, 1, 0, both);
    status(&mut fleet, 1, 1, split);
    fleet.start_at("team-a", "one", ("gpu-node-1", 0, 0));
    fleet.start_at("team-a", "two", ("gpu-node-2", 1, 0));
    for pod in ["x", "y", "z"] {
        assert!(fleet.start("team-b", pod, MIG_3G));
    }
    assert_eq!(touched(&fleet.plan()), 0);
    let mut fleet = fleet.tenant("team-b", &[("mig-3g", 7)]);
    let plan = fleet.plan();
    assert_eq!(problems(&plan), Vec::<String>::new());
    assert_eq!(evicted(&plan).len(), 1, "{:#?}", explain(&plan));
    assert!(evicted(&plan)[0].starts_with("team-a/"));
    assert_eq!(touched(&plan), 2, "one GPU loses its 1g, the other gains it: {:#?}", explain(&plan));
    let ranks: Vec<u8> = plan.gpus.values().filter(|g| g.changed).map(|g| g.rank).collect();
    assert!(ranks.contains(&0) && ranks.contains(&1), "the new device exists before the pod is evicted");
    insta::assert_snapshot!(explain(&plan).join("\n"));
    fleet.apply(&plan);
    assert!(fleet.start("team-a", "one", MIG_1G), "a device is free for the evicted pod");
    assert_eq!(touched(&fleet.plan()), 0);
}

#[test]
fn free_instance_is_removed_before_one_in_use() {
    let mut fleet = catalog().pool("p", &["mig-1g", "mig-3g"]).node("n", "p", &[a100(), a100()]);
    fleet = fleet.tenant("team-a", &[("mig-1g", 14)]).settle();
    fleet.start_at("team-a", "one", ("n", 0, 5));
    let plan = fleet.tenant("team-a", &[("mig-1g", 6), ("mig-3g", 2)]).plan();
    assert_eq!(evicted(&plan), Vec::<String>::new());
    assert_eq!(problems(&plan), Vec::<String>::new());
}

#[test]
fn device_without_known_pod_is_supply_and_one_with_an_unattributed_process_is_not() {
    let mut fleet = demo().tenant("team-a", &[("mig-1g", 2)]).settle();
    assert!(fleet.start("team-a", "one", MIG_1G));
    let gpu = &mut fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[0];
    let device = gpu.instances[0].device.as_mut().unwrap();
    device.owner = None;
    assert_eq!(device.clients, 1);
    let holder = Holder { pid: 7, command: "python3".into(), start: Some(gpu.instances[0].start), container: None };
    assert_eq!(touched(&fleet.plan()), 0);
    fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[0].holders.push(holder);
    assert_eq!(fleet.settle().layout("gpu-node-1", 0), "1g.10gb@0 1g.10gb@1 1g.10gb@2");
}

#[test]
fn request_by_size_takes_the_smallest_instance_of_each_board() {
    let size = |slices, memory: &str| Device {
        mig: Some(Mig { slices: Some(slices), memory: serde_json::from_value(json!(memory)).ok(), ..Mig::default() }),
        ..Device::default()
    };
    let fleet = Fleet::default().profile("small", size(1, "5Gi")).profile("medium", size(2, "10Gi"));
    let fleet = fleet.pool("p", &["small", "medium"]).node("a", "p", &[a30()]).node("b", "p", &[rtx6000()]);
    let fleet = fleet.tenant("t", &[("small", 2), ("medium", 2)]).settle();
    assert_eq!(fleet.plan().problems, []);
    let all = format!("{} {}", fleet.layout("a", 0), fleet.layout("b", 0));
    assert!(!all.contains("me"), "plain profiles before variants: {all}");
    let profiles = fleet.plan().profiles;
    assert!(profiles.values().all(|s| s.after >= 2), "{profiles:?}");
}

#[test]
fn media_engines_limit_instances_on_one_gpu() {
    let fleet = Fleet::default().mig("media", "1g.24gb+me.all").mig("plain", "1g.24gb").mig("bare", "1g.24gb-me");
    let fleet = fleet.pool("p", &["media", "plain", "bare"]).node("n", "p", &[rtx6000()]);
    let fits = fleet.clone().tenant("t", &[("media", 1), ("bare", 3)]).plan();
    assert_eq!(fits.problems, []);
    let does_not = fleet.tenant("t", &[("media", 1), ("plain", 1)]).plan();
    assert!(matches!(does_not.problems.as_slice(), [Problem::Shortage { .. }]), "{:?}", does_not.problems);
}

#[test]
fn board_without_mig_stays_unchanged_in_a_mig_pool() {
    let fleet = catalog().pool("p", &["mig-1g"]).node("n", "p", &[t4(), a100()]);
    let plan = fleet.clone().tenant("t", &[("mig-1g", 1)]).plan();
    let targets: Vec<_> = plan.gpus.values().map(|g| g.target.is_some()).collect();
    assert_eq!(targets, [false, true]);
    let plan = fleet.plan();
    assert!(
        plan.gpus.values().all(|g| !g.changed && g.target.is_none()),
        "without demand no GPU is partitioned or listed"
    );
}

#[test]
fn spare_gpus_follow_the_policy_of_their_pool() {
    let start = |spare| {
        let fleet = catalog().pool_with("p", &["mig-1g", "mig-3g", "gpu"], &json!({"spare": spare}));
        fleet
            .node("n", "p", &[a100(), a100()])
            .tenant("t", &[("mig-1g", 1), ("mig-3g", 3)])
            .settle()
            .tenant("t", &[("mig-1g", 1)])
    };
    let keep = start(json!({})).settle();
    assert_eq!([keep.layout("n", 0), keep.layout("n", 1)].concat().matches("3g").count(), 3);
    let whole = start(json!({"policy": "Whole"})).settle();
    assert_eq!([whole.layout("n", 0), whole.layout("n", 1)].iter().filter(|l| *l == "whole").count(), 1);
    assert_eq!(touched(&whole.plan()), 0);
    let fill = start(json!({"policy": "Fill", "profile": "mig-1g"})).settle();
    let layouts = [fill.layout("n", 0), fill.layout("n", 1)].concat();
    assert_eq!((layouts.matches("3g").count(), layouts.matches("1g").count()), (3, 4), "{layouts}");
    assert_eq!(touched(&fill.plan()), 0);
}

/// A pool with `strategy: Single` and a profile of MIG instances as `nvidia.com/gpu`.
fn single() -> Fleet {
    let mut fleet = Fleet::default().mig("slice", "2g.20gb").mig("other", "1g.10gb").pool("p", &["slice"]);
    fleet.profiles[0].spec.resource_name = Some("nvidia.com/gpu".to_owned());
    fleet.pools[0].spec.strategy = Some(Strategy::Single);
    fleet
}

#[test]
fn every_gpu_of_a_single_pool_has_as_many_instances_of_its_profile_as_fit() {
    let slices = "2g.20gb@0 2g.20gb@2 2g.20gb@4";
    let mut fleet = single().node("n", "p", &[a100(), a100(), a100()]).tenant("t", &[("slice", 1)]);
    let foreign = ["1g.10gb", "3g.40gb"].iter().zip([0, 4]);
    let foreign = foreign.map(|(profile, start)| InstanceSpec {
        start,
        profile: (*profile).into(),
        resource: None,
        replicas: None,
    });
    let foreign = Layout { mig: true, instances: foreign.collect(), ..Layout::default() };
    carve(&mut fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[1], &foreign);
    let mut fleet = fleet.settle();
    assert_eq!(
        [0, 1, 2].map(|gpu| fleet.layout("n", gpu)),
        [slices; 3],
        "idle instances of other profiles are replaced"
    );
    assert!(fleet.start("t", "pod", "nvidia.com/gpu"));
    let plan = fleet.plan();
    assert_eq!((touched(&plan), problems(&plan)), (0, Vec::new()));
}

#[test]
fn slices_of_a_former_size_and_whole_gpus_are_no_devices_of_a_single_pool() {
    let gpus = [a100(), a100()];
    let mut fleet = single().node("n", "p", &gpus).tenant("t", &[("slice", 2)]).settle();
    fleet.profiles[0].spec.device.mig = Some(Mig { profile: Some("3g.40gb".into()), ..Mig::default() });
    let fleet = fleet.settle();
    assert_eq!(
        [0, 1].map(|gpu| fleet.layout("n", gpu)),
        ["3g.40gb@0 3g.40gb@4"; 2],
        "a larger size replaces the smaller"
    );

    let mut fleet =
        Fleet::default().whole("gpu").pool("p", &["gpu"]).node("n", "p", &gpus).tenant("t", &[("gpu", 2)]).settle();
    assert_eq!([0, 1].map(|gpu| fleet.layout("n", gpu)), ["whole"; 2]);
    fleet.profiles = single().profiles;
    fleet.pools = single().pools;
    let mut fleet = fleet.tenant("t", &[("slice", 2)]).settle();
    assert_eq!(fleet.layout("n", 0).matches("2g.20gb").count(), 3);

    // and back: slices do not count as whole GPUs
    fleet.profiles = Fleet::default().whole("gpu").profiles;
    fleet.pools = Fleet::default().pool("p", &["gpu"]).pools;
    let fleet = fleet.tenant("t", &[("gpu", 2)]).settle();
    assert_eq!([0, 1].map(|gpu| fleet.layout("n", gpu)), ["whole"; 2]);
}

/// One GPU with three instances of profile `sre`, without a guarantee, and then the profile asks for a larger instance under this resource.
fn resized(resource: &str, in_use: bool) -> Fleet {
    let fleet = Fleet::default().mig("sre", "1g.10gb").pool("p", &["sre"]).node("n", "p", &[a100()]);
    let mut fleet = fleet.tenant("t", &[("sre", 3)]);
    fleet.profiles[0].spec.resource_name = Some(resource.to_owned());
    let mut fleet = fleet.settle();
    assert_eq!(fleet.layout("n", 0), "1g.10gb@0 1g.10gb@1 1g.10gb@2");
    if in_use {
        fleet.start_at("t", "pod", ("n", 0, 1));
    }
    fleet.profiles[0].spec.device.mig = Some(Mig { profile: Some("2g.20gb".into()), ..Mig::default() });
    fleet.tenant("t", &[])
}

#[test]
fn idle_instances_of_a_former_shape_lose_the_resource_of_their_profile() {
    let resources = |fleet: &Fleet| -> Vec<Option<String>> {
        fleet.nodes[0].gpus.spec.gpus[0].instances.iter().map(|i| i.resource.clone()).collect()
    };
    let own = Some("gputenancy.io/sre".to_owned());
    let mut fleet = resized("gputenancy.io/sre", true);
    let plan = fleet.plan();
    assert_eq!((evicted(&plan), plan.profiles["sre"].after), (Vec::new(), 0), "{:#?}", explain(&plan));
    fleet.apply(&plan);
    assert_eq!(fleet.layout("n", 0), "1g.10gb@0 1g.10gb@1 1g.10gb@2");
    assert_eq!(resources(&fleet), [None, own, None], "the pod keeps its device");
    assert_eq!(touched(&fleet.plan()), 0);

    // the last one follows when its pod ends
    let device = fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[0].instances[1].device.as_mut().unwrap();
    (device.owner, device.clients) = (None, 0);
    let fleet = fleet.settle();
    assert_eq!(resources(&fleet), [None::<String>, None, None]);
    assert_eq!(touched(&fleet.plan()), 0);
}

#[test]
fn idle_instances_of_a_former_shape_are_removed_where_their_usual_resource_is_that_of_the_profile() {
    let fleet = resized(MIG_1G, false).settle();
    assert_eq!(fleet.layout("n", 0), "");
    assert_eq!(touched(&fleet.plan()), 0);
}

#[test]
fn instances_of_a_former_size_stay_devices_of_a_profile_by_size_unless_they_are_too_small() {
    let size = |slices| Device { mig: Some(Mig { slices: Some(slices), ..Mig::default() }), ..Device::default() };
    let fleet = Fleet::default().profile("sre", size(2)).pool("p", &["sre"]).node("n", "p", &[a100()]);
    let fleet = fleet.tenant("t", &[("sre", 1)]).settle();
    assert!(fleet.layout("n", 0).starts_with("2g.20gb@"), "{}", fleet.layout("n", 0));
    let smaller = fleet.clone().profile("sre", size(1)).plan();
    assert_eq!((touched(&smaller), smaller.profiles["sre"].after), (0, 1));
    let larger = fleet.profile("sre", size(3)).tenant("t", &[]).settle();
    assert_eq!(larger.nodes[0].gpus.spec.gpus[0].instances[0].resource, None);
}

#[test]
fn every_board_of_a_single_pool_must_have_its_profile() {
    let plan = single().node("n", "p", &[a100()]).node("m", "p", &[t4()]).plan();
    let text = problems(&plan).join(" | ");
    assert!(text.contains("pool p lists profile slice, but none of its boards"), "{text}");
    let mut mixed = Fleet::default().mig("slice", "2g.20gb").pool("p", &["slice"]).node("n", "p", &[a100()]);
    mixed = mixed.node("m", "p", &[t4()]);
    assert_eq!(problems(&mixed.plan()), Vec::<String>::new(), "one board is enough elsewhere");
}

#[test]
fn resource_of_whole_gpus_and_strategy_of_the_pool_must_agree() {
    let mut mixed = single();
    mixed.pools[0].spec.strategy = Some(Strategy::Mixed);
    let plan = mixed.node("n", "p", &[a100()]).tenant("t", &[("slice", 1)]).plan();
    let text = problems(&plan).join(" | ");
    assert!(
        text.contains("pool p does not offer profile slice") && text.contains("write spec.strategy: Single"),
        "{text}"
    );
    assert_eq!(touched(&plan), 0);

    let mut named = single();
    named.profiles[0].spec.resource_name = None;
    let text = problems(&named.node("n", "p", &[a100()]).plan()).join(" | ");
    assert!(text.contains("write spec.resourceName: nvidia.com/gpu"), "{text}");

    let mut whole = Fleet::default().whole("gpu").pool("p", &["gpu"]);
    whole.pools[0].spec.strategy = Some(Strategy::Single);
    let text = problems(&whole.node("n", "p", &[a100()]).plan()).join(" | ");
    assert!(text.contains("list a profile with device.mig"), "{text}");
}

#[test]
fn fixed_layout_applies_by_index_and_keeps_devices_in_use() {
    let fixed = json!([
        {"gpus": "0", "profiles": [{"name": "mig-3g", "count": 1}, {"name": "mig-1g", "count": 2}]},
        {"gpus": "1-3", "profiles": [{"name": "gpu", "count": 1}]},
    ]);
    let layout = json!({"mode": "Fixed", "fixed": fixed});
    let fleet = catalog().pool_with("p", &["mig-1g", "mig-3g", "gpu"], &layout).node("n", "p", &[a100(), a100()]);
    let mut fleet = fleet.tenant("t", &[("mig-1g", 2)]).settle();
    assert_eq!(fleet.layout("n", 0).matches("1g.10gb").count(), 2);
    assert_eq!(fleet.layout("n", 1), "whole");
    assert_eq!(touched(&fleet.plan()), 0);
    let before = fleet.layout("n", 0);
    fleet.start("t", "one", MIG_1G);
    let fixed = json!([{"gpus": "*", "profiles": [{"name": "mig-3g", "count": 1}, {"name": "mig-1g", "count": 1}]}]);
    fleet.pools[0].spec.layout = serde_json::from_value(json!({"mode": "Fixed", "fixed": fixed})).unwrap();
    let plan = fleet.plan();
    assert_eq!(evicted(&plan), Vec::<String>::new(), "was {before}");
    let fixed = json!([{"gpus": "*", "profiles": [{"name": "mig-3g", "count": 2}, {"name": "mig-1g", "count": 1}]}]);
    fleet.pools[0].spec.layout = serde_json::from_value(json!({"mode": "Fixed", "fixed": fixed})).unwrap();
    let plan = fleet.plan();
    assert_eq!(plan.problems.iter().filter(|p| p.reason() == "FixedDoesNotFit").count(), 2);
    assert!(plan.gpus.values().all(|g| !g.changed), "a layout that does not fit changes nothing");
}

#[test]
fn every_problem_names_object_number_and_remedy() {
    let shared = serde_json::from_value(json!({"fraction": {"memory": "90Gi", "compute": 10}})).unwrap();
    let fleet =
        catalog().mig("odd", "1g.6gb").profile("turns", shared).pool("p", &["mig-1g", "odd", "turns", "nowhere"]);
    let mut fleet =
        fleet.node("n", "p", &[a100()]).tenant("a", &[("mig-1g", 9), ("missing", 1)]).tenant("b", &[("mig-2g", 1)]);
    fleet.profiles[0].spec.trust = Some(gputenancy_crds::Trust::Internal);
    fleet.tenants[0].spec.trust = gputenancy_crds::Trust::Internal;
    let fleet = fleet.tenant("c", &[("mig-1g", 1)]).pool("q", &["mig-1g"]);
    let mut fleet = fleet.node("m", "q", &[a100()]);
    fleet.pools[1].spec.node_selector =
        serde_json::from_value(json!({"matchExpressions": [{"key": "pool", "operator": "In", "values": ["q", "r"]}]}))
            .unwrap();
    fleet = fleet.pool("r", &["mig-1g"]);
    fleet.pools[2].spec.node_selector = serde_json::from_value(json!({"matchLabels": {"pool": "q"}})).unwrap();
    fleet.pools[2].spec.profiles.push("turns".into());
    fleet.pools[2].spec.partitioner = gputenancy_crds::Partitioner::None;
    fleet = fleet.mig("again", "1g.10gb");
    let (snapshot, mut all) = fleet.snapshot();
    all.extend(gputenancy_plan::plan(&snapshot).problems);
    let lines: Vec<String> = all.iter().map(|p| format!("{}: {p}", p.reason())).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn unhealthy_or_not_ready_gpu_is_no_supply_and_stays_unchanged() {
    let mut fleet = demo().tenant("t", &[("mig-3g", 2)]).settle();
    assert_eq!(fleet.layout("gpu-node-1", 0), "3g.40gb@0 3g.40gb@4");
    fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[0].health = Health::Unhealthy;
    let plan = fleet.plan();
    assert_eq!(plan.gpus.values().next().unwrap().target, None);
    assert_eq!((touched(&plan), plan.problems.len()), (1, 0), "another GPU takes over");
    fleet.nodes.iter_mut().for_each(|n| n.ready = false);
    let plan = fleet.plan();
    assert!(plan.gpus.values().all(|g| g.target.is_none() && !g.changed));
    assert!(matches!(plan.problems.as_slice(), [Problem::Shortage { got: 0, wanted: 2, .. }]));
}

#[test]
fn change_in_progress_counts_as_done() {
    let mut fleet = demo().tenant("t", &[("mig-3g", 2)]).settle();
    let plan = fleet.clone().tenant("t", &[("mig-3g", 4)]).plan();
    let (key, gpu) = plan.gpus.iter().find(|(_, g)| g.changed).unwrap();
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    let member = fleet.nodes.iter_mut().find(|n| n.name == key.node.as_str()).unwrap();
    let spec = member.gpus.spec.gpus.iter_mut().find(|g| g.uuid == key.uuid.as_str()).unwrap();
    for phase in [ChangePhase::Noticed, ChangePhase::Partitioning, ChangePhase::Verifying] {
        spec.change = Some(gputenancy_crds::Change {
            phase,
            from: spec.layout(),
            to: gpu.target.as_deref().cloned().unwrap(),
            started_at: now.clone(),
            phase_since: now.clone(),
            evict_after: None,
            intent: String::new(),
            failures: 0,
            reason: String::new(),
        });
    }
    let next = fleet.clone().tenant("t", &[("mig-3g", 4)]).plan();
    assert_eq!((touched(&next), &next.gpus.get(key).unwrap().target), (0, &gpu.target));
    let fallen = fleet.tenant("t", &[]).plan();
    assert_eq!(fallen.gpus.get(key).unwrap().target, gpu.target, "a change in progress finishes first");
}

#[test]
fn gpu_with_mig_instances_is_adopted_unchanged() {
    let mut fleet = demo();
    let gpu = &mut fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[0];
    let layout =
        serde_json::from_value(json!({"mig": true, "instances": [{"start": 2, "profile": "2g.20gb"}]})).unwrap();
    carve(gpu, &layout);
    gpu.mig = Some(MigMode { enabled: true, pending: None });
    let plan = fleet.plan();
    assert_eq!(plan.gpus.values().next().unwrap().target.as_deref(), Some(&layout));
}

#[test]
fn large_fleet_with_free_gpus_is_served_without_evictions() {
    let mut fleet = catalog().pool("p", &["mig-1g", "mig-3g", "gpu"]);
    for node in ["a", "b", "c"] {
        fleet = fleet.node(node, "p", &vec![a100(); 8]);
    }
    let mut fleet = fleet.tenant("t", &[("mig-1g", 42), ("mig-3g", 12)]).settle();
    for pod in 0..20 {
        assert!(fleet.start("t", &format!("pod-{pod}"), MIG_1G));
    }
    let mut fleet = fleet.tenant("t", &[("mig-1g", 42), ("mig-3g", 24), ("gpu", 4)]);
    let plan = fleet.plan();
    assert_eq!((problems(&plan), evicted(&plan)), (vec![], vec![]));
    fleet.apply(&plan);
    assert_eq!(touched(&fleet.plan()), 0);
}

#[test]
fn pool_with_nvidias_plugin_reports_profiles_under_another_resource() {
    let by_size = Device { mig: Some(Mig { slices: Some(3), ..Mig::default() }), ..Device::default() };
    let mut fleet =
        Fleet::default().mig("small", "1g.10gb").mig("ours", "2g.20gb").whole("gpu").profile("big", by_size);
    fleet = fleet.pool("p", &["small", "ours", "gpu", "big"]).node("n", "p", &[a100()]);
    fleet.profiles[1].spec.resource_name = Some("example.com/ours".into());
    assert_eq!(fleet.plan().problems, []);
    fleet.pools[0].spec.advertiser = Advertiser::NvidiaDevicePlugin;
    let messages = fleet.plan().problems.iter().map(|p| format!("{}: {p}", p.reason())).collect::<Vec<_>>();
    insta::assert_snapshot!(messages.join("\n"));
    fleet.profiles[1].spec.resource_name = None;
    fleet.profiles[3].spec.resource_name = Some("nvidia.com/mig-3g.40gb".into());
    assert_eq!(fleet.plan().problems, []);
}

#[test]
fn borrowed_devices_are_supply_for_their_owner_in_a_pool_with_queues_only() {
    let fleet = catalog().pool("p", &["gpu"]).node("n", "p", &[a100(), a100()]);
    let mut fleet = fleet.tenant("team-a", &[("gpu", 1)]).tenant("team-b", &[("gpu", 1)]).settle();
    fleet.tenants[0].spec.gpus[0].borrow = 1;
    assert!(fleet.start("team-a", "one", "nvidia.com/gpu") && fleet.start("team-a", "two", "nvidia.com/gpu"));
    let without = problems(&fleet.plan());
    assert!(
        without.iter().any(|p| p.contains("tenant team-b is guaranteed 1 of profile gpu and gets 0")),
        "{without:?}"
    );
    fleet.pools[0].spec.queueing.system = QueueingSystem::Kueue;
    assert_eq!(problems(&fleet.plan()), [""; 0]);
    // a tenant without a guarantee borrows as well
    fleet.tenants[0].spec.gpus[0].count = 0;
    fleet.tenants[0].spec.gpus[0].borrow = 2;
    assert_eq!(problems(&fleet.plan()), [""; 0]);
    // of two devices the one that it may borrow comes back, and of none it may borrow neither does
    fleet.tenants[0].spec.gpus[0].borrow = 1;
    assert_eq!(problems(&fleet.plan()), [""; 0]);
    fleet.tenants[0].spec.gpus[0].borrow = 0;
    assert_eq!(problems(&fleet.plan()).len(), 1);
}
