//! Guarantees change on a node that NVIDIA's MIG manager carves, and everything goes wrong that can.

use gputenancy_crds::{ChangePhase, MigManagerStep, names};
use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;

use super::world::{Fault, World};
use crate::partitioner::{Shape, awaits_answer};

/// Two halves on the first GPU, or where the planner puts them.
fn settled() -> World {
    let mut world = World::new();
    world.guarantee("half", 2);
    world.settle();
    assert!(world.phases().iter().all(Option::is_none), "{:?}", world.phases());
    assert_eq!(halves(&world), 2, "{:#?} {:#?}", world.passes(), world.story);
    world
}

fn halves(world: &World) -> u32 {
    world.shapes().iter().filter_map(|s| s.counts.get("3g.40gb")).sum()
}

fn smalls(world: &World) -> u32 {
    world.shapes().iter().filter_map(|s| s.counts.get("1g.10gb")).sum()
}

#[test]
fn a_guarantee_is_carved_by_the_mig_manager_and_its_placements_are_taken_over() {
    let mut world = settled();
    assert_eq!(halves(&world), 2);
    assert_eq!(world.label(names::MIG_STATE_LABEL).as_deref(), Some("success"));
    assert!(world.label_is_true());
    world.guarantee("small", 3);
    world.settle();
    assert!(smalls(&world) >= 3 && halves(&world) == 2, "{:?}", world.shapes());
    let spec = &world.node().spec;
    assert!(spec.mig_manager.is_none() && spec.gpus.iter().all(|g| g.change.is_none() && g.hold.is_empty()));
    let smalls: Vec<i32> =
        spec.gpus.iter().flat_map(|g| &g.instances).filter(|i| i.profile == "1g.10gb").map(|i| i.start).collect();
    assert!(smalls.contains(&6), "the MIG manager counts from the back: {smalls:?}");
    assert!(world.label_is_true());
    let pass = world.passes();
    assert!(
        pass.nodes.is_empty() && pass.requests.is_empty() && pass.mig_configs.is_none(),
        "nothing is written at rest"
    );
}

#[test]
fn everybody_on_a_gpu_that_is_carved_anew_leaves_first_and_others_stay() {
    let mut world = World::new();
    world.guarantee("small", 14);
    world.settle();
    for _ in 0..14 {
        world.arrive();
    }
    world.guarantee("small", 7);
    world.guarantee("half", 1);
    world.settle();
    assert_eq!(halves(&world), 1, "{:?}", world.story);
    assert!(world.evicted.len() == 7, "one GPU of seven pods had to be carved: {:?}", world.evicted);
}

#[test]
fn stuck_in_pending_is_asked_again_by_the_layouts_other_name() {
    let mut world = settled();
    world.manager.faults.push_back(Fault::Stuck);
    let before = world.label(names::MIG_CONFIG_LABEL);
    world.guarantee("small", 3);
    world.settle();
    assert!(smalls(&world) >= 3, "{:#?}", world.story);
    assert_ne!(world.label(names::MIG_CONFIG_LABEL), before);
    assert!(world.story.iter().any(|s| s.contains("-b")), "by another name: {:#?}", world.story);
    assert!(world.label_is_true());
}

#[test]
fn a_failure_brings_the_old_layout_back_and_says_which_label_said_so() {
    for fault in [Fault::Failed, Fault::FailedPaused, Fault::Lies] {
        let mut world = settled();
        world.manager.faults.push_back(fault);
        world.guarantee("small", 3);
        world.settle();
        let failed: Vec<_> = world.node().spec.gpus.iter().filter_map(|g| g.change.as_ref()).collect();
        assert!(failed.iter().any(|c| c.phase == ChangePhase::RolledBack), "{fault:?}: {:#?}", world.story);
        let reason = &failed[0].reason;
        let names =
            ["node n", "gputenancy-"].into_iter().chain((fault != Fault::Lies).then_some(names::MIG_STATE_LABEL));
        assert!(names.into_iter().all(|n| reason.contains(n)), "{fault:?}: {reason}");
        assert_eq!((halves(&world), smalls(&world)), (2, 0));
        assert!(world.label_is_true() && world.paused().is_empty());
    }
}

