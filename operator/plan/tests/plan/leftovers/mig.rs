//! Fleets of A100 and H100 with MIG instances of profiles that exist no more, at any placement, idle and in use: demand is served whenever it fits, with the
//! fewest evictions.

use std::{collections::BTreeMap, sync::LazyLock};

use gputenancy_crds::{Board, InstanceSpec, Layout};
use gputenancy_plan::explain;
use proptest::{
    prelude::*,
    sample::{Index, select},
};
use serde_json::json;

use crate::{
    config,
    properties::{evictions, name},
    shares::{Counts, Used, fewest_with},
    support::{
        boards::{a30, a100},
        brute,
        fleet::{Fleet, carve},
    },
};

/// A board, the profiles that its pool offers, and those that were deleted.
struct Kind {
    board: Board,
    kept: &'static [&'static str],
    deleted: &'static [&'static str],
    /// Every instance that the board may have.
    items: Vec<(&'static str, i32)>,
    /// Every layout of all profiles, each instance one bit, and how many it has of the profiles that are offered.
    layouts: Vec<(u64, Counts)>,
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    vec![
        kind(a100(), &["1g.10gb", "2g.20gb", "3g.40gb"], &["1g.20gb", "4g.40gb"]),
        kind(a100(), &["1g.20gb", "3g.40gb"], &["1g.10gb", "2g.20gb"]),
        kind(a100(), &["1g.10gb", "4g.40gb"], &["1g.10gb+me", "2g.20gb", "3g.40gb", "7g.80gb"]),
        kind(a100(), &["2g.20gb"], &["1g.10gb", "3g.40gb"]),
        kind(a30(), &["1g.6gb", "2g.12gb"], &["2g.12gb+me", "4g.24gb"]),
    ]
});

fn kind(board: Board, kept: &'static [&'static str], deleted: &'static [&'static str]) -> Kind {
    let all: Vec<&'static str> = kept.iter().chain(deleted).copied().collect();
    let known = |name: &str| all.iter().find(|profile| **profile == name).copied().unwrap();
    let offered = board.profiles.iter().filter(|profile| all.contains(&profile.name.as_str()));
    let items: Vec<_> = offered.flat_map(|p| p.starts.iter().map(|start| (known(&p.name), *start))).collect();
    let read = |layout: brute::Instances| {
        let mut counts = Counts::new();
        for (profile, _) in layout.iter().filter(|(profile, _)| kept.contains(&profile.as_str())) {
            *counts.entry(known(profile)).or_default() += 1;
        }
        let placed = layout.iter().map(|(profile, start)| (profile.as_str(), *start));
        (placed.map(|item| bit(&items, item)).sum(), counts)
    };
    let layouts = brute::layouts(&board, &all, &[]).into_iter().map(read).collect();
    Kind { board, kept, deleted, items, layouts }
}

fn bit(items: &[(&str, i32)], item: (&str, i32)) -> u64 {
    1 << items.iter().position(|known| *known == item).unwrap()
}

impl Kind {
    fn instances(&self, layout: u64) -> Used {
        self.items.iter().filter(|item| layout & bit(&self.items, **item) != 0).copied().collect()
    }

    /// For each number of devices, up to what is wanted, the fewest evictions of these instances. Instances of deleted profiles are not created.
    fn choices(&self, used: &Used, wanted: &Counts) -> BTreeMap<Counts, usize> {
        let in_use: u64 = used.iter().map(|item| bit(&self.items, *item)).sum();
        let gone = self.items.iter().filter(|(profile, _)| self.deleted.contains(profile));
        let not_created: u64 = gone.map(|item| bit(&self.items, *item)).sum::<u64>() & !in_use;
        let mut choices = BTreeMap::new();
        for (layout, counts) in self.layouts.iter().filter(|(layout, _)| layout & not_created == 0) {
            let evicted = usize::try_from((in_use & !layout).count_ones()).unwrap();
            let useful = wanted.iter().map(|(name, most)| (*name, counts.get(name).copied().unwrap_or(0).min(*most)));
            let known = choices.entry(useful.collect()).or_insert(evicted);
            *known = evicted.min(*known);
        }
        choices
    }
}

