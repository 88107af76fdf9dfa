//! Fleets with MIG, whole GPUs and shares of every mode, against every layout of every GPU.

mod plugin;

use std::collections::BTreeMap;

use gputenancy_crds::{
    CONTEXT_MIB, ComputeMode, Device, Layout, MemoryText, ResizePolicy, SharingMode, TenantSharing, Trust,
};
use gputenancy_plan::explain;
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use crate::{
    config,
    properties::evictions,
    support::{boards::a100, brute, fleet::Fleet},
};

/// A profile: its name, and what it is.
fn products() -> Vec<(&'static str, Value)> {
    vec![
        ("frac-large", json!({"fraction": {"memory": "30Gi", "compute": 40}})),
        ("frac-small", json!({"fraction": {"memory": "10Gi", "compute": 15}})),
        ("gpu", json!({"whole": {}})),
        ("mig-large", json!({"mig": {"profile": "3g.40gb"}})),
        ("mig-small", json!({"mig": {"profile": "1g.10gb"}})),
        ("mps", json!({"mps": {"memory": "20Gi", "threads": 30}})),
        ("turns", json!({"timeSlice": {"replicas": 4}})),
    ]
}

fn resource(profile: &str) -> String {
    match profile {
        "gpu" => "nvidia.com/gpu".into(),
        "mig-large" => "nvidia.com/mig-3g.40gb".into(),
        "mig-small" => "nvidia.com/mig-1g.10gb".into(),
        "turns" => "nvidia.com/gpu.shared".into(),
        other => format!("gputenancy.io/{other}"),
    }
}

fn device(spec: Value) -> Device {
    serde_json::from_value(spec).unwrap()
}

fn pool(gpus: usize) -> Fleet {
    let fleet = products().into_iter().fold(Fleet::default(), |f, (name, spec)| f.profile(name, device(spec)));
    let names: Vec<&str> = products().iter().map(|(name, _)| *name).collect();
    let fleet = fleet.pool("p", &names);
    (0..gpus).fold(fleet, |f, node| f.node(&format!("n{node}"), "p", &[a100()]))
}

/// Devices of one GPU: by profile, how many.
pub type Counts = BTreeMap<&'static str, usize>;

