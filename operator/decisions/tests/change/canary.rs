//! New devices are proven by canary pods before anybody else can get them.

use std::collections::BTreeSet;

use gputenancy_crds::{ChangePhase, Health};
use gputenancy_decisions::change::{CanaryOutcome, CanaryRequest, ChangeDecision};
use k8s_openapi::jiff::SignedDuration;

use super::{
    actors::Outcome,
    scenario::{self, Scenario},
    world::World,
};

/// From two halves to two small slices and one half, with a canary, nobody there.
fn tried() -> World {
    let scenario = scenario::all().into_iter().find(|s| s.name == "one of two new instances is tried").unwrap();
    World::new(&scenario)
}

/// Operator and agent work until the operator asks for a canary pod.
fn asked(world: &mut World) -> CanaryRequest {
    for _ in 0..100 {
        if let Some(canary) = world.decide().canaries.first().cloned() {
            return canary;
        }
        let _ = world.agent_step(Outcome::Done) || world.operator_step(Outcome::Done);
    }
    panic!("no canary is asked for: {:#?}", world.spec());
}

/// The canary pod is there, and this has become of it.
fn decision_after(world: &mut World, outcome: CanaryOutcome) -> ChangeDecision {
    let canary = asked(world);
    while !world.canaries.contains_key(&canary.name) {
        world.operator_step(Outcome::Done);
    }
    world.canaries.get_mut(&canary.name).unwrap().pod.outcome = outcome;
    world.decide()
}

fn phase(decision: &ChangeDecision) -> Option<ChangePhase> {
    decision.spec.as_ref().and_then(|s| s.change.as_ref()).map(|c| c.phase)
}

fn event(decision: &ChangeDecision) -> (&'static str, String) {
    (decision.events[0].reason.as_str(), decision.events[0].message.clone())
}

#[test]
fn one_new_device_of_each_profile_is_tried_the_others_are_held_and_neighbours_stay_offered() {
    let mut world = tried();
    let canary = asked(&mut world);
    assert_eq!(world.phase(), Some(ChangePhase::Canary));
    assert_eq!((&world.spec().trial[..], &world.spec().hold[..]), (&[0][..], &[1][..]));
    assert_eq!(world.listed, BTreeSet::from([0, 4]), "kubelet knows the tried one and the neighbour");
    assert_eq!(world.allocatable.keys().collect::<Vec<_>>(), ["gputenancy.io/canary_0_0", "nvidia.com/mig-3g.40gb"]);
    assert_eq!((canary.resource.as_str(), canary.profile.as_deref()), ("gputenancy.io/canary_0_0", Some("1g.10gb")));
    assert_eq!((canary.device.as_str(), canary.seconds), ("1g.10gb at 0 of n GPU 0", 120));
}

#[test]
fn a_whole_gpu_is_a_profile_too() {
    let verifying = tried();
    let mut world = World::new(&Scenario { to: gputenancy_crds::Layout::default(), ..scenario::all()[1].clone() });
    world.policy = verifying.policy;
    let canary = asked(&mut world);
    assert_eq!((canary.profile, world.spec().trial.clone()), (None, vec![0]));
}

#[test]
fn one_that_is_offered_under_another_name_gets_no_canary() {
    let mut world = tried();
    asked(&mut world);
    world.allocatable.remove("gputenancy.io/canary_0_0");
    assert_eq!(world.decide().canaries.len(), 0, "the scheduler would not find it");
    let message = world.decide().progress.unwrap().message;
    assert_eq!(message, "advertising 1g.10gb at 0 to its canary pod");
}

#[test]
fn one_that_passes_releases_the_layout() {
    let mut world = tried();
    let decision = decision_after(&mut world, CanaryOutcome::Passed);
    let spec = decision.spec.clone().unwrap();
    assert_eq!((phase(&decision), spec.hold.len(), spec.trial.len()), (Some(ChangePhase::Verifying), 0, 0));
    assert_eq!(event(&decision), ("CanaryPassed", "n GPU 0: canary pods have verified 1g.10gb at 0".into()));
    assert!(decision.kept_canaries.is_empty(), "its pod has done its duty");
}

