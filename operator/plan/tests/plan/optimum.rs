//! The planner against an exact solver: a mixed-integer program over every layout of every GPU.

use std::collections::BTreeMap;

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    brute,
    properties::{Case, all_guaranteed, cases, evictions, in_use, instances, kinds, name},
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

/// Solves for all GPUs: with `wanted` the most share that can be served while nobody falls below `floor`, with `wanted` left
/// out the fewest evictions for `floor`.
fn solve(gpus: &[Choices], floor: &[u32], wanted: Option<(&[u32], &[i32])>) -> f64 {
    let mut variables = ProblemVariables::new();
    let picks: Vec<Vec<(Variable, &Vec<u32>, u32)>> = gpus
        .iter()
        .map(|choices| {
            choices.iter().map(|(gives, evicts)| (variables.add(variable().binary()), gives, *evicts)).collect()
        })
        .collect();
    let served: Vec<Variable> = wanted
        .map(|(wanted, _)| wanted.iter().map(|w| variables.add(variable().min(0).max(*w))).collect())
        .unwrap_or_default();
    let supply = |profile: usize| -> Expression {
        picks.iter().flatten().map(|(pick, gives, _)| f64::from(gives[profile]) * *pick).sum()
    };
    let evicted: Expression = picks.iter().flatten().map(|(pick, _, evicts)| f64::from(*evicts) * *pick).sum();
    let objective: Expression = match wanted {
        Some((_, weights)) => served.iter().zip(weights).map(|(s, w)| -f64::from(*w) * *s).sum(),
        None => evicted,
    };
    let mut model = variables.minimise(objective.clone()).using(microlp);
    for gpu in &picks {
        let one: Expression = gpu.iter().map(|(pick, ..)| Expression::from(*pick)).sum();
        model = model.with(one.eq(1));
    }
    for (profile, floor) in floor.iter().enumerate() {
        model = model.with(supply(profile).geq(f64::from(*floor)));
        if let Some(served) = served.get(profile) {
            model = model.with((supply(profile) - *served).geq(0));
        }
    }
    model.solve().unwrap().eval(objective).abs()
}

#[test]
fn evictions_are_the_fewest_and_nearly_all_is_served_that_can_be() {
    let fleets = 1_000;
    let mut runner = TestRunner::new_with_rng(crate::config(), TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let (mut worst, mut sum, mut counted) = (1.0_f64, 0.0, 0_u32);
    for _ in 0..fleets {
        let case = cases(3).new_tree(&mut runner).unwrap().current();
        let fleet = case.running();
        let (board, profiles) = &kinds()[case.kind];
        let there = instances(&fleet);
        let used = in_use(&fleet);
        let number = |p: &str, all: &[brute::Instances]| -> u32 {
            all.iter().flatten().filter(|(n, _)| n == p).count().try_into().unwrap()
        };
        // pods beyond a guarantee are nobody's supply; here every pod is within one
        let after = all_guaranteed(&case, &used);
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
        let gpus: Vec<Choices> = used.iter().map(|u| choices(&case, u)).collect();
        let most = solve(&gpus, &floor, Some((&wanted, &weights)));
        let ours: f64 = got.iter().zip(&weights).map(|(n, w)| f64::from(*n) * f64::from(*w)).sum();
        let fewest = solve(&gpus, &got, None);
        let evicted = u32::try_from(evictions(&plan)).unwrap();
        assert!((f64::from(evicted) - fewest).abs() < 0.01, "{case:?}: {evicted} evicted, {fewest} would do");
        if most > 0.0 {
            worst = worst.min(ours / most);
            sum += ours / most;
            counted += 1;
        }
    }
    let mean = sum / f64::from(counted.max(1));
    println!(
        "{fleets} fleets: evictions optimal in all; served {:.3} % of the optimum on average, worst {:.3} %",
        mean * 100.0,
        worst * 100.0
    );
    assert!(mean >= 0.99, "{mean}");
}
