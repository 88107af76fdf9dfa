//! Fractions of profiles that exist no more: they stay while they do no harm, and are removed for demand that needs their room.

mod mig;

use std::collections::BTreeMap;

use gputenancy_crds::Device;
use gputenancy_plan::explain;
use proptest::{prelude::*, sample::select};
use serde_json::json;

use crate::{
    config,
    properties::evictions,
    shares::{Counts, Used, fewest_with, tenant},
    support::{boards::a100, fleet::Fleet},
};

/// A profile and its percent of compute; each share has 1 GiB.
const PROFILES: [(&str, usize); 4] = [("p15", 15), ("p30", 30), ("p30b", 30), ("p8", 8)];
/// Leftovers of other sizes, with a profile of the same size each that stays.
const SMALL: [(&str, usize); 2] = [("p2", 2), ("p7", 7)];
/// Profiles that are deleted, of the same size.
const DELETED: [(&str, usize); 3] = [("old2", 2), ("old2b", 2), ("old30", 30)];

fn part(compute: usize) -> Device {
    serde_json::from_value(json!({"fraction": {"memory": "1Gi", "compute": compute}})).unwrap()
}

fn pool(gpus: usize, profiles: &[(&str, usize)]) -> Fleet {
    let names: Vec<&str> = profiles.iter().map(|(name, _)| *name).collect();
    let fleet = profiles.iter().fold(Fleet::default(), |f, (name, compute)| f.profile(name, part(*compute)));
    let nodes = (0..gpus).map(|n| format!("n{n}"));
    nodes.fold(fleet.pool("p", &names), |f, name| f.node(&name, "p", &[a100()]))
}

/// The same fleet with these profiles alone.
fn only(mut fleet: Fleet, profiles: &[(&str, usize)]) -> Fleet {
    let keep = |name: &str| profiles.iter().any(|(kept, _)| *kept == name);
    fleet.profiles.retain(|p| p.metadata.name.as_deref().is_some_and(keep));
    fleet.pools[0].spec.profiles.retain(|name| keep(name));
    fleet
}

/// Every useful layout of one GPU: no profile has more than is wanted, and what is in use may stay as well.
fn layouts(used: &Used, wanted: &Counts) -> BTreeMap<Counts, usize> {
    let mut all: Vec<(Counts, usize)> = vec![(Counts::new(), 0)];
    let held = |name: &str| used.iter().filter(|(n, _)| *n == name).count();
    for (name, compute) in PROFILES.iter().chain(&DELETED) {
        let most = wanted.get(name).copied().unwrap_or(0).max(held(name));
        let more = |(counts, sum): &(Counts, usize)| {
            let (counts, sum) = (counts.clone(), *sum);
            (0..=most).map(move |n| (n, sum + n * compute)).take_while(|(_, sum)| *sum <= 100).map(move |(n, sum)| {
                let mut counts = counts.clone();
                if n > 0 {
                    counts.insert(name, n);
                }
                (counts, sum)
            })
        };
        all = all.iter().flat_map(more).collect();
    }
    let stay = |counts: &Counts| counts.iter().map(|(name, n)| held(name).min(*n)).sum::<usize>();
    all.into_iter().map(|(counts, _)| (used.len() - stay(&counts), counts)).map(|(evicted, c)| (c, evicted)).collect()
}

#[derive(Clone, Debug)]
struct Case {
    gpus: usize,
    before: Vec<i32>,
    pods: Vec<prop::sample::Index>,
    after: Vec<i32>,
}

fn cases() -> impl Strategy<Value = Case> {
    let before = proptest::collection::vec(select(vec![0, 0, 1, 1, 2, 2, 4]), PROFILES.len() + DELETED.len());
    let after = proptest::collection::vec(select(vec![0, 0, 0, 1, 2, 3, 5]), PROFILES.len());
    let pods = proptest::collection::vec(any::<prop::sample::Index>(), 0..6);
    (1..=3_usize, before, pods, after).prop_map(|(gpus, before, pods, after)| Case { gpus, before, pods, after })
}