/// Where the old layout is not there again the change is stuck, and says which node, label and state, and what to do.
fn stuck_where_it_is_gone(world: &World, before: &[Shape]) {
    let (label, state) =
        (format!("{}=gputenancy-", names::MIG_CONFIG_LABEL), format!("{}=failed", names::MIG_STATE_LABEL));
    let mut gone = 0;
    for (gpu, (now, before)) in world.node().spec.gpus.iter().zip(world.shapes().iter().zip(before)) {
        let change = gpu.change.as_ref().expect("nobody has mended it");
        let phase = if now == before { ChangePhase::RolledBack } else { ChangePhase::Stuck };
        assert_eq!(change.phase, phase, "{:#?}", world.story);
        gone += usize::from(now != before);
        let told = ["node n", &label, &state, "read the log of its pod on this node"];
        assert!(told.iter().all(|words| change.reason.contains(words)), "{}", change.reason);
        assert!(change.reason.matches(&state).count() <= 3, "said again and again: {}", change.reason);
    }
    assert!(gone > 0 && world.paused().is_empty(), "{:#?}", world.story);
}

#[test]
fn a_second_failure_that_leaves_another_layout_is_stuck_and_says_where_and_what_to_do() {
    let mut world = settled();
    let before = world.shapes();
    world.manager.faults.extend([Fault::Cleared; 20]);
    world.guarantee("small", 3);
    world.settle();
    stuck_where_it_is_gone(&world, &before);
    let ready = world.passes().pools["p"].conditions.iter().find(|c| c.type_ == "Ready").cloned().unwrap();
    assert!(ready.reason.starts_with("Change") && ready.message.contains(names::MIG_STATE_LABEL), "{ready:?}");
    for _ in 0..3 {
        world.now = world.now.checked_add(SignedDuration::from_hours(30)).unwrap();
        world.settle();
        stuck_where_it_is_gone(&world, &before);
    }
    assert!(world.manager.faults.len() < 16, "it was tried again: {:#?}", world.story);
    world.manager.faults.clear();
    world.now = world.now.checked_add(SignedDuration::from_hours(30)).unwrap();
    world.settle();
    assert!(world.phases().iter().all(Option::is_none), "tried again later: {:#?}", world.story);
    assert!(smalls(&world) >= 3 && halves(&world) == 2 && world.label_is_true());
}

#[test]
fn an_old_layout_that_goes_again_after_a_failure_is_brought_back() {
    let mut world = settled();
    let before = world.shapes();
    world.manager.faults.push_back(Fault::Failed);
    world.guarantee("small", 3);
    world.settle();
    assert!(world.phases().contains(&Some(ChangePhase::RolledBack)) && world.shapes() == before);
    world.manager.faults.extend([Fault::Failed; 3]);
    world.reboot();
    world.settle();
    stuck_where_it_is_gone(&world, &before);
    world.manager.faults.clear();
    world.now = world.now.checked_add(SignedDuration::from_hours(30)).unwrap();
    world.settle();
    assert!(smalls(&world) >= 3 && halves(&world) == 2, "{:#?}", world.story);
}

