//! The owner of a pod may write its annotations, start pods and refuse evictions by a budget: none of these postpones the end of a
//! drain beyond its time limits.

use gputenancy_crds::{Change, ChangePhase, Layout};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::{config, small::World};

const NOTICE: SignedDuration = SignedDuration::from_secs(20);
const DRAIN: SignedDuration = SignedDuration::from_secs(60);

fn layout(instances: &[(&str, i32)]) -> Layout {
    let spec = |(profile, start): &(&str, i32)| serde_json::json!({"profile": profile, "start": start});
    let instances: Vec<_> = instances.iter().map(spec).collect();
    serde_json::from_value(serde_json::json!({"mig": true, "instances": instances})).unwrap()
}

fn small() -> Layout {
    layout(&[("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2), ("3g.40gb", 4)])
}

fn halves() -> Layout {
    layout(&[("3g.40gb", 0), ("3g.40gb", 4)])
}

/// A change to halves with one owner has just begun.
fn begun() -> World {
    let mut world = World::new(&small());
    (world.policy.notice, world.policy.drain_timeout) = (NOTICE, DRAIN);
    world.start(0);
    world.agent();
    world.target = Some(halves());
    world.operate(3);
    world
}

fn change(world: &World) -> Option<&Change> {
    world.node.spec.gpus[0].change.as_ref()
}

fn evict_after(world: &World) -> Timestamp {
    change(world).unwrap().evict_after.as_ref().unwrap().0
}

fn draining(world: &World) -> bool {
    use ChangePhase::{Evicting, Held, Noticed};
    matches!(world.phase(), Some(Noticed | Held | Evicting))
}

fn annotate(world: &mut World, noticed: bool) {
    world.pods.values_mut().for_each(|pod| pod.noticed = noticed);
}

/// One round of everything but pods that end.
fn round(world: &mut World) {
    world.operate(3);
    world.agent();
    world.kubelet();
}

#[test]
fn owner_without_its_notice_is_evicted_at_the_same_time() {
    let mut world = begun();
    let (began, first) = (world.now, evict_after(&world));
    assert_eq!(first, began + NOTICE);
    while world.evicted.is_empty() {
        assert!(world.now <= first + SignedDuration::from_secs(2), "{:#?}", world.node.spec);
        annotate(&mut world, false);
        round(&mut world);
        assert!(!draining(&world) || evict_after(&world) == first);
        assert!(world.evicted.is_empty() || world.now >= first, "evicted within its notice");
        world.pass(SignedDuration::from_secs(1));
    }
}

#[test]
fn budget_and_stripped_notice_end_with_the_drain_timeout() {
    let mut world = begun();
    let ends = world.now + NOTICE + DRAIN;
    world.refuses = true;
    while world.now < ends {
        annotate(&mut world, false);
        round(&mut world);
        world.pass(SignedDuration::from_secs(1));
    }
    world.operate(3);
    assert!(!draining(&world), "{:?}", change(&world));
}

#[test]
fn pod_that_starts_later_gets_a_notice_of_its_own_within_the_limit() {
    let mut world = begun();
    let began = world.now;
    world.refuses = true;
    world.pass(NOTICE);
    for _ in 0..5 {
        round(&mut world);
    }
    assert_eq!(world.phase(), Some(ChangePhase::Evicting));
    // kubelet has given a device away after the notice
    let joined = world.pods.keys().next().unwrap().clone();
    world.pods.get_mut(&joined).unwrap().started = Some(world.now);
    let decision = world.operate(3);
    assert_eq!((world.phase(), evict_after(&world)), (Some(ChangePhase::Noticed), began + NOTICE * 2));
    assert_eq!(decision.evictions.len(), 0);
    world.pass(NOTICE);
    world.pods.get_mut(&joined).unwrap().started = Some(world.now);
    (0..2).for_each(|_| round(&mut world));
    assert_eq!(evict_after(&world), began + NOTICE * 2, "no second time");
    assert_ne!(world.phase(), Some(ChangePhase::Noticed));
}

#[test]
fn owner_of_a_revised_target_gets_its_notice_and_plans_cannot_repeat_it_without_end() {
    let mut world = begun();
    let began = world.now;
    (0..3).for_each(|_| world.start(0));
    world.agent();
    annotate(&mut world, true);
    let targets = [layout(&[("1g.10gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)]), halves()];
    let intent = |world: &World| change(world).unwrap().intent.clone();
    for turn in 0..20 {
        world.target = Some(targets[turn % 2].clone());
        // the plan has changed because of pods, not because of an edit
        let kept = intent(&world);
        world.operate_for(&kept);
        if !draining(&world) {
            break;
        }
        assert!(evict_after(&world) <= began + NOTICE * 2, "turn {turn}");
        world.pass(SignedDuration::from_secs(5));
    }
}

/// A notice that ended so long ago was not seen to end.
const STALL: SignedDuration = SignedDuration::from_mins(1);
const OUTAGE: SignedDuration = SignedDuration::from_mins(90);

#[test]
fn target_that_is_revised_after_an_outage_evicts_no_pod_without_a_notice() {
    let mut world = begun();
    annotate(&mut world, true);
    let first: Vec<_> = world.pods.keys().cloned().collect();
    let kept = change(&world).unwrap().intent.clone();
    world.agent();
    world.start(0);
    world.agent();
    world.pass(OUTAGE);
    // the plan has changed because of pods, not because of an edit
    world.target = Some(Layout::default());
    let decision = world.operate_for(&kept);
    assert!(world.evicted.is_empty(), "{:?}", world.evicted);
    let joined: Vec<_> = decision.notices.iter().map(|notice| (&notice.pod, notice.deadline)).collect();
    let deadline = world.now + NOTICE;
    assert!(joined.iter().any(|(pod, at)| !first.contains(pod) && *at == deadline), "{joined:?}");
    assert_eq!((world.phase(), evict_after(&world)), (Some(ChangePhase::Noticed), deadline));
}

#[test]
fn owner_whose_notice_was_lost_with_the_operator_gets_one_afterwards() {
    let mut world = World::new(&small());
    (world.policy.notice, world.policy.drain_timeout) = (NOTICE, DRAIN);
    world.start(0);
    world.agent();
    world.target = Some(halves());
    // it ends between the spec and the notice
    world.operate(1);
    world.agent();
    world.pass(OUTAGE);
    let decision = world.operate(3);
    assert_eq!((decision.notices.len(), evict_after(&world)), (1, world.now + NOTICE));
    let began = world.now;
    while world.evicted.is_empty() {
        assert!(world.now <= began + NOTICE + SignedDuration::from_secs(5), "{:#?}", world.node.spec);
        annotate(&mut world, false);
        world.pass(SignedDuration::from_secs(1));
        round(&mut world);
    }
    assert!(world.now >= began + NOTICE, "evicted within its notice");
}

#[test]
fn plan_that_would_shorten_the_notice_of_an_owner_waits_for_the_change() {
    let mut world = World::new(&small());
    (world.policy.notice, world.policy.drain_timeout) = (NOTICE, DRAIN);
    (0..4).for_each(|_| world.start(0));
    world.agent();
    // each evicts one pod more
    let targets =
        [&[("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)][..], &[("1g.10gb", 0), ("3g.40gb", 4)], &[("3g.40gb", 4)]];
    let began = world.now;
    for (seconds, target, to, ends) in [(0, 0, 0, 20), (15, 1, 1, 35), (25, 2, 1, 35)] {
        world.now = began + SignedDuration::from_secs(seconds);
        world.target = Some(layout(targets[target]));
        world.operate_for("kept");
        world.agent();
        let expected = (layout(targets[to]), began + SignedDuration::from_secs(ends));
        assert_eq!((change(&world).unwrap().to.clone(), evict_after(&world)), expected, "after {seconds} s");
    }
}

#[derive(Clone, Debug)]
enum Move {
    Strip,
    Forge,
    Start(usize),
    Refuse(bool),
    Reap,
    Round,
    Time(i64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => Just(Move::Strip),
        1 => Just(Move::Forge),
        2 => (0_usize..4).prop_map(Move::Start),
        1 => any::<bool>().prop_map(Move::Refuse),
        1 => Just(Move::Reap),
        6 => Just(Move::Round),
        4 => (1_i64..9).prop_map(Move::Time),
    ];
    prop::collection::vec(one, 0..160)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn tenant_cannot_postpone_the_end_of_a_drain(moves in moves(), joins in any::<bool>()) {
        let mut world = begun();
        let started = world.now;
        let notices = if joins { NOTICE * 2 } else { NOTICE };
        let mut latest = started + notices;
        for step in moves {
            // no operator was there when the notice ended
            let noticed = change(&world).filter(|c| c.phase == ChangePhase::Noticed && matches!(step, Move::Round));
            if noticed.and_then(|c| c.evict_after.as_ref()).is_some_and(|at| at.0 + STALL <= world.now) {
                latest = latest.max(world.now + NOTICE);
            }
            match step {
                Move::Strip => annotate(&mut world, false),
                Move::Forge => annotate(&mut world, true),
                Move::Start(pick) if joins => world.start(pick),
                Move::Start(_) => {}
                Move::Refuse(refuses) => world.refuses = refuses,
                Move::Reap => world.reap(),
                Move::Round => round(&mut world),
                Move::Time(seconds) => world.pass(SignedDuration::from_secs(seconds)),
            }
            let same = change(&world).filter(|c| c.started_at.0 == started && draining(&world));
            let Some(begins) = same.and_then(|c| c.evict_after.as_ref()) else { continue };
            prop_assert!(begins.0 <= latest, "evictions begin {} after {started}", begins.0);
        }
        if change(&world).is_some_and(|c| c.started_at.0 == started) {
            // after an outage the first round may write a notice, the second one begins evictions
            for wait in [SignedDuration::ZERO, NOTICE, DRAIN] {
                world.now = world.now.max(latest) + wait;
                (0..3).for_each(|_| round(&mut world));
            }
            prop_assert!(!draining(&world), "{:?}", change(&world));
        }
    }
}