impl Case {
    /// A fleet that followed one demand, with pods at random places, after some of its profiles were deleted, and a demand that covers what
    /// pods hold.
    fn running(&self) -> (Fleet, Vec<Used>, Counts) {
        let all: Vec<(&str, usize)> = PROFILES.iter().chain(&DELETED).copied().collect();
        let names = all.iter().map(|(name, _)| *name);
        let before: Vec<(&str, i32)> = names.clone().zip(self.before.iter().copied()).collect();
        let mut fleet = tenant(pool(self.gpus, &all), &before).settle();
        let shares =
            |fleet: &Fleet, node: usize| fleet.nodes[node].gpus.status.as_ref().unwrap().gpus[0].shares.clone();
        let mut places: Vec<(usize, i32)> = (0..self.gpus)
            .flat_map(|node| shares(&fleet, node).into_iter().map(move |share| (node, share.number)))
            .collect();
        for (number, pod) in self.pods.iter().enumerate() {
            if !places.is_empty() {
                let (node, start) = places.swap_remove(pod.index(places.len()));
                fleet.start_at("t", &format!("pod-{number}"), (&format!("n{node}"), 0, start));
            }
        }
        let name = |resource: &str| names.clone().find(|name| resource == format!("gputenancy.io/{name}")).unwrap();
        let used: Vec<Used> = (0..self.gpus)
            .map(|node| {
                let busy = shares(&fleet, node).into_iter().filter(|share| share.device.owner.is_some());
                busy.map(|share| (name(share.device.resource.as_deref().unwrap()), share.number)).collect()
            })
            .collect();
        let held = |name: &str| used.iter().flatten().filter(|(n, _)| *n == name).count();
        let after = PROFILES.iter().zip(&self.after);
        let wanted: Counts = after.map(|((n, _), count)| (*n, held(n).max(usize::try_from(*count).unwrap()))).collect();
        let guaranteed: Vec<(&str, i32)> = wanted.iter().map(|(n, c)| (*n, i32::try_from(*c).unwrap())).collect();
        (tenant(only(fleet, &PROFILES), &guaranteed), used, wanted)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn demand_is_served_with_the_fewest_evictions_beside_leftovers(case in cases()) {
        let (fleet, used, wanted) = case.running();
        let plan = fleet.plan();
        let short = plan.problems.iter().any(|p| p.reason() == "Shortage");
        let layouts = |used: &Used| layouts(used, &wanted);
        match fewest_with(layouts, &used, &wanted) {
            Some(fewest) => {
                prop_assert!(!short, "can be served: {:#?}", explain(&plan));
                prop_assert_eq!(evictions(&plan), fewest, "{:#?}", explain(&plan));
            }
            None => prop_assert!(short),
        }
    }
}

/// One GPU with these shares, of which the first are in use, and then a guarantee of these profiles.
fn one_gpu(
    shares: &[(&str, i32)],
    in_use: &[&str],
    kept: &[(&str, usize)],
    guaranteed: &[(&str, i32)],
) -> gputenancy_plan::Plan {
    let all: Vec<(&str, usize)> = PROFILES.iter().chain(&SMALL).chain(&DELETED).copied().collect();
    let mut fleet = tenant(pool(1, &all), shares).settle();
    for (number, name) in in_use.iter().enumerate() {
        assert!(fleet.start("t", &format!("pod-{number}"), &format!("gputenancy.io/{name}")));
    }
    tenant(only(fleet, kept), guaranteed).plan()
}

fn kept() -> Vec<(&'static str, usize)> {
    PROFILES.iter().chain(&SMALL).copied().collect()
}

#[test]
fn idle_share_of_a_deleted_profile_goes_where_demand_needs_its_capacity() {
    let shares = [("p30", 2), ("p7", 1), ("p8", 1), ("old2", 1), ("old2b", 1)];
    let plan = one_gpu(&shares, &["p30", "p30"], &kept(), &[("p30", 3)]);
    assert!(plan.problems.is_empty() && evictions(&plan) == 0, "{:#?}", explain(&plan));
}

#[test]
fn two_equal_leftovers_cost_no_pod() {
    let shares = [("p15", 6), ("old2", 1), ("old2b", 1)];
    let plan = one_gpu(&shares, &["p15", "p15"], &kept(), &[("p15", 4), ("p8", 1)]);
    assert!(plan.problems.is_empty(), "{:#?}", explain(&plan));
    assert_eq!(evictions(&plan), 0, "{:#?}", explain(&plan));
}