#[test]
fn a_pool_that_is_deleted_while_the_mig_manager_carves_leaves_nothing_paused() {
    for fault in [None, Some(Fault::Stuck), Some(Fault::Failed), Some(Fault::FailedPaused), Some(Fault::Lies)] {
        for noticed in [false, true] {
            let mut world = settled();
            world.manager.faults.extend(fault.iter().flat_map(|f| [*f; 3]));
            world.guarantee("small", 3);
            let before = world.label(names::MIG_CONFIG_LABEL);
            for _ in 0..60 {
                world.agent();
                world.operate(usize::MAX);
                world.sync();
                world.now = world.now.checked_add(SignedDuration::from_secs(10)).unwrap();
                if world.label(names::MIG_CONFIG_LABEL) != before {
                    break;
                }
            }
            // asked, and not noticed yet
            assert_ne!(world.label(names::MIG_CONFIG_LABEL), before);
            assert!(world.paused().is_empty(), "{:#?}", world.story);
            (0..usize::from(noticed)).for_each(|_| world.manage());
            world.pooled(false);
            world.settle();
            let spec = &world.node().spec;
            assert!(spec.gpus.is_empty() && spec.mig_manager.is_none(), "{fault:?}: {spec:#?} {:#?}", world.story);
            assert_eq!(spec.partitioner, gputenancy_crds::Partitioner::default());
            let seen_through = fault.is_some() || smalls(&world) >= 3;
            assert!(seen_through && world.paused().is_empty(), "{fault:?}: {:#?}", world.story);
            world.manager.faults.clear();
            world.pooled(true);
            world.now = world.now.checked_add(SignedDuration::from_hours(30)).unwrap();
            world.settle();
            assert!(smalls(&world) >= 3 && halves(&world) == 2, "{fault:?}: {:#?}", world.story);
        }
    }
}

#[test]
fn a_dead_mig_manager_is_given_up_and_the_devices_go_back() {
    let mut world = settled();
    world.manager.dead = true;
    world.guarantee("small", 3);
    world.settle();
    let changes: Vec<_> = world.node().spec.gpus.iter().filter_map(|g| g.change.as_ref()).collect();
    assert!(!changes.is_empty() && changes.iter().all(|c| c.phase >= ChangePhase::RolledBack), "{changes:?}");
    assert!(changes[0].reason.contains("restart it"), "{}", changes[0].reason);
    assert!(world.node().spec.gpus.iter().all(|g| g.hold.is_empty()), "nothing is withheld");
    world.manager.dead = false;
    world.now = world.now.checked_add(SignedDuration::from_hours(30)).unwrap();
    world.settle();
    assert!(smalls(&world) >= 3, "tried again later: {:#?}", world.story);
}

/// When the MIG manager was asked for something within so many hours, in minutes, looking every five.
fn asked(world: &mut World, hours: i64) -> Vec<i64> {
    let label = format!("{}=", names::MIG_CONFIG_LABEL);
    let mut asked = Vec::new();
    let mut count = usize::MAX;
    for minute in (0..hours * 60).step_by(5) {
        for _ in 0..4 {
            world.agent();
            world.operate(usize::MAX);
            world.sync();
            world.manage();
        }
        let now = world.story.iter().filter(|s| s.starts_with(&label)).count();
        if now > count {
            asked.push(minute);
        }
        count = now;
        world.now = world.now.checked_add(SignedDuration::from_mins(5)).unwrap();
    }
    asked
}

#[test]
fn a_dead_mig_manager_is_asked_ever_more_seldom_for_the_node_as_a_whole() {
    // either GPU would do: the second one is not tried as if nothing had happened
    let mut world = World::new();
    world.guarantee("small", 7);
    world.settle();
    world.manager.dead = true;
    world.guarantee("small", 0);
    world.guarantee("half", 1);
    let asked = asked(&mut world, 72);
    // to go on and to go back, each by two names: four askings make an attempt
    let starts: Vec<i64> = asked.iter().copied().step_by(4).collect();
    assert!(starts.len() >= 4, "{asked:?}");
    let pauses: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.windows(2).all(|pair| pair[1] > pair[0]), "{pauses:?} {asked:?}");
    let waits = |world: &mut World| {
        let pool = world.passes().pools.remove("p").unwrap();
        let ready = pool.conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
        (ready.message, pool.changes.into_iter().map(|c| c.message).collect::<Vec<_>>())
    };
    let (message, changes) = waits(&mut world);
    assert!(
        message.contains("retried at") || changes.iter().any(|c| c.contains("retried at")),
        "{message} {changes:?}"
    );
    // whoever changes something is not made to wait
    world.manager.dead = false;
    world.guarantee("small", 2);
    world.settle();
    assert!(
        smalls(&world) >= 2 && halves(&world) >= 1 && world.phases().iter().all(Option::is_none),
        "{:#?}",
        world.story
    );
}