#[derive(Clone, Debug)]
struct Case {
    kind: usize,
    /// By GPU: whether it is an H100, its layout, and which of its instances are in use.
    gpus: Vec<(bool, Index, Vec<bool>)>,
    after: Vec<usize>,
}

fn cases() -> impl Strategy<Value = Case> {
    let in_use = proptest::collection::vec(select(vec![false, false, true]), 8);
    let gpus = proptest::collection::vec((any::<bool>(), any::<Index>(), in_use), 1..=3);
    let after = proptest::collection::vec(select(vec![0, 0, 1, 1, 2, 3, 5]), 3);
    (0..KINDS.len(), gpus, after).prop_map(|(kind, gpus, after)| Case { kind, gpus, after })
}

impl Case {
    /// The fleet with its pods, what they use of each GPU, and a demand that covers it.
    fn running(&self) -> (Fleet, Vec<Used>, Counts) {
        let kind = &KINDS[self.kind];
        let names: Vec<String> = kind.kept.iter().map(|profile| name(profile)).collect();
        let fleet = kind.kept.iter().fold(Fleet::default(), |fleet, profile| fleet.mig(&name(profile), profile));
        let mut fleet = fleet.pool("p", &names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut used = Vec::new();
        for (number, (newer, layout, in_use)) in self.gpus.iter().enumerate() {
            let node = format!("n{number}");
            let mut board = kind.board.clone();
            if *newer {
                (board.product, board.mode_needs_reset) = ("NVIDIA-H100-80GB-HBM3".into(), false);
            }
            fleet = fleet.node(&node, "p", &[board]);
            let instances = kind.instances(layout.get(&kind.layouts).0);
            set(&mut fleet, number, &instances);
            let busy: Used =
                instances.into_iter().zip(in_use).filter(|(_, busy)| **busy).map(|(item, _)| item).collect();
            for (profile, start) in &busy {
                fleet.start_at("t", &format!("{node}-{profile}-{start}"), (&node, 0, *start));
            }
            used.push(busy);
        }
        let held = |profile: &str| used.iter().flatten().filter(|(name, _)| *name == profile).count();
        let after = kind.kept.iter().zip(&self.after);
        let wanted: Counts = after.map(|(profile, count)| (*profile, held(profile).max(*count))).collect();
        let guaranteed: Vec<(String, i32)> =
            wanted.iter().map(|(profile, count)| (name(profile), i32::try_from(*count).unwrap())).collect();
        let guaranteed: Vec<(&str, i32)> =
            guaranteed.iter().map(|(profile, count)| (profile.as_str(), *count)).collect();
        (fleet.tenant("t", &guaranteed), used, wanted)
    }
}

/// The node's GPU has this layout, in its spec and in its status.
fn set(fleet: &mut Fleet, node: usize, instances: &Used) {
    let instance = |(profile, start): &(&str, i32)| json!({"profile": profile, "start": start});
    let instances: Vec<InstanceSpec> =
        instances.iter().map(|item| serde_json::from_value(instance(item)).unwrap()).collect();
    let layout = Layout { mig: !instances.is_empty(), instances, ..Layout::default() };
    let gpus = &mut fleet.nodes[node].gpus;
    let uuid = gpus.status.as_ref().unwrap().gpus[0].uuid.clone();
    let spec = json!({"uuid": uuid, "mig": layout.mig, "instances": layout.instances});
    gpus.spec.gpus = vec![serde_json::from_value(spec).unwrap()];
    carve(&mut gpus.status.as_mut().unwrap().gpus[0], &layout);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn demand_is_served_with_the_fewest_evictions_beside_leftover_instances(case in cases()) {
        let (fleet, used, wanted) = case.running();
        let kind = &KINDS[case.kind];
        let plan = fleet.plan();
        let short = plan.problems.iter().any(|p| p.reason() == "Shortage");
        match fewest_with(|used| kind.choices(used, &wanted), &used, &wanted) {
            Some(fewest) => {
                prop_assert!(!short, "can be served: {:#?}", explain(&plan));
                prop_assert_eq!(evictions(&plan), fewest, "{:#?}", explain(&plan));
            }
            None => prop_assert!(short),
        }
    }
}
