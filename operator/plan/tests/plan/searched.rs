//! Fleets that are too large and too mixed to be solved exactly: the planner searches, and is held to what an exact solver
//! proves. Several profiles, two tenants of different rank, pods of different priority in the way of larger devices.

use std::{collections::BTreeMap, sync::LazyLock};

use gputenancy_crds::Board;
use gputenancy_plan::Plan;
use proptest::{
    prelude::*,
    sample::{Index, select},
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    program::{Choices, Program},
    properties::name,
    support::{
        boards::{a30, a100, rtx6000},
        brute,
        fleet::Fleet,
    },
};

/// Fleets that have to be searched, with all cases.
const SEARCHED: u32 = 200;
/// Fleets among which one of them is found.
const EACH: u32 = 10;

/// A board, the profiles that its pool offers, and each layout of them: what is where as bits, and how many of each.
struct Kind {
    board: Board,
    profiles: Vec<&'static str>,
    items: brute::Instances,
    layouts: Vec<(u64, Vec<u32>)>,
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    vec![
        kind(a100(), &["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"]),
        kind(a100(), &["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]),
        kind(a100(), &["1g.10gb", "1g.10gb+me", "2g.20gb", "4g.40gb"]),
        kind(a30(), &["1g.6gb", "2g.12gb", "2g.12gb+me", "4g.24gb"]),
        kind(rtx6000(), &["1g.24gb", "1g.24gb+me.all", "1g.24gb-me", "2g.48gb", "4g.96gb"]),
    ]
});

fn kind(board: Board, profiles: &[&'static str]) -> Kind {
    let offered = board.profiles.iter().filter(|p| profiles.contains(&p.name.as_str()));
    let items: brute::Instances = offered.flat_map(|p| p.starts.iter().map(|s| (p.name.clone(), *s))).collect();
    let bits = |layout: &brute::Instances| {
        layout.iter().map(|i| 1 << items.iter().position(|item| item == i).unwrap()).fold(0, |all, bit: u64| all | bit)
    };
    let counts = |layout: &brute::Instances| profiles.iter().map(|p| count(layout, p)).collect();
    let all = brute::layouts(&board, profiles, &[]);
    let layouts = all.iter().map(|layout| (bits(layout), counts(layout))).collect();
    Kind { board, profiles: profiles.to_vec(), items, layouts }
}

fn count(layout: &brute::Instances, profile: &str) -> u32 {
    u32::try_from(layout.iter().filter(|(p, _)| p == profile).count()).unwrap()
}

#[derive(Clone, Debug)]
struct Case {
    kind: usize,
    gpus: i32,
    /// Guarantees of each tenant when the fleet was partitioned, and now: parts by profile, and how much of the fleet
    /// they come to, in hundredths.
    before: (Vec<i32>, i32),
    after: [(Vec<i32>, i32); 2],
    /// Where pods run, their tenants, and the values of their priority classes.
    pods: Vec<(Index, bool, i32)>,
    /// The first tenant is served before the second.
    ranked: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let parts = || proptest::collection::vec(select(vec![0, 1, 1, 2, 4]), 5);
    (0..KINDS.len(), 10..=24_i32).prop_flat_map(move |(kind, gpus)| {
        let places = usize::try_from(gpus).unwrap();
        let pod = (any::<Index>(), any::<bool>(), select(vec![0, 0, 0, 500, 2000, -900]));
        let pods = proptest::collection::vec(pod, places..places * 5 / 2);
        let after = || (parts(), 25..=50_i32);
        (parts(), 70..=100_i32, pods, after(), after(), any::<bool>()).prop_map(
            move |(before, load, pods, first, second, ranked)| Case {
                kind,
                gpus,
                before: (before, load),
                after: [first, second],
                pods,
                ranked,
            },
        )
    })
}

/// Names of the tenants, which are those of their namespaces.
const TENANTS: [&str; 2] = ["a", "b"];

/// A fleet as the planner sees it.
struct Scene {
    fleet: Fleet,
    /// Guaranteed to each tenant, by profile; every pod is within it.
    wanted: [Vec<u32>; 2],
    /// Held by each tenant's pods, by profile.
    held: [Vec<u32>; 2],
    /// By GPU: its instances as bits, and what evicting each pod weighs.
    used: Vec<BTreeMap<u64, u32>>,
}

impl Case {
    fn kind(&self) -> &'static Kind {
        &KINDS[self.kind]
    }

    fn counts(&self, (parts, load): &(Vec<i32>, i32)) -> Vec<u32> {
        let Kind { board, profiles, .. } = self.kind();
        let all: i32 = parts.iter().take(profiles.len()).sum::<i32>().max(1);
        let share = |(p, part): (&&str, &i32)| {
            let size = board.profiles.iter().find(|known| known.name == **p).unwrap().size;
            u32::try_from(self.gpus * board.memory_slices * load * part / (all * size * 100)).unwrap()
        };
        profiles.iter().zip(parts).map(share).collect()
    }

    fn guarantee(&self, mut fleet: Fleet, tenant: usize, counts: &[u32]) -> Fleet {
        let names: Vec<String> = self.kind().profiles.iter().map(|p| name(p)).collect();
        let counts = counts.iter().map(|n| i32::try_from(*n).unwrap());
        let wanted: Vec<(&str, i32)> = names.iter().map(String::as_str).zip(counts).collect();
        fleet = fleet.tenant(TENANTS[tenant], &wanted);
        fleet.tenants.last_mut().unwrap().spec.priority = i32::from(self.ranked && tenant == 0);
        fleet
    }

    fn scene(&self) -> Scene {
        let Kind { board, profiles, items, .. } = self.kind();
        let fleet = profiles.iter().fold(Fleet::default(), |f, p| f.mig(&name(p), p));
        let offered: Vec<String> = profiles.iter().map(|p| name(p)).collect();
        let fleet = fleet.pool("p", &offered.iter().map(String::as_str).collect::<Vec<_>>());
        let node = |f: Fleet, n: i32| f.node(&format!("n{n:02}"), "p", std::slice::from_ref(board));
        let fleet = (0..self.gpus).fold(fleet, node);
        let mut fleet = self.guarantee(fleet, 0, &self.counts(&self.before)).settle();
        let mut places = Vec::new();
        for (gpu, node) in fleet.nodes.iter().enumerate() {
            let instances = &node.gpus.status.as_ref().unwrap().gpus[0].instances;
            places.extend(instances.iter().map(|i| (gpu, i.profile.clone(), i.start)));
        }
        let mut held = [vec![0; profiles.len()], vec![0; profiles.len()]];
        let mut used = vec![BTreeMap::new(); fleet.nodes.len()];
        for (number, (index, second, priority)) in self.pods.iter().enumerate() {
            if places.is_empty() {
                break;
            }
            let (gpu, profile, start) = places.swap_remove(index.index(places.len()));
            let (node, pod, tenant) = (fleet.nodes[gpu].name.clone(), format!("pod-{number}"), usize::from(*second));
            fleet.start_at(TENANTS[tenant], &pod, (&node, 0, start));
            fleet.priorities.insert((TENANTS[tenant].to_owned(), pod), *priority);
            held[tenant][profiles.iter().position(|p| *p == profile).unwrap()] += 1;
            let item = items.iter().position(|item| *item == (profile.clone(), start)).unwrap();
            used[gpu].insert(1 << item, u32::try_from(1000 + priority).unwrap());
        }
        let most = |tenant: usize| -> Vec<u32> {
            self.counts(&self.after[tenant]).iter().zip(&held[tenant]).map(|(a, b)| *a.max(b)).collect()
        };
        let wanted = [most(0), most(1)];
        for (tenant, wanted) in wanted.iter().enumerate() {
            fleet = self.guarantee(fleet, tenant, wanted);
        }
        Scene { fleet, wanted, held, used }
    }

    /// What a GPU with these pods may become: of the layouts that give the same the one that evicts least, and none that another beats.
    fn choices(&self, used: &BTreeMap<u64, u32>) -> Choices {
        let mut all: BTreeMap<&Vec<u32>, u32> = BTreeMap::new();
        for (bits, counts) in &self.kind().layouts {
            let weight = used.iter().filter(|(bit, _)| bits & **bit == 0).map(|(_, weight)| weight).sum();
            let known = all.entry(counts).or_insert(weight);
            *known = weight.min(*known);
        }
        let beaten = |counts: &Vec<u32>, weight: u32| {
            all.iter().any(|(c, w)| *c != counts && *w <= weight && c.iter().zip(counts).all(|(a, b)| a >= b))
        };
        all.iter().filter(|(c, w)| !beaten(c, **w)).map(|(c, w)| ((*c).clone(), *w)).collect()
    }

    /// Share of a GPU of one device of each profile, as the planner weighs it.
    fn weights(&self) -> Vec<f64> {
        let Kind { board, profiles, .. } = self.kind();
        let size = |p: &&str| board.profiles.iter().find(|b| b.name == **p).unwrap().size;
        profiles.iter().map(|p| f64::from(size(p) * 840 / board.memory_slices)).collect()
    }
}

/// What is evicted, in the planner's weights.
fn evicted(scene: &Scene, plan: &Plan, kind: &Kind) -> u32 {
    let target = |gpu: &gputenancy_plan::GpuPlan| -> u64 {
        let instances = gpu.target.iter().flat_map(|t| &t.instances);
        let bit = |i: &gputenancy_crds::InstanceSpec| {
            1 << kind.items.iter().position(|(p, s)| *p == i.profile && *s == i.start).unwrap()
        };
        instances.map(bit).fold(0, |all, bit: u64| all | bit)
    };
    let gone = |(gpu, used): (&gputenancy_plan::GpuPlan, &BTreeMap<u64, u32>)| -> u32 {
        let target = target(gpu);
        used.iter().filter(|(bit, _)| target & **bit == 0).map(|(_, weight)| weight).sum()
    };
    let weight = plan.gpus.values().zip(&scene.used).map(gone).sum();
    let named: usize = plan.gpus.values().map(|g| g.evicts.len()).sum();
    assert_eq!(named == 0, weight == 0, "who is evicted is named");
    weight
}

/// Served to each tenant by profile: to tenants that hold devices first, then by rank; between equals it does not matter here.
fn served(scene: &Scene, supply: &[u32]) -> [Vec<u32>; 2] {
    let mut left = supply.to_vec();
    let mut got = [vec![0; left.len()], vec![0; left.len()]];
    for most in [&scene.held, &scene.wanted] {
        for (got, most) in got.iter_mut().zip(most) {
            for ((got, most), left) in got.iter_mut().zip(most).zip(&mut left) {
                let more = (most - *got).min(*left);
                *got += more;
                *left -= more;
            }
        }
    }
    got
}

#[derive(Debug, Default)]
struct Tally {
    fleets: u32,
    searched: u32,
    evicting: u32,
    /// Of those that evict: proven at once by the bound of the linear program.
    bounded: u32,
    /// Evicted more than necessary: in how many, the most in thousandths of a pod.
    more: u32,
    most_more: u32,
    worst: Option<String>,
    least: f64,
    sum: f64,
}

impl Tally {
    fn take(&mut self, case: &Case) {
        self.fleets += 1;
        let scene = case.scene();
        let plan = scene.fleet.plan();
        if !plan.searched {
            return;
        }
        self.searched += 1;
        let profiles = &case.kind().profiles;
        let supply = |p: &&str| plan.profiles.get(name(p).as_str()).map_or(0, |s| s.after);
        let supply: Vec<u32> = profiles.iter().map(supply).collect();
        let mut groups: BTreeMap<&BTreeMap<u64, u32>, u32> = BTreeMap::new();
        scene.used.iter().for_each(|used| *groups.entry(used).or_default() += 1);
        let groups: Vec<(Choices, u32)> = groups.into_iter().map(|(used, n)| (case.choices(used), n)).collect();
        self.weigh_evictions(case, &scene, &plan, &groups, &supply);
        self.weigh_service(case, &scene, &groups, &supply);
    }