/// A device in use: its profile, and its start if the place counts.
pub type Used = Vec<(&'static str, i32)>;

/// Every layout of one GPU with the fewest evictions of these devices for its counts.
fn layouts(used: &Used) -> BTreeMap<Counts, usize> {
    let mut all: BTreeMap<Counts, usize> = BTreeMap::new();
    let mut add = |counts: Counts, evicted: usize| {
        let known = all.entry(counts).or_insert(evicted);
        *known = evicted.min(*known);
    };
    let mig = |name: &str| if name == "3g.40gb" { "mig-large" } else { "mig-small" };
    let instance = |(name, start): &(&str, i32)| match *name {
        "mig-large" => Some(("3g.40gb".to_owned(), *start)),
        "mig-small" => Some(("1g.10gb".to_owned(), *start)),
        _ => None,
    };
    let placed: brute::Instances = used.iter().filter_map(instance).collect();
    for layout in brute::layouts(&a100(), &["3g.40gb", "1g.10gb"], &placed) {
        let mut counts = Counts::new();
        for (name, _) in &layout {
            *counts.entry(mig(name)).or_default() += 1;
        }
        let stay = placed.iter().filter(|p| layout.contains(p)).count();
        add(counts, used.len() - stay);
    }
    let memory = 81_920 - a100().reserved.map_or(0, |r| r.mib().unwrap());
    let stays = |counts: &Counts| {
        let held = |name: &str| used.iter().filter(|(n, _)| *n == name).count();
        counts.iter().map(|(name, n)| held(name).min(*n)).sum::<usize>()
    };
    let fits = |parts: &[(usize, i64, i64)]| {
        parts.iter().map(|(n, m, _)| i64::try_from(*n).unwrap() * (m * 1024 + CONTEXT_MIB)).sum::<i64>() <= memory
            && parts.iter().map(|(n, _, c)| i64::try_from(*n).unwrap() * c).sum::<i64>() <= 100
    };
    let mut sets = vec![Counts::from([("gpu", 1)]), Counts::from([("turns", 4)])];
    sets.extend((1..4).filter(|n| fits(&[(*n, 20, 30)])).map(|n| Counts::from([("mps", n)])));
    for (large, small) in (0..3).flat_map(|l| (0..8).map(move |s| (l, s))).filter(|(l, s)| l + s > 0) {
        if fits(&[(large, 30, 40), (small, 10, 15)]) {
            let parts = [("frac-large", large), ("frac-small", small)];
            sets.push(parts.into_iter().filter(|(_, n)| *n > 0).collect());
        }
    }
    for counts in sets {
        let evicted = used.len() - stays(&counts);
        add(counts, evicted);
    }
    all
}

/// Fewest evictions such that all counts exist; `None`: they cannot exist together.
fn fewest(used: &[Used], wanted: &Counts) -> Option<usize> {
    fewest_with(layouts, used, wanted)
}

/// As [`fewest`], with the layouts that a GPU with these devices in use may be given.
pub fn fewest_with(
    layouts: impl Fn(&Used) -> BTreeMap<Counts, usize>,
    used: &[Used],
    wanted: &Counts,
) -> Option<usize> {
    let capped = |sum: &Counts, more: &Counts| -> Counts {
        let of = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or(0);
        wanted.iter().map(|(name, most)| (*name, (of(sum, name) + of(more, name)).min(*most))).collect()
    };
    let mut best: BTreeMap<Counts, usize> = [(capped(&Counts::new(), &Counts::new()), 0)].into();
    for used in used {
        let mut next: BTreeMap<Counts, usize> = BTreeMap::new();
        let options = layouts(used);
        for (sum, evicted) in &best {
            for (more, cost) in &options {
                let known = next.entry(capped(sum, more)).or_insert(evicted + cost);
                *known = (evicted + cost).min(*known);
            }
        }
        best = next;
    }
    best.get(wanted).copied()
}

#[derive(Clone, Debug)]
struct Case {
    gpus: usize,
    before: Vec<i32>,
    pods: Vec<prop::sample::Index>,
    after: Vec<i32>,
}

fn cases() -> impl Strategy<Value = Case> {
    let counts = || proptest::collection::vec(select(vec![0, 0, 0, 1, 1, 2, 3, 5]), products().len());
    let pods = proptest::collection::vec(any::<prop::sample::Index>(), 0..8);
    (1..=3_usize, counts(), pods, counts()).prop_map(|(gpus, before, pods, after)| Case { gpus, before, pods, after })
}

fn demand(fleet: Fleet, counts: &[i32]) -> Fleet {
    let names: Vec<&str> = products().iter().map(|(name, _)| *name).collect();
    let wanted: Vec<(&str, i32)> = names.into_iter().zip(counts.iter().copied()).collect();
    tenant(fleet, &wanted)
}

/// A tenant that may use shares.
pub fn tenant(fleet: Fleet, wanted: &[(&str, i32)]) -> Fleet {
    let mut fleet = fleet.tenant("t", wanted);
    for tenant in &mut fleet.tenants {
        tenant.spec.trust = Trust::Internal;
        tenant.spec.sharing =
            Some(TenantSharing { acknowledged_by: Some("lead@example.com".into()), ..TenantSharing::default() });
    }
    fleet
}

impl Case {
    /// A fleet that followed one demand, with pods at random places, and now has another that covers what they hold.
    fn running(&self) -> (Fleet, Vec<Used>, Counts) {
        let mut fleet = demand(pool(self.gpus), &self.before).settle();
        let mut places = Vec::new();
        for node in &fleet.nodes {
            let gpu = &node.gpus.status.as_ref().unwrap().gpus[0];
            let starts = gpu.instances.iter().map(|i| i.start).chain(gpu.shares.iter().map(|s| s.number));
            places.extend(starts.chain(gpu.whole.iter().map(|_| 0)).map(|start| (node.name.clone(), start)));
        }
        for (number, pod) in self.pods.iter().enumerate() {
            if !places.is_empty() {
                let (node, start) = places.remove(pod.index(places.len()));
                fleet.start_at("t", &format!("pod-{number}"), (&node, 0, start));
            }
        }
        let profile =
            |resource_name: &str| products().iter().find(|(name, _)| resource(name) == resource_name).map(|p| p.0);
        let used: Vec<Used> = fleet
            .nodes
            .iter()
            .map(|node| {
                let gpu = &node.gpus.status.as_ref().unwrap().gpus[0];
                let instances = gpu.instances.iter().filter_map(|i| Some((i.start, i.device.as_ref()?)));
                let all = instances
                    .chain(gpu.shares.iter().map(|s| (s.number, &s.device)))
                    .chain(gpu.whole.iter().map(|w| (0, w)));
                let busy = all.filter(|(_, d)| d.owner.is_some());
                busy.map(|(start, d)| (profile(d.resource.as_deref().unwrap_or("nvidia.com/gpu")).unwrap(), start))
                    .collect()
            })
            .collect();
        let held = |name: &str| used.iter().flatten().filter(|(n, _)| *n == name).count();
        let after: Vec<i32> = products()
            .iter()
            .zip(&self.after)
            .map(|((n, _), after)| i32::try_from(held(n)).unwrap().max(*after))
            .collect();
        let wanted =
            products().iter().zip(&after).map(|((n, _), count)| (*n, usize::try_from(*count).unwrap())).collect();
        (demand(fleet, &after), used, wanted)
    }
}

fn sharing(layout: &Layout) -> (i64, i32, Vec<i32>) {
    let groups = layout.sharing.iter().flat_map(|s| &s.shares);
    let of = |n: usize| i64::try_from(n).unwrap();
    let memory = |g: &gputenancy_crds::ShareGroup| g.memory.as_ref().map_or(0, |m| m.mib().unwrap() + CONTEXT_MIB);
    let sum = groups.clone().map(|g| of(g.numbers.len()) * memory(g)).sum();
    let compute = groups.clone().map(|g| i32::try_from(g.numbers.len()).unwrap() * g.compute.unwrap_or(0)).sum();
    (sum, compute, groups.flat_map(|g| g.numbers.clone()).collect())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mixed_guarantees_are_served_with_the_fewest_evictions(case in cases()) {
        let (fleet, used, wanted) = case.running();
        let plan = fleet.plan();
        let short = plan.problems.iter().any(|p| p.reason() == "Shortage");
        match fewest(&used, &wanted) {
            Some(fewest) => {
                prop_assert!(!short, "can be served: {:#?}", explain(&plan));
                prop_assert_eq!(evictions(&plan), fewest, "{:#?}", explain(&plan));
            }
            None => prop_assert!(short),
        }
    }

    #[test]
    fn shares_fit_on_their_gpu_and_have_numbers_of_their_own(case in cases()) {
        for gpu in case.running().0.plan().gpus.values() {
            let target = gpu.target.as_deref().cloned().unwrap_or_default();
            let (memory, compute, mut numbers) = sharing(&target);
            prop_assert!(memory <= 81_920 && compute <= 100, "{target:?}");
            prop_assert!(target.sharing.is_none() || (!target.mig && target.instances.is_empty()));
            let count = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), count, "{:?}", target);
        }
    }

    #[test]
    fn mixed_plan_after_its_changes_has_no_more_changes(case in cases()) {
        let mut fleet = case.running().0;
        let plan = fleet.plan();
        fleet.carry_out(&plan);
        let again = fleet.plan();
        prop_assert!(again.gpus.values().all(|g| !g.changed), "{:#?}\nthen\n{:#?}", explain(&plan), explain(&again));
    }
}