#[test]
fn one_that_fails_brings_the_old_layout_back_and_says_profile_node_gpu_and_its_last_words() {
    let mut world = tried();
    let decision = decision_after(&mut world, CanaryOutcome::Failed("exit code 3: no CUDA device".into()));
    assert_eq!(phase(&decision), Some(ChangePhase::RollingBack));
    let (name, words) = event(&decision);
    assert_eq!(name, "CanaryFailed");
    assert!(words.contains(" on 1g.10gb at 0 of n GPU 0 failed: exit code 3: no CUDA device"), "{words}");
    let spec = decision.spec.unwrap();
    assert_eq!((spec.trial.len(), decision.kept_canaries.len()), (0, 0));
    assert!(spec.change.unwrap().reason.contains("exit code 3"));
}

#[test]
fn canary_that_does_not_end_in_time_has_failed_and_its_state_is_reported() {
    let mut world = tried();
    let decision =
        decision_after(&mut world, CanaryOutcome::Pending("it starts (ImagePullBackOff) no such image".into()));
    assert_eq!(decision.spec, None);
    assert_eq!(decision.kept_canaries.len(), 1);
    world.now = decision.requeue_at.expect("the timeout");
    let (name, words) = event(&world.decide());
    assert_eq!((name, phase(&world.decide())), ("CanaryFailed", Some(ChangePhase::RollingBack)));
    let expected = "has not passed within spec.verify.canary.timeout (2m): it starts (ImagePullBackOff) no such image";
    assert!(words.ends_with(expected), "{words}");
}

#[test]
fn inconclusive_canary_is_replaced_after_a_while() {
    let mut world = tried();
    let decision = decision_after(&mut world, CanaryOutcome::Inconclusive("UnexpectedAdmissionError".into()));
    assert_eq!((decision.spec, decision.kept_canaries.len()), (None, 1));
    let again = world.now + SignedDuration::from_secs(10);
    assert_eq!(decision.requeue_at, Some(again));
    world.now = again;
    assert_eq!(world.decide().kept_canaries.len(), 0, "it is removed, and the next one comes when it is gone");
    while world.fair_step().is_some() {}
    world.check_end();
}

#[test]
fn a_pool_that_wants_no_canary_any_more_waits_for_none() {
    let mut world = tried();
    decision_after(&mut world, CanaryOutcome::Pending("it runs".into()));
    world.policy.canary = None;
    assert_eq!(phase(&world.decide()), Some(ChangePhase::Verifying));
    while world.fair_step().is_some() {}
    world.check_end();
}

#[test]
fn nothing_is_judged_while_the_agent_is_away() {
    let mut world = tried();
    decision_after(&mut world, CanaryOutcome::Failed("exit code 1".into()));
    world.node_ready = false;
    let decision = world.decide();
    assert_eq!(
        (decision.spec, decision.kept_canaries.len()),
        (None, 1),
        "the verdict is kept until it can be acted on"
    );
}

#[test]
fn a_gpu_that_was_lost_on_trial_is_tried_again_when_it_is_back() {
    let mut world = tried();
    decision_after(&mut world, CanaryOutcome::Pending("it runs".into()));
    world.node.status.as_mut().unwrap().gpus[0].health = Health::Lost;
    let decision = world.decide();
    assert_eq!((phase(&decision), event(&decision).0), (Some(ChangePhase::Stuck), "GpuLost"));
    world.node.spec.gpus = vec![decision.spec.unwrap()];
    world.node.metadata.generation = world.node.metadata.generation.map(|g| g + 1);
    while world.agent_step(Outcome::Done) {}
    assert_eq!(phase(&world.decide()), Some(ChangePhase::Canary), "and is not released without a proof");
    while world.fair_step().is_some() {}
    world.check_end();
}