    /// Against the fewest with which as much is served.
    fn weigh_evictions(&mut self, case: &Case, scene: &Scene, plan: &Plan, groups: &[(Choices, u32)], supply: &[u32]) {
        let ours = evicted(scene, plan, case.kind());
        if ours == 0 {
            return;
        }
        self.evicting += 1;
        let [first, second] = &scene.wanted;
        let least: Vec<u32> = supply.iter().zip(first.iter().zip(second)).map(|(s, (a, b))| *s.min(&(a + b))).collect();
        let bound = Program::new(groups, false).fewest(&least);
        // weights are whole hundreds
        if f64::from(ours) < bound + 99.0 {
            self.bounded += 1;
            return;
        }
        let fewest = Program::new(groups, true).fewest(&least);
        let more = f64::from(ours) - fewest;
        if more > 1.0 {
            self.more += 1;
            println!("{ours} instead of {fewest} (bound {bound}) in {case:?}");
            if more > f64::from(self.most_more) {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number above one")]
                let more = more.round() as u32;
                (self.most_more, self.worst) = (more, Some(format!("{ours} instead of {fewest}: {case:?}")));
            }
        }
    }

    /// Against a bound that no plan exceeds: shares of devices served, first tenant first.
    fn weigh_service(&mut self, case: &Case, scene: &Scene, groups: &[(Choices, u32)], supply: &[u32]) {
        let weights = case.weights();
        let present: Vec<u32> = {
            let there = |(line, _): (usize, &&str)| {
                scene
                    .fleet
                    .nodes
                    .iter()
                    .map(|n| {
                        let gpu = &n.gpus.status.as_ref().unwrap().gpus[0];
                        count(
                            &gpu.instances.iter().map(|i| (i.profile.clone(), i.start)).collect(),
                            case.kind().profiles[line],
                        )
                    })
                    .sum()
            };
            case.kind().profiles.iter().enumerate().map(there).collect()
        };
        let (got, there) = (served(scene, supply), served(scene, &present));
        let share = |got: &[u32]| -> f64 { got.iter().zip(&weights).map(|(n, w)| f64::from(*n) * w).sum() };
        let ours = share(&got[0]) + share(&got[1]);
        let add = |a: &[u32], b: &[u32]| -> Vec<u32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        let program = Program::new(groups, false);
        let best = if case.ranked {
            let first = program.most(&weights, &scene.wanted[0], &there[0], &scene.held[1]);
            let second = program.most(&weights, &scene.wanted[1], &scene.held[1], &got[0]);
            first + second
        } else {
            let (wanted, there) = (add(&scene.wanted[0], &scene.wanted[1]), add(&there[0], &there[1]));
            program.most(&weights, &wanted, &there, &vec![0; wanted.len()])
        };
        let ratio = if best > 0.0 { ours / best } else { 1.0 };
        self.least = if self.searched == 1 { ratio } else { self.least.min(ratio) };
        self.sum += ratio;
    }
}

#[test]
fn searched_fleet_evicts_no_more_than_an_exact_solver() {
    let mut runner = TestRunner::new_with_rng(crate::config(), TestRng::from_seed(RngAlgorithm::ChaCha, &[11; 32]));
    let mut tally = Tally::default();
    let (strategy, searched) = (cases(), crate::fleets(SEARCHED));
    while tally.searched < searched && tally.fleets < searched * EACH {
        tally.take(&strategy.new_tree(&mut runner).unwrap().current());
    }
    let mean = tally.sum / f64::from(tally.searched.max(1));
    println!(
        "{} fleets, {} searched, {} of them with evictions ({} proven by a bound): more evicted than necessary in {} (by {} thousandths \
         of a pod at most), served {:.3} % of a bound on average, worst {:.3} %",
        tally.fleets,
        tally.searched,
        tally.evicting,
        tally.bounded,
        tally.more,
        tally.most_more,
        mean * 100.0,
        tally.least * 100.0
    );
    assert!(tally.searched >= searched && tally.evicting >= searched / 5, "{tally:?}");
    assert_eq!(tally.worst, None);
    assert!(mean >= 0.99, "{tally:?}");
}