#[test]
fn a_label_that_names_another_layout_is_set_right_before_anybody_can_carve_by_it() {
    let mut world = settled();
    let before = world.label(names::MIG_CONFIG_LABEL).unwrap();
    world.guarantee("small", 3);
    world.settle();
    let shapes = world.shapes();
    // as a pool finds it that comes back after a carving that failed
    world.set_label(names::MIG_CONFIG_LABEL, &before);
    world.manager.dead = true;
    assert!(!world.label_is_true());
    world.settle();
    assert!(world.label_is_true() && world.node().spec.mig_manager.is_none(), "{:#?}", world.story);
    world.manager.dead = false;
    world.settle();
    assert_eq!(world.shapes(), shapes, "nothing was carved");
}

#[test]
fn after_the_pools_deletion_an_answer_is_waited_for_as_long_as_the_pool_said() {
    let silent_for = |pool_said: &str| {
        let mut world = settled();
        world.fleet.pools[0].spec.mig_manager =
            serde_json::from_value(serde_json::json!({"timeout": pool_said})).unwrap();
        world.manager.dead = true;
        world.guarantee("small", 3);
        while world.node().spec.mig_manager.as_ref().is_none_or(|r| r.step != MigManagerStep::Asked) {
            world.agent();
            world.operate(usize::MAX);
            world.sync();
            world.now = world.now.checked_add(SignedDuration::from_secs(10)).unwrap();
        }
        world.pooled(false);
        let start = world.now;
        while awaits_answer(world.node()) {
            world.agent();
            world.operate(usize::MAX);
            world.now = world.now.checked_add(SignedDuration::from_secs(30)).unwrap();
        }
        world.now.duration_since(start).as_mins()
    };
    let (short, long) = (silent_for("3m"), silent_for("60m"));
    assert!((6..20).contains(&short) && (120..140).contains(&long), "{short} and {long} minutes, asked twice each");
}

#[test]
fn a_layout_that_is_gone_after_a_reboot_is_carved_again() {
    let mut world = settled();
    world.manager.dead = true;
    world.reboot();
    world.agent();
    world.operate(usize::MAX);
    assert!(world.phases().iter().any(Option::is_some), "it is noticed");
    world.manager.dead = false;
    world.settle();
    assert_eq!(halves(&world), 2);
    assert!(world.phases().iter().all(Option::is_none), "{:#?}", world.story);
}

#[test]
fn the_pool_says_what_the_mig_manager_is_asked_for() {
    let mut world = settled();
    world.manager.dead = true;
    world.guarantee("small", 3);
    for _ in 0..40 {
        world.agent();
        world.operate(usize::MAX);
        world.now = world.now.checked_add(SignedDuration::from_secs(5)).unwrap();
    }
    let run = world.node().spec.mig_manager.clone().unwrap();
    assert_eq!(run.step, MigManagerStep::Asked);
    let status = &world.passes().pools["p"];
    assert!(status.changes[0].message.contains(&run.config), "{:?}", status.changes);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Operator(usize),
    Agent,
    Sync,
    Manager,
    Wait(i64),
    Arrive,
    Guarantee(bool, i32),
    Reboot,
    Fault(Fault),
    Dead(bool),
    Pool(bool),
}

