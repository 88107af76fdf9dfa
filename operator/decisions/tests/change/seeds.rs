//! Long runs of mixed faults, one for each seed.

use std::{sync::LazyLock, time::Instant};

use fastrand::Rng;
use k8s_openapi::jiff::SignedDuration;

use super::{
    actors::{CRASHES, Outcome},
    scenario::{self, Scenario},
    world::World,
};

/// By default as many as a minute is enough for on two busy cores; `CHANGE_SEEDS` asks for more.
const SEEDS: u64 = 15_000;

static SCENARIOS: LazyLock<Vec<Scenario>> = LazyLock::new(scenario::all);

fn run(seed: u64, tells: bool) {
    let mut rng = Rng::with_seed(seed);
    let mut scenario = SCENARIOS[rng.usize(..SCENARIOS.len())].clone();
    scenario.refusals += rng.u32(0..3);
    scenario.failures += rng.u32(0..2);
    scenario.arrivals += rng.u32(0..3);
    scenario.policy.notice = SignedDuration::from_secs([0, 20, 600][rng.usize(..3)]);
    let mut world = World { tells, ..World::new(&scenario) };
    let layouts = [scenario.from.clone(), scenario.to.clone(), scenario::halves(), scenario::split()];
    for _ in 0..rng.usize(10..80) {
        let outcome = [Outcome::Done, Outcome::Done, Outcome::Done, Outcome::NotDone, Outcome::Unheard][rng.usize(..5)];
        match rng.u32(0..100) {
            0..35 => drop(world.operator_step(outcome)),
            35..65 => drop(world.agent_step(outcome)),
            65..75 => drop(world.kubelet_step()),
            75..79 => drop(world.pod_step()),
            79..85 => world.crash(CRASHES[rng.usize(..CRASHES.len())]),
            85..91 => drop(world.recover()),
            91..93 => world.node_ready = rng.bool(),
            93..97 => world.now += SignedDuration::from_secs([1, 11, 61, 400, 2000, 100_000][rng.usize(..6)]),
            // the plan changes its mind; pods that wait in vain would then have to be let go
            97.. if !scenario.blocked => world.target = layouts[rng.usize(..layouts.len())].clone(),
            _ => {}
        }
    }
    world.recover();
    let before = world.writes;
    for _ in 0..3000 {
        if world.fair_step().is_none() {
            world.check_end();
            let writes = world.writes - before;
            assert!(writes <= 80, "{writes} writes: {:#?}", world.story);
            return;
        }
    }
    panic!("no end: {:#?}\n{:#?}", world.spec(), world.story);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn mixed_faults_end_at_the_old_or_the_new_layout() {
    if let Some(seed) = number("CHANGE_SEED") {
        return run(seed, true);
    }
    let seeds = number("CHANGE_SEEDS").unwrap_or(SEEDS);
    let (start, threads) = (Instant::now(), std::thread::available_parallelism().map_or(1, usize::from));
    let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed, false)).is_err();
    let failed: Vec<u64> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || (0..seeds).skip(first).step_by(threads).filter(fails).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    println!("{seeds} seeds in {:.1} s on {threads} threads", start.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{failed:?} failed: replay one of them with CHANGE_SEED=<seed>");
}
