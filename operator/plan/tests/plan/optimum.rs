//! The planner against exact answers: small fleets against a mixed-integer program over every layout of every GPU; larger ones,
//! for which that takes minutes, against every number of devices that can be reached.

use std::collections::{BTreeMap, HashMap};

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    properties::{Case, all_guaranteed, cases, evictions, in_use, instances, kinds, large_cases, name},
    support::brute,
};

/// A GPU's choices: devices by profile, and pods evicted; of those that give the same only the cheapest.
type Choices = BTreeMap<Vec<u32>, u32>;

fn choices(case: &Case, used: &[(String, i32)]) -> Choices {
    let (board, profiles) = &kinds()[case.kind];
    let mut choices = Choices::new();
    for layout in brute::layouts(board, profiles, used) {
        let count = |p: &&str| u32::try_from(layout.iter().filter(|(n, _)| n == *p).count()).unwrap();
        let evicted = u32::try_from(used.iter().filter(|u| !layout.contains(u)).count()).unwrap();
        let known = choices.entry(profiles.iter().map(count).collect()).or_insert(evicted);
        *known = evicted.min(*known);
    }
    choices
}

/// GPUs with the same devices in use: what each may become, and how many they are.
type Groups = BTreeMap<brute::Instances, (Choices, u32)>;

fn groups(case: &Case, used: &[brute::Instances]) -> Groups {
    let mut groups = Groups::new();
    for used in used {
        groups.entry(used.clone()).or_insert_with(|| (choices(case, used), 0)).1 += 1;
    }
    groups
}

/// How many GPUs are given this, with its devices and evictions.
type Pick<'a> = (Variable, &'a Vec<u32>, u32);