fn acts(pools: bool) -> impl Strategy<Value = Vec<Act>> {
    let fault = prop_oneof![
        Just(Fault::Stuck),
        Just(Fault::Failed),
        Just(Fault::FailedPaused),
        Just(Fault::Lies),
        Just(Fault::Cleared)
    ];
    let act = prop_oneof![
        12 => prop_oneof![3 => Just(usize::MAX), 1 => 1..4_usize].prop_map(Act::Operator),
        12 => Just(Act::Agent),
        4 => Just(Act::Sync),
        8 => Just(Act::Manager),
        6 => prop_oneof![Just(5), Just(30), Just(120), Just(1300)].prop_map(Act::Wait),
        4 => Just(Act::Arrive),
        2 => (any::<bool>(), 0..4).prop_map(|(small, n)| Act::Guarantee(small, n)),
        1 => Just(Act::Reboot),
        2 => fault.prop_map(Act::Fault),
        1 => any::<bool>().prop_map(Act::Dead),
        1 => any::<bool>().prop_map(move |pool| if pools { Act::Pool(pool) } else { Act::Agent }),
    ];
    proptest::collection::vec(act, 0..120)
}

fn act(world: &mut World, act: Act) {
    match act {
        Act::Operator(things) => drop(world.operate(things)),
        Act::Agent => world.agent(),
        Act::Sync => world.sync(),
        Act::Manager => world.manage(),
        Act::Wait(seconds) => world.now = world.now.checked_add(SignedDuration::from_secs(seconds)).unwrap(),
        Act::Arrive => world.arrive(),
        Act::Guarantee(small, n) => world.guarantee(if small { "small" } else { "half" }, n),
        Act::Reboot => world.reboot(),
        Act::Fault(fault) => world.manager.faults.push_back(fault),
        Act::Dead(dead) => world.manager.dead = dead,
        Act::Pool(pooled) => world.pooled(pooled),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, ..ProptestConfig::default() })]

    /// Whatever the MIG manager does and whoever crashes: changes end released, rolled back or stuck, nothing stays paused or withheld,
    /// the label names what is there, and no pod ever loses its device.
    #[test]
    fn every_interleaving_comes_to_an_end(script in acts(false)) {
        let mut world = settled();
        for step in script {
            act(&mut world, step);
        }
        world.settle();
        if !world.label_is_true() {
            // a start of the MIG manager that failed is put right with the next change, and after a failure that waits
            world.now = world.now.checked_add(SignedDuration::from_hours(30)).unwrap();
            world.settle();
        }
        prop_assert!(world.paused().is_empty());
        for gpu in &world.node().spec.gpus {
            let stuck = gpu.change.as_ref().is_some_and(|c| c.phase == ChangePhase::Stuck);
            prop_assert!(stuck || gpu.hold.is_empty(), "{gpu:?} {:#?}", world.story);
        }
        let stuck = world.phases().contains(&Some(ChangePhase::Stuck));
        prop_assert!(stuck || world.label_is_true(), "{:#?}", world.story);
    }

    /// A pool that goes at any time leaves a node that nobody of ours has anything to do with, and one that comes back finds it usable.
    /// That nothing is paused when the node is let go the world itself sees to.
    #[test]
    fn a_pool_may_go_and_come_back_at_any_time(script in acts(true)) {
        let mut world = settled();
        for step in script {
            act(&mut world, step);
        }
        world.pooled(false);
        world.settle();
        prop_assert!(world.node().spec.mig_manager.as_ref().is_none_or(|r| r.step == MigManagerStep::Publishing));
        world.manager.dead = false;
        world.manager.faults.clear();
        world.pooled(true);
        world.settle();
        prop_assert!(world.paused().is_empty(), "{:#?}", world.story);
        prop_assert!(world.phases().iter().all(|p| p.is_none_or(|p| p >= ChangePhase::RolledBack)));
        let stuck = world.phases().contains(&Some(ChangePhase::Stuck));
        prop_assert!(stuck || world.label(names::MIG_CONFIG_LABEL).is_none() || world.label_is_true(), "{:#?}", world.story);
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}
