//! Properties of every plan.

use std::collections::BTreeMap;

use gputenancy_crds::{Board, InstanceState};
use gputenancy_plan::{Plan, explain};
use proptest::{prelude::*, sample::select};

use crate::{
    config,
    support::{
        boards::{a30, a100, rtx6000},
        brute,
        fleet::Fleet,
    },
};

/// A board with the profiles that its pool offers.
pub fn kinds() -> Vec<(Board, Vec<&'static str>)> {
    vec![
        (a100(), vec!["1g.10gb", "3g.40gb"]),
        (a100(), vec!["1g.10gb", "2g.20gb", "4g.40gb"]),
        (a100(), vec!["1g.20gb", "3g.40gb", "7g.80gb"]),
        (a30(), vec!["1g.6gb", "2g.12gb", "2g.12gb+me", "4g.24gb"]),
        (rtx6000(), vec!["1g.24gb", "1g.24gb+me.all", "1g.24gb-me", "2g.48gb"]),
    ]
}

#[derive(Clone, Debug)]
pub struct Case {
    pub kind: usize,
    gpus: usize,
    before: Vec<i32>,
    pods: Vec<prop::sample::Index>,
    pub after: Vec<i32>,
    whole: bool,
}

pub fn cases(most: usize) -> impl Strategy<Value = Case> {
    let counts = || proptest::collection::vec(select(vec![0, 0, 1, 1, 2, 3, 5]), 4);
    let pods = proptest::collection::vec(any::<prop::sample::Index>(), 0..8);
    (0..kinds().len(), 1..=most, counts(), pods, counts(), any::<bool>())
        .prop_map(|(kind, gpus, before, pods, after, whole)| Case { kind, gpus, before, pods, after, whole })
}

/// Fleets too large to try everything, with demands and pods in proportion: the planner searches.
pub fn large_cases() -> impl Strategy<Value = Case> {
    (0..kinds().len(), 6..=20_usize).prop_flat_map(|(kind, gpus)| {
        let most = i32::try_from(gpus).unwrap();
        let counts = || proptest::collection::vec(prop_oneof![Just(0), 1..=most / 4, 1..=most], 4);
        let pods = proptest::collection::vec(any::<prop::sample::Index>(), 0..gpus * 2);
        (counts(), pods, counts(), any::<bool>()).prop_map(move |(before, pods, after, whole)| Case {
            kind,
            gpus,
            before,
            pods,
            after,
            whole,
        })
    })
}

impl Case {
    fn fleet(&self) -> Fleet {
        let board = &kinds()[self.kind].0;
        self.fleet_of(&["p"], |_| ("p", board.clone()))
    }