/// Solves for all GPUs: with `wanted` the most share that can be served while no profile falls below `floor`, with `wanted` left
/// out the fewest evictions for `floor`.
fn solve(groups: &Groups, floor: &[u32], wanted: Option<(&[u32], &[i32])>) -> f64 {
    let mut variables = ProblemVariables::new();
    let mut picks: Vec<(Vec<Pick<'_>>, u32)> = Vec::new();
    for (choices, count) in groups.values() {
        let mut pick = Vec::with_capacity(choices.len());
        for (gives, evicts) in choices {
            pick.push((variables.add(variable().integer().min(0).max(*count)), gives, *evicts));
        }
        picks.push((pick, *count));
    }
    let served: Vec<Variable> = wanted
        .map(|(wanted, _)| wanted.iter().map(|w| variables.add(variable().min(0).max(*w))).collect())
        .unwrap_or_default();
    let all = || picks.iter().flat_map(|(picks, _)| picks);
    let supply =
        |profile: usize| -> Expression { all().map(|(pick, gives, _)| f64::from(gives[profile]) * *pick).sum() };
    let evicted: Expression = all().map(|(pick, _, evicts)| f64::from(*evicts) * *pick).sum();
    let objective: Expression = match wanted {
        Some((_, weights)) => served.iter().zip(weights).map(|(s, w)| -f64::from(*w) * *s).sum(),
        None => evicted,
    };
    let mut model = variables.minimise(objective.clone()).using(microlp);
    for (picks, count) in &picks {
        let together: Expression = picks.iter().map(|(pick, ..)| Expression::from(*pick)).sum();
        model = model.with(together.eq(*count));
    }
    for (profile, floor) in floor.iter().enumerate() {
        model = model.with(supply(profile).geq(f64::from(*floor)));
        if let Some(served) = served.get(profile) {
            model = model.with((supply(profile) - *served).geq(0));
        }
    }
    model.solve().unwrap().eval(objective).abs()
}

/// By numbers of devices that can be reached, counted up to what is wanted: the fewest evictions.
type Reached = HashMap<u64, u32>;

fn reach(groups: &Groups, wanted: &[u32]) -> Reached {
    let mut reached: Reached = [(0, 0)].into();
    for (choices, count) in groups.values() {
        let beaten = |(gives, evicts): &(&Vec<u32>, &u32)| {
            let more = |other: &Vec<u32>| other != *gives && other.iter().zip(*gives).all(|(a, b)| a >= b);
            choices.iter().any(|(other, cost)| more(other) && cost <= *evicts)
        };
        let worthy: Vec<_> = choices.iter().filter(|choice| !beaten(choice)).collect();
        for _ in 0..*count {
            let mut next = Reached::with_capacity(reached.len() * 2);
            for (have, evicted) in &reached {
                for (gives, evicts) in &worthy {
                    let sum: Vec<u32> = numbers(*have, wanted.len())
                        .zip(*gives)
                        .zip(wanted)
                        .map(|((a, b), most)| (a + b).min(*most))
                        .collect();
                    let known = next.entry(packed(&sum)).or_insert(u32::MAX);
                    *known = (evicted + **evicts).min(*known);
                }
            }
            reached = next;
        }
    }
    reached
}

fn packed(counts: &[u32]) -> u64 {
    counts.iter().rev().fold(0, |all, n| all << 8 | u64::from(*n))
}

fn numbers(packed: u64, count: usize) -> impl Iterator<Item = u32> {
    packed.to_le_bytes().into_iter().take(count).map(u32::from)
}

/// The most share that can be served while no profile falls below `floor`, and the fewest evictions for `got`.
fn best(reached: &Reached, floor: &[u32], got: &[u32], weights: &[i32]) -> (f64, f64) {
    let least = |least: &[u32], have: u64| numbers(have, least.len()).zip(least).all(|(have, least)| have >= *least);
    let share = |have: u64| numbers(have, weights.len()).zip(weights).map(|(n, w)| f64::from(n) * f64::from(*w)).sum();
    let most = reached.keys().filter(|have| least(floor, **have)).map(|have| share(*have)).fold(0.0, f64::max);
    let fewest = reached.iter().filter(|(have, _)| least(got, **have)).map(|(_, evicted)| *evicted).min().unwrap();
    (most, f64::from(fewest))
}

/// Both, by the exact solver.
fn solved(groups: &Groups, floor: &[u32], got: &[u32], (wanted, weights): (&[u32], &[i32])) -> (f64, f64) {
    (solve(groups, floor, Some((wanted, weights))), solve(groups, got, None))
}

/// The planner compared with the exact answer, over many fleets.
#[derive(Debug, Default)]
struct Tally {
    /// Fleets that the planner solved exactly, and fleets that it searched.
    exact: u32,
    searched: u32,
    /// Of those searched, in which more were evicted than necessary, and by how many at most.
    more: u32,
    most_more: f64,
    worst: Option<String>,
    /// Share served of what could be: the least, the sum, and of how many fleets.
    least: f64,
    sum: f64,
    counted: u32,
}

impl Tally {
    fn take(&mut self, case: &Case, small: bool) {
        let fleet = case.running();
        let (board, profiles) = &kinds()[case.kind];
        let there = instances(&fleet);
        let used = in_use(&fleet);
        let number = |p: &str, all: &[brute::Instances]| -> u32 {
            all.iter().flatten().filter(|(n, _)| n == p).count().try_into().unwrap()
        };
        // pods beyond a guarantee are no supply; here every pod is within one
        let after = all_guaranteed(case, &used);
        let wanted: Vec<u32> = after.iter().map(|n| u32::try_from(*n).unwrap()).collect();
        let all: Vec<brute::Instances> =
            there.iter().map(|g| g.iter().map(|i| (i.profile.clone(), i.start)).collect()).collect();
        let floor: Vec<u32> = profiles.iter().zip(&wanted).map(|(p, w)| number(p, &all).min(*w)).collect();
        let weights: Vec<i32> = profiles
            .iter()
            .map(|p| board.profiles.iter().find(|b| b.name == **p).unwrap().size * 840 / board.memory_slices)
            .collect();
        let plan = case.demand(fleet, &after).plan();
        let got: Vec<u32> = profiles
            .iter()
            .zip(&wanted)
            .map(|(p, w)| plan.profiles.get(name(p).as_str()).map_or(0, |s| s.after).min(*w))
            .collect();
        let groups = groups(case, &used);
        let (most, fewest) = if small {
            solved(&groups, &floor, &got, (&wanted, &weights))
        } else {
            best(&reach(&groups, &wanted), &floor, &got, &weights)
        };
        let ours: f64 = got.iter().zip(&weights).map(|(n, w)| f64::from(*n) * f64::from(*w)).sum();
        let evicted = f64::from(u32::try_from(evictions(&plan)).unwrap());
        let more = evicted - fewest;
        if plan.searched {
            self.searched += 1;
        } else {
            self.exact += 1;
        }
        if more > 0.5 {
            self.more += 1;
            if more > self.most_more {
                (self.most_more, self.worst) = (more, Some(format!("{evicted} evicted: {case:?}")));
            }
        }
        if most > 0.0 {
            self.least = if self.counted == 0 { ours / most } else { self.least.min(ours / most) };
            self.sum += ours / most;
            self.counted += 1;
        }
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.counted.max(1))
    }
}

fn compare(fleets: u32, cases: impl Strategy<Value = Case>, small: bool) -> Tally {
    let mut runner = TestRunner::new_with_rng(crate::config(), TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let mut tally = Tally::default();
    for _ in 0..fleets {
        tally.take(&cases.new_tree(&mut runner).unwrap().current(), small);
    }
    println!(
        "{fleets} fleets, {} solved exactly and {} searched: more evicted than necessary in {} (by {} at most), served {:.3} % of the \
         optimum on average, worst {:.3} %",
        tally.exact,
        tally.searched,
        tally.more,
        tally.most_more,
        tally.mean() * 100.0,
        tally.least * 100.0
    );
    tally
}

#[test]
fn small_fleet_has_the_fewest_evictions_and_serves_nearly_the_optimum() {
    let tally = compare(crate::fleets(1_000), cases(3), true);
    assert_eq!(tally.worst, None);
    assert!(tally.mean() >= 0.99, "{tally:?}");
}

#[test]
fn larger_fleet_has_the_fewest_evictions_and_serves_nearly_the_optimum() {
    let tally = compare(crate::fleets(200), large_cases(), false);
    assert!(tally.searched >= crate::fleets(10), "{tally:?}");
    assert_eq!(tally.worst, None);
    assert!(tally.mean() >= 0.99, "{tally:?}");
}
