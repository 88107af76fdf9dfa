//! Every state that a change can be in, every crash, every fate of the effect that was under way.

use std::collections::{HashMap, VecDeque};

use crate::change::{
    actors::{CRASHES, Crash, Outcome},
    scenario::{self, Scenario},
    world::World,
};

/// Most writes from any state to the end: more is a loop.
const MOST_WRITES: u32 = 60;
/// Most steps from any state to the end.
const MOST_STEPS: usize = 1500;

/// How many writes it takes from each state to the end, when everybody does their part. Ends are checked on the way.
#[derive(Default)]
struct Fates(HashMap<String, u32>);

impl Fates {
    fn settle(&mut self, start: &World) -> u32 {
        let mut world = start.clone();
        let mut path = Vec::new();
        let rest = loop {
            let key = world.key();
            if let Some(rest) = self.0.get(&key) {
                break *rest;
            }
            path.push((key, world.writes));
            assert!(path.len() < MOST_STEPS, "no end from {}\n{:#?}", start.key(), retell(start));
            if world.fair_step().is_none() {
                world.check_end();
                break 0;
            }
        };
        let end = world.writes;
        for (key, writes) in path {
            self.0.insert(key, rest + end - writes);
        }
        rest + end - start.writes
    }
}

/// The same again, told.
fn retell(start: &World) -> Vec<String> {
    let mut world = World { tells: true, ..start.clone() };
    for _ in 0..120 {
        if world.fair_step().is_none() {
            break;
        }
    }
    world.story
}

/// What may happen next without any crash.
fn next(world: &World) -> Vec<World> {
    let steps: [fn(&mut World) -> bool; 5] = [
        |w| w.operator_step(Outcome::Done),
        |w| w.agent_step(Outcome::Done),
        World::kubelet_step,
        World::pod_step,
        World::recover,
    ];
    let mut next: Vec<World> = steps.iter().filter_map(|step| moved(world, step)).collect();
    if next.is_empty() {
        next.extend(moved(world, &|w: &mut World| w.fair_step().is_some()));
    }
    next
}

fn moved(world: &World, step: &dyn Fn(&mut World) -> bool) -> Option<World> {
    let mut next = world.clone();
    step(&mut next).then_some(next)
}

/// The crash in this state, with each fate of what operator and agent were just about to do.
fn struck(world: &World, who: Crash) -> Vec<World> {
    let mut worlds = vec![world.clone()];
    for outcome in [Outcome::Done, Outcome::NotDone, Outcome::Unheard] {
        worlds.extend(moved(world, &|w| w.operator_step(outcome)));
        worlds.extend(moved(world, &|w| w.agent_step(outcome)));
    }
    for world in &mut worlds {
        world.crash(who);
    }
    worlds
}

/// All states that steps in any order lead to, without those that are known.
fn reachable(starts: Vec<World>, old: &HashMap<String, World>) -> HashMap<String, World> {
    let mut known: HashMap<String, World> = HashMap::new();
    let mut ahead: VecDeque<World> = starts.into();
    while let Some(world) = ahead.pop_front() {
        let key = world.key();
        if old.contains_key(&key) || known.contains_key(&key) {
            continue;
        }
        ahead.extend(next(&world));
        known.insert(key, world);
    }
    known
}

/// Strikes in every state of the change, lets everybody go on in any order from there, and, if asked to, strikes again in every
/// state that this leads to.
fn survives(scenario: &Scenario, twice: bool) {
    let mut fates = Fates::default();
    let (mut cases, mut most) = (0, 0);
    let mut strike = |worlds: &HashMap<String, World>, strikes: bool| {
        let mut after = Vec::new();
        for world in worlds.values() {
            most = most.max(fates.settle(world));
            for world in CRASHES.iter().filter(|_| strikes).flat_map(|who| struck(world, *who)) {
                most = most.max(fates.settle(&world));
                cases += 1;
                after.push(world);
            }
        }
        after
    };
    let calm = reachable(vec![World::new(scenario)], &HashMap::new());
    let shaken = reachable(strike(&calm, true), &calm);
    strike(&shaken, twice);
    let (name, calm, shaken) = (scenario.name, calm.len(), shaken.len());
    println!("{name}: {calm} states and {shaken} after a crash, {cases} crashes, at most {most} writes to the end");
    assert!(calm > 10 && most <= MOST_WRITES, "{most} writes");
}

#[test]
fn every_crash_in_every_state_ends_at_the_old_or_the_new_layout() {
    let twice = std::env::var_os("CHANGE_CRASHES").is_some_and(|n| n == "2");
    std::thread::scope(|scope| {
        for scenario in scenario::all() {
            scope.spawn(move || survives(&scenario, twice));
        }
    });
}
