//! Guarantees change on a node that NVIDIA's MIG manager carves, and everything goes wrong that can.

use gputenancy_crds::{ChangePhase, MigManagerStep, names};
use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;

use super::world::{Fault, World};

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
    assert!(pass.nodes.is_empty() && pass.asks.is_empty() && pass.mig_configs.is_none(), "nothing is written at rest");
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
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let fault = prop_oneof![Just(Fault::Stuck), Just(Fault::Failed), Just(Fault::FailedPaused), Just(Fault::Lies)];
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
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, ..ProptestConfig::default() })]

    /// Whatever the MIG manager does and whoever crashes: changes end released, rolled back or stuck, nothing stays paused or withheld,
    /// the label names what is there, and no pod ever loses its device.
    #[test]
    fn every_interleaving_comes_to_an_end(script in acts()) {
        let mut world = settled();
        for step in script {
            act(&mut world, step);
        }
        world.settle();
        prop_assert!(world.paused().is_empty());
        for gpu in &world.node().spec.gpus {
            let stuck = gpu.change.as_ref().is_some_and(|c| c.phase == ChangePhase::Stuck);
            prop_assert!(stuck || gpu.hold.is_empty(), "{gpu:?} {:#?}", world.story);
        }
        let ended = world.phases().iter().all(Option::is_none);
        prop_assert!(!ended || world.label_is_true(), "{:#?}", world.story);
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}