    /// A fleet of pools with the same profiles; by node its pool and its board.
    fn fleet_of(&self, pools: &[&str], place: impl Fn(usize) -> (&'static str, Board)) -> Fleet {
        let profiles = &kinds()[self.kind].1;
        let mut fleet = profiles.iter().fold(Fleet::default(), |f, p| f.mig(&name(p), p)).whole("gpu");
        let mut offered: Vec<String> = profiles.iter().map(|p| name(p)).collect();
        if self.whole {
            offered.push("gpu".into());
        }
        for pool in pools {
            fleet = fleet.pool(pool, &offered.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for node in 0..self.gpus {
            let (pool, board) = place(node);
            fleet = fleet.node(&format!("n{node}"), pool, &[board]);
        }
        fleet
    }

    /// A fleet that followed one demand, with pods at random places, and now has another.
    pub fn running(&self) -> Fleet {
        self.run(self.fleet())
    }

    /// As [`Case::running`], with every second node in another pool, whose boards have this name.
    fn running_in_two_pools(&self, product: &str) -> Fleet {
        let board = &kinds()[self.kind].0;
        self.run(self.fleet_of(&["p", "q"], |node| {
            let other = Board { product: product.into(), ..board.clone() };
            if node % 2 == 0 { ("p", board.clone()) } else { ("q", other) }
        }))
    }

    fn run(&self, fleet: Fleet) -> Fleet {
        let mut fleet = self.demand(fleet, &self.before).settle();
        let mut places = Vec::new();
        for node in &fleet.nodes {
            let instances = &node.gpus.status.as_ref().unwrap().gpus[0].instances;
            places.extend(instances.iter().map(|i| (node.name.clone(), i.start)));
        }
        for (number, pod) in self.pods.iter().enumerate() {
            if !places.is_empty() {
                let (node, start) = places.remove(pod.index(places.len()));
                fleet.start_at("t", &format!("pod-{number}"), (&node, 0, start));
            }
        }
        let demand = self.after.clone();
        self.demand(fleet, &demand)
    }

    pub fn demand(&self, fleet: Fleet, counts: &[i32]) -> Fleet {
        let names: Vec<String> = kinds()[self.kind].1.iter().map(|p| name(p)).collect();
        let wanted: Vec<(&str, i32)> = names.iter().map(String::as_str).zip(counts.iter().copied()).collect();
        fleet.tenant("t", &wanted)
    }
}

/// Names of profiles in manifests have no `+`.
pub fn name(profile: &str) -> String {
    profile.replace('+', "-plus-").replace('.', "-")
}

pub fn instances(fleet: &Fleet) -> Vec<Vec<InstanceState>> {
    fleet.nodes.iter().map(|n| n.gpus.status.as_ref().unwrap().gpus[0].instances.clone()).collect()
}

pub fn evictions(plan: &Plan) -> usize {
    plan.gpus.values().map(|g| g.evicts.len()).sum()
}

/// Devices in use, by GPU.
pub fn in_use(fleet: &Fleet) -> Vec<brute::Instances> {
    let busy = |gpu: &Vec<InstanceState>| {
        gpu.iter()
            .filter(|i| i.device.as_ref().is_some_and(|d| d.owner.is_some()))
            .map(|i| (i.profile.clone(), i.start))
            .collect()
    };
    instances(fleet).iter().map(busy).collect()
}

fn number(profile: &str, gpus: &[brute::Instances]) -> usize {
    gpus.iter().flatten().filter(|(p, _)| p == profile).count()
}

/// The demand of a case, and of every profile as much as pods hold: pods beyond a guarantee use slices that a count does not show.
pub fn all_guaranteed(case: &Case, used: &[brute::Instances]) -> Vec<i32> {
    let profiles = &kinds()[case.kind].1;
    profiles.iter().zip(&case.after).map(|(p, n)| i32::try_from(number(p, used)).unwrap().max(*n)).collect()
}

fn count_missing(used: &brute::Instances, layout: &brute::Instances) -> usize {
    used.iter().filter(|u| !layout.contains(u)).count()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_target_is_valid_on_its_board(case in cases(3)) {
        let plan = case.running().plan();
        for gpu in plan.gpus.values() {
            let target = gpu.target.as_deref().cloned().unwrap_or_default();
            let placed: Vec<_> = target.instances.into_iter().map(|i| (i.profile, i.start)).collect();
            prop_assert!(brute::valid(&kinds()[case.kind].0, &placed), "{placed:?}");
        }
    }

    #[test]
    fn pools_with_equal_boards_are_planned_like_pools_with_renamed_boards(case in cases(6)) {
        let same = case.running_in_two_pools(&kinds()[case.kind].0.product).plan();
        let other = case.running_in_two_pools("another name").plan();
        prop_assert_eq!(same.gpus, other.gpus);
        prop_assert_eq!(same.profiles, other.profiles);
        prop_assert_eq!(same.tenants, other.tenants);
        prop_assert_eq!(same.stranded, other.stranded);
    }

    #[test]
    fn plan_does_not_depend_on_the_order_of_objects(case in cases(3)) {
        let fleet = case.running();
        let mut turned = fleet.clone();
        turned.nodes.reverse();
        turned.profiles.reverse();
        turned.tenants.reverse();
        turned.pools[0].spec.profiles.reverse();
        for node in &mut turned.nodes {
            node.gpus.spec.gpus.reverse();
            let status = node.gpus.status.as_mut().unwrap();
            status.boards.iter_mut().for_each(|b| b.profiles.reverse());
        }
        prop_assert_eq!(fleet.plan(), turned.plan());
    }

    #[test]
    fn plan_after_its_changes_has_no_more_changes(case in cases(3)) {
        let mut fleet = case.running();
        let plan = fleet.plan();
        fleet.carry_out(&plan);
        let again = fleet.plan();
        prop_assert!(again.gpus.values().all(|g| !g.changed), "{:#?}\nthen\n{:#?}", explain(&plan), explain(&again));
    }

    #[test]
    fn feasible_guarantees_are_served_with_the_fewest_evictions(case in cases(3)) {
        let fleet = case.running();
        let (board, profiles) = &kinds()[case.kind];
        let used = in_use(&fleet);
        let after = all_guaranteed(&case, &used);
        let counts = profiles.iter().zip(&after).map(|(p, n)| ((*p).to_owned(), usize::try_from(*n).unwrap()));
        let wanted: BTreeMap<String, usize> = counts.collect();
        let fleet = case.demand(fleet, &after);
        let plan = fleet.plan();
        let short = plan.problems.iter().any(|p| p.reason() == "Shortage");
        match brute::fewest(board, profiles, &used, &wanted) {
            Some(fewest) => {
                prop_assert!(!short, "can be served: {:#?}", explain(&plan));
                prop_assert_eq!(evictions(&plan), fewest, "{:#?}", explain(&plan));
            }
            None => prop_assert!(short),
        }
    }

    #[test]
    fn no_guaranteed_pod_loses_its_device(case in cases(3)) {
        let mut fleet = case.running();
        let plan = fleet.plan();
        let lines = kinds()[case.kind].1.clone();
        for (profile, supply) in &plan.profiles {
            let line = lines.iter().find(|p| name(p) == profile.as_str());
            let Some(line) = line else { continue };
            let held = instances(&fleet).iter().flatten().filter(|i| i.profile == **line && i.device.as_ref().is_some_and(|d| d.owner.is_some())).count();
            let guaranteed = usize::try_from(supply.guaranteed).unwrap();
            prop_assert!(usize::try_from(supply.after).unwrap() >= held.min(guaranteed), "{profile}");
        }
        fleet.apply(&plan);
        for served in plan.tenants.values().flat_map(BTreeMap::values) {
            prop_assert!(served.satisfied <= served.guaranteed);
        }
    }

    #[test]
    fn device_in_use_is_removed_only_where_no_free_one_suffices(case in cases(6)) {
        let (board, profiles) = &kinds()[case.kind];
        let fleet = case.running();
        let used = in_use(&fleet);
        let plan = case.demand(fleet, &all_guaranteed(&case, &used)).plan();
        let targets: Vec<brute::Instances> = plan
            .gpus
            .values()
            .map(|g| g.target.iter().flat_map(|t| &t.instances).map(|i| (i.profile.clone(), i.start)).collect())
            .collect();
        let goes: Vec<usize> = used.iter().zip(&targets).map(|(u, t)| count_missing(u, t)).collect();
        prop_assert_eq!(goes.iter().sum::<usize>(), evictions(&plan));
        for (gpu, (used, target)) in used.iter().zip(&targets).enumerate().filter(|(gpu, _)| goes[*gpu] > 0) {
            let same = |layout: &brute::Instances| {
                profiles.iter().all(|p| number(p, std::slice::from_ref(layout)) == number(p, std::slice::from_ref(target)))
            };
            for layout in brute::layouts(board, profiles, used).iter().filter(|l| same(l)) {
                prop_assert!(count_missing(used, layout) >= goes[gpu], "{layout:?} instead of {target:?} on GPU {gpu}");
            }
        }
        for (a, b) in (0..used.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let exchanged = count_missing(&used[a], &targets[b]) + count_missing(&used[b], &targets[a]);
            prop_assert!(exchanged >= goes[a] + goes[b], "GPUs {a} and {b} could exchange their layouts: {:#?}", explain(&plan));
        }
    }
}