fn turns(replicas: i32) -> Device {
    device(json!({"timeSlice": {"replicas": replicas}}))
}

fn time_sliced(pods: usize) -> Fleet {
    let fleet = Fleet::default().profile("turns", turns(4)).whole("gpu").pool("p", &["turns", "gpu"]);
    let fleet = fleet.node("n", "p", &[a100(), a100()]);
    let mut fleet = tenant(fleet, &[("turns", 4)]).settle();
    for pod in 0..pods {
        assert!(fleet.start("t", &format!("pod-{pod}"), "nvidia.com/gpu.shared"));
    }
    fleet
}

fn with_replicas(mut fleet: Fleet, replicas: i32, guaranteed: i32) -> Fleet {
    let turning = fleet.profiles.iter_mut().find(|p| p.metadata.name.as_deref() == Some("turns")).unwrap();
    turning.spec.device = turns(replicas);
    tenant(fleet, &[("turns", guaranteed)])
}

#[test]
fn raised_replicas_evict_no_pod() {
    let plan = with_replicas(time_sliced(4), 6, 6).plan();
    assert_eq!(evictions(&plan), 0, "{:#?}", explain(&plan));
    let changed: Vec<_> = plan.gpus.values().filter(|g| g.changed).collect();
    assert_eq!(changed.len(), 1);
    assert_eq!(sharing(changed[0].target.as_deref().unwrap()).2, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn lowered_replicas_evict_only_the_owners_of_removed_shares() {
    let mut fleet = time_sliced(3);
    fleet.priorities.insert(("t".into(), "pod-0".into()), -10);
    let plan = with_replicas(fleet, 2, 2).plan();
    let evicted: Vec<String> =
        plan.gpus.values().flat_map(|g| &g.evicts).map(|e| format!("{} {}", e.pod, e.device)).collect();
    assert_eq!(evicted, ["t/pod-0 share"], "the least important pod of three: {:#?}", explain(&plan));
}

/// Two GPUs, and a tenant with time-slices of MIG instances and exclusive instances of the same size.
fn sliced(replicas: i32, guaranteed: &[(&str, i32)]) -> Fleet {
    let slices = device(json!({"timeSlice": {"replicas": replicas, "of": {"mig": {"profile": "1g.10gb"}}}}));
    let one = device(json!({"mig": {"profile": "1g.10gb"}}));
    let fleet = Fleet::default().profile("slices", slices).profile("one", one).whole("gpu");
    let fleet = fleet.pool("p", &["slices", "one", "gpu"]).node("n", "p", &[a100(), a100()]);
    tenant(fleet, guaranteed)
}

const SLICES: &str = "nvidia.com/mig-1g.10gb.shared";

fn resize(fleet: &mut Fleet, replicas: i32) {
    let slices = fleet.profiles.iter_mut().find(|p| p.metadata.name.as_deref() == Some("slices")).unwrap();
    slices.spec.device.time_slice.as_mut().unwrap().replicas = replicas;
}

#[test]
fn time_slices_of_instances_are_planned_beside_exclusive_instances() {
    let fleet = sliced(4, &[("slices", 8), ("one", 5), ("gpu", 1)]);
    let plan = fleet.plan();
    assert!(plan.problems.is_empty(), "{:#?}", explain(&plan));
    let target = plan.gpus.values().filter_map(|g| g.target.as_deref()).find(|l| l.mig).unwrap();
    let replicas = |n: Option<i32>| target.instances.iter().filter(|i| i.replicas == n).count();
    assert_eq!((replicas(Some(4)), replicas(None)), (2, 5), "{target:?}");
    assert_eq!(target.resources().iter().filter(|r| *r == SLICES).count(), 8);
    assert_eq!(target.starts().len(), 13);
    // one slice more needs another instance, which the whole GPU forbids
    let more = sliced(4, &[("slices", 9), ("one", 5), ("gpu", 1)]).plan();
    assert_eq!(more.problems.len(), 1, "{:#?}", explain(&more));
}

#[test]
fn number_of_time_slices_of_an_instance_changes_without_more_evictions_than_slices() {
    let mut fleet = sliced(4, &[("slices", 4)]).settle();
    for pod in 0..4 {
        assert!(fleet.start("t", &format!("pod-{pod}"), SLICES));
    }
    assert_eq!(fleet.plan().gpus.values().filter(|g| g.changed).count(), 0, "{:#?}", explain(&fleet.plan()));
    let mut raised = tenant(fleet.clone(), &[("slices", 6)]);
    resize(&mut raised, 6);
    let plan = raised.plan();
    assert_eq!(evictions(&plan), 0, "{:#?}", explain(&plan));
    let target = plan.gpus.values().find(|g| g.changed).unwrap().target.clone().unwrap();
    assert_eq!(target.instances.iter().map(|i| i.replicas).collect::<Vec<_>>(), [Some(6)]);

    let mut fewer = tenant(fleet, &[("slices", 3)]);
    resize(&mut fewer, 3);
    let plan = fewer.plan();
    let evicted: Vec<String> =
        plan.gpus.values().flat_map(|g| &g.evicts).map(|e| format!("{} {}", e.pod, e.device)).collect();
    assert_eq!(evicted, ["t/pod-3 time-slice 3 of 1g.10gb"], "{:#?}", explain(&plan));
}

#[test]
fn instance_with_pods_on_its_slices_stays_where_it_is() {
    let mut fleet = sliced(4, &[("slices", 4), ("one", 6), ("gpu", 1)]).settle();
    assert!(fleet.start("t", "pod", SLICES));
    let plan = tenant(fleet, &[("slices", 8), ("one", 3), ("gpu", 1)]).plan();
    assert_eq!(evictions(&plan), 0, "{:#?}", explain(&plan));
    assert!(plan.problems.is_empty(), "{:#?}", explain(&plan));
}

#[test]
fn slices_need_an_acknowledgement_and_an_agent() {
    let mut fleet = sliced(4, &[("slices", 1)]);
    fleet.tenants[0].spec.sharing = None;
    let reasons: Vec<String> = fleet.plan().problems.iter().map(|p| p.reason().to_string()).collect();
    assert_eq!(reasons, ["SharingNotAcknowledged"]);
    let mut fleet = sliced(4, &[]);
    fleet.pools[0].spec.advertiser = gputenancy_crds::Advertiser::NvidiaDevicePlugin;
    let text = fleet.plan().problems.iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains("write spec.advertiser: Agent"), "{text}");
}

#[test]
fn instances_are_exclusive_again_where_nvidias_plugin_advertises() {
    let mut fleet = sliced(4, &[("slices", 4)]).settle();
    fleet.pools[0].spec.advertiser = gputenancy_crds::Advertiser::NvidiaDevicePlugin;
    let plan = fleet.plan();
    let shared = |l: &Layout| l.instances.iter().filter(|i| i.replicas.is_some() || i.resource.is_some()).count();
    assert!(plan.gpus.values().filter_map(|g| g.target.as_deref()).all(|l| shared(l) == 0), "{:#?}", explain(&plan));
}

#[test]
fn process_of_no_pod_on_a_shared_instance_keeps_its_gpu_as_it_is() {
    let mut fleet = sliced(4, &[("slices", 8)]).settle();
    let layouts = |fleet: &Fleet| [fleet.layout("n", 0), fleet.layout("n", 1)];
    assert_eq!(layouts(&fleet).iter().filter(|l| l.contains("shared")).count(), 1, "{:?}", layouts(&fleet));
    let gpus = &mut fleet.nodes[0].gpus.status.as_mut().unwrap().gpus;
    let gpu = gpus.iter_mut().find(|g| !g.shares.is_empty()).unwrap();
    let start = gpu.instances[0].start;
    let holder = json!({"pid": 7, "command": "python3", "start": start});
    gpu.holders = vec![serde_json::from_value(holder).unwrap()];
    let index = gpu.index;
    // nobody needs the time-slices any more, and one whole GPU is wanted
    let plan = tenant(fleet, &[("gpu", 1)]).plan();
    assert!(plan.gpus.values().filter(|g| g.changed).all(|g| g.index != index), "{:#?}", explain(&plan));
    assert!(plan.problems.is_empty(), "{:#?}", explain(&plan));
}

#[test]
fn fixed_layout_has_slices_as_a_multiple_of_an_instance() {
    let fixed = |count: i32| {
        let mut fleet = sliced(4, &[]);
        let layout =
            json!({"mode": "Fixed", "fixed": [{"gpus": "0-1", "profiles": [{"name": "slices", "count": count}]}]});
        fleet.pools[0].spec.layout = serde_json::from_value(layout).unwrap();
        fleet.plan()
    };
    let plan = fixed(8);
    let instances = |g: &gputenancy_plan::GpuPlan| g.target.as_ref().map_or(0, |l| l.instances.len());
    assert!(plan.gpus.values().all(|g| instances(g) == 2), "{:#?}", explain(&plan));
    let text = explain(&fixed(6)).concat();
    assert!(text.contains("write a multiple of 4 as count"), "{text}");
}

#[test]
fn no_device_is_made_that_the_cap_of_its_tenant_forbids() {
    let mut fleet = tenant(time_sliced(0), &[("turns", 8), ("gpu", 2)]);
    let shared = |fleet: &Fleet| {
        let plan = fleet.plan();
        let served = &plan.tenants.values().next().unwrap();
        let of = |name: &str| served.get(name).map_or(0, |s| s.guaranteed);
        (of("turns"), of("gpu"), plan.problems.len())
    };
    assert_eq!(shared(&fleet), (8, 2, 2), "two GPUs cannot be shared and whole");
    fleet.tenants[0].spec.gpu_equivalents = Some("1.5".into());
    assert_eq!(shared(&fleet), (6, 1, 1), "one guarantee is short");
    fleet.tenants[0].spec.gpu_equivalents = Some("0.5".into());
    assert_eq!(shared(&fleet), (2, 0, 0), "two quarters");
}

#[test]
fn share_without_acknowledgement_is_no_guarantee() {
    let mut fleet = tenant(time_sliced(0), &[("turns", 8), ("gpu", 1)]);
    fleet.tenants[0].spec.sharing = None;
    let plan = fleet.plan();
    let problems: Vec<String> = plan.problems.iter().map(|p| format!("{}: {p}", p.reason())).collect();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    for words in
        ["SharingNotAcknowledged: tenant t may not use profile turns", "spec.sharing.acknowledgedBy of GpuTenant t"]
    {
        assert!(problem.contains(words), "{problem}");
    }
    let served: Vec<&str> =
        plan.tenants.values().flat_map(|t| t.keys().map(gputenancy_crds::ids::ProfileName::as_str)).collect();
    assert_eq!(served, ["gpu"], "only the whole GPU is a guarantee");
}

#[test]
fn time_slices_of_one_profile_fill_whole_gpus() {
    let plan = tenant(time_sliced(0), &[("turns", 8)]).plan();
    let all: Vec<_> = plan.gpus.values().filter_map(|g| g.target.as_ref()?.sharing.clone()).collect();
    assert_eq!(all.len(), 2, "{:#?}", explain(&plan));
    assert!(all.iter().all(|s| s.mode == SharingMode::TimeSlice && s.numbers().len() == 4));
}

#[test]
fn spare_gpus_are_filled_with_shares_where_no_pod_and_no_guarantee_has_them() {
    let part = device(json!({"fraction": {"memory": "10Gi", "compute": 15}}));
    let layout = json!({"spare": {"policy": "Fill", "profile": "frac"}});
    let fleet = Fleet::default().profile("frac", part).whole("gpu").pool_with("p", &["frac", "gpu"], &layout);
    let fleet = fleet.node("n", "p", &[a100(), a100(), a100()]);
    let mut fleet = tenant(fleet, &[("gpu", 1), ("frac", 1)]).settle();
    let shares = |fleet: &Fleet| -> Vec<usize> {
        let status = fleet.nodes[0].gpus.status.as_ref().unwrap();
        let mut counts: Vec<usize> = status.gpus.iter().map(|g| g.shares.len()).collect();
        counts.sort_unstable();
        counts
    };
    assert_eq!(shares(&fleet), [0, 6, 6], "six shares of 15 percent on two GPUs, one GPU stays whole");
    assert!(fleet.start("t", "one", "gputenancy.io/frac"));
    let again = fleet.plan();
    assert!(again.gpus.values().all(|g| !g.changed), "{:#?}", explain(&again));
}

#[test]
fn fixed_layout_in_shares_is_placed_or_refused_with_the_rule() {
    let fleet = |count: i32| {
        let layout = json!({"mode": "Fixed", "fixed": [{"gpus": "0", "profiles": [{"name": "frac", "count": count}]}]});
        let part = device(json!({"fraction": {"memory": "10Gi", "compute": 30}}));
        Fleet::default().profile("frac", part).pool_with("p", &["frac"], &layout).node("n", "p", &[a100()]).plan()
    };
    let placed = fleet(3);
    assert_eq!(sharing(placed.gpus.values().next().unwrap().target.as_deref().unwrap()).2, [0, 1, 2]);
    let refused = explain(&fleet(4)).join("\n");
    assert!(refused.contains("100 percent of compute"), "{refused}");
}

#[test]
fn fractions_get_the_new_size_of_their_profile_where_it_fits_and_no_pod_is_evicted() {
    let of = |memory: &str, compute: i32| device(json!({"fraction": {"memory": memory, "compute": compute}}));
    let fleet = Fleet::default().profile("frac", of("10Gi", 25)).pool("p", &["frac"]).node("n", "p", &[a100()]);
    let mut fleet = tenant(fleet, &[("frac", 3)]).settle();
    assert!(fleet.start("t", "one", "gputenancy.io/frac"));
    let before = fleet.plan();
    let target = |plan: &gputenancy_plan::Plan| plan.gpus.values().next().unwrap().target.clone().unwrap();
    let size = |layout: &Layout| {
        let group = layout.sharing.as_ref().unwrap().shares[0].clone();
        (group.memory.unwrap().mib().unwrap(), group.compute.unwrap(), group.numbers)
    };
    let (_, _, numbers) = size(&target(&before));
    // three of 12 GiB and 30 percent fit
    let grown = fleet.clone().profile("frac", of("12Gi", 30)).plan();
    assert_eq!(size(&target(&grown)), (12_288, 30, numbers.clone()), "{:#?}", explain(&grown));
    assert_eq!(evictions(&grown), 0);
    let smaller = fleet.clone().profile("frac", of("5Gi", 10)).plan();
    assert_eq!(size(&target(&smaller)), (5120, 10, numbers.clone()));
    let burst = json!({"fraction": {"memory": "10Gi", "compute": 25, "computeMode": "Burst"}});
    let burst = fleet.clone().profile("frac", device(burst)).plan();
    assert_eq!(target(&burst).sharing.as_ref().unwrap().shares[0].compute_mode, ComputeMode::Burst);
    assert_eq!((size(&target(&burst)), evictions(&burst)), ((10_240, 25, numbers.clone()), 0));
    let forced = json!({"fraction": {"memory": "5Gi", "compute": 10, "resize": "Force"}});
    let forced = fleet.clone().profile("frac", device(forced)).plan();
    assert_eq!(target(&forced).sharing.as_ref().unwrap().shares[0].resize, ResizePolicy::Force);
    assert_eq!(evictions(&forced), 0);
    // of 40 percent only two fit, and the guarantee is three
    let large = fleet.clone().profile("frac", of("10Gi", 40)).plan();
    assert_eq!(size(&target(&large)), (10_240, 25, numbers), "{:#?}", explain(&large));
}

#[test]
fn pod_that_keeps_its_memory_counts_with_it_until_its_agent_reports_the_new_size() {
    let of = |memory: &str| device(json!({"fraction": {"memory": memory, "compute": 5}}));
    let fleet = Fleet::default().profile("frac", of("20Gi")).pool("p", &["frac"]).node("n", "p", &[a100()]);
    let mut fleet = tenant(fleet, &[("frac", 3)]).settle();
    for pod in ["one", "two"] {
        assert!(fleet.start("t", pod, "gputenancy.io/frac"));
    }
    let shares = |fleet: &Fleet| {
        let plan = fleet.plan();
        let layout = plan.gpus.values().next().unwrap().target.clone().unwrap();
        let sharing = layout.sharing.as_ref().unwrap();
        (sharing.numbers().len(), sharing.shares[0].memory.as_ref().unwrap().mib().unwrap())
    };
    // 81,307 MiB: seven of 10,880 MiB with their contexts, or two of 21,120 and three of 10,880
    let mut fleet = tenant(fleet.profile("frac", of("10Gi")), &[("frac", 7)]);
    assert_eq!(shares(&fleet), (5, 10_240), "two still have 20 GiB");
    fleet = fleet.settle();
    let report = |fleet: &mut Fleet, memory: [i64; 2]| {
        let gpu = &mut fleet.nodes[0].gpus.status.as_mut().unwrap().gpus[0];
        let used = gpu.shares.iter_mut().filter(|share| share.device.owner.is_some());
        used.zip(memory).for_each(|(share, mib)| share.memory = Some(MemoryText::from_mib(mib)));
    };
    report(&mut fleet, [20_480, 20_480]);
    assert_eq!(shares(&fleet), (5, 10_240));
    report(&mut fleet, [20_480, 10_240]);
    assert_eq!(shares(&fleet), (6, 10_240), "one has 20 GiB");
    report(&mut fleet, [10_240, 10_240]);
    assert_eq!(shares(&fleet), (7, 10_240));
}
