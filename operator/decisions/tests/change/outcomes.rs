//! Each way in which NVML can refuse: its own name, words and end, and none of them a hot loop.

use gputenancy_crds::{AgentStep, ChangePhase, DeviceOwner, GpuError, Health, Holder, Partitioner};
use gputenancy_decisions::{
    change::{ChangeDecision, PodController},
    partitioner::RequestState,
};
use k8s_openapi::jiff::SignedDuration;

use super::{
    actors::Outcome,
    scenario::{self, Scenario},
    world::World,
};

fn calm() -> World {
    World::new(&Scenario { pods: vec![], ..scenario::all()[0].clone() })
}

/// Everybody works until the phase is reached.
fn until(world: &mut World, phase: ChangePhase) {
    for _ in 0..100 {
        if world.phase() == Some(phase) {
            return;
        }
        let _ = world.agent_step(Outcome::Done) || world.kubelet_step() || world.operator_step(Outcome::Done);
    }
    panic!("{phase:?} was not reached: {:#?}", world.spec());
}

/// The agent's word about the present spec.
fn status(world: &mut World, step: AgentStep, error: Option<(&str, i32)>) {
    let generation = world.node.metadata.generation.unwrap();
    let status = world.node.status.as_mut().unwrap();
    status.observed_generation = Some(generation);
    status.gpus[0].step = step;
    let record = |(call, code): (&str, i32)| GpuError { call: call.into(), code, message: "words".into(), generation };
    status.gpus[0].error = error.map(record);
}

fn partitioning() -> World {
    let mut world = calm();
    until(&mut world, ChangePhase::Partitioning);
    world
}

fn next_phase(decision: &ChangeDecision) -> Option<ChangePhase> {
    decision.spec.as_ref().and_then(|s| s.change.as_ref()).map(|c| c.phase)
}

fn first_event(decision: &ChangeDecision) -> (&'static str, String) {
    let event = &decision.events[0];
    assert!(event.warning);
    (event.reason.as_str(), event.message.clone())
}

#[test]
fn a_refused_placement_goes_back_at_once() {
    let mut world = partitioning();
    status(&mut world, AgentStep::Failed, Some(("nvmlDeviceCreateGpuInstanceWithPlacement", 23)));
    let decision = world.decide();
    assert_eq!(next_phase(&decision), Some(ChangePhase::RollingBack));
    let (name, words) = first_event(&decision);
    assert_eq!(name, "PlacementRefused");
    assert!(words.contains("nvmlDeviceCreateGpuInstanceWithPlacement returned 23"), "{words}");
}

#[test]
fn other_refusals_are_distinguished() {
    for (code, name) in [(19, "InUse"), (16, "ResetRequired"), (4, "NvmlFailed"), (999, "NvmlFailed")] {
        let mut world = partitioning();
        status(&mut world, AgentStep::Failed, Some(("nvmlGpuInstanceDestroy", code)));
        let decision = world.decide();
        assert_eq!((next_phase(&decision), first_event(&decision).0), (Some(ChangePhase::RollingBack), name), "{code}");
    }
}

#[test]
fn a_lost_gpu_is_given_up_while_it_is_carved_and_left_in_peace_until_it_is_back() {
    let mut world = partitioning();
    status(&mut world, AgentStep::Failed, Some(("nvmlGpuInstanceDestroy", 15)));
    let decision = world.decide();
    assert_eq!((next_phase(&decision), first_event(&decision).0), (Some(ChangePhase::Stuck), "GpuLost"));
    world.node.spec.gpus = vec![decision.spec.unwrap()];
    world.node.metadata.generation = world.node.metadata.generation.map(|g| g + 1);
    status(&mut world, AgentStep::Failed, Some(("nvmlDeviceGetHandleByUUID", 15)));
    world.node.status.as_mut().unwrap().gpus[0].health = Health::Lost;
    for _ in 0..10 {
        world.now += SignedDuration::from_hours(30);
        assert_eq!(world.decide().spec, None, "nothing is written for a GPU that is not there");
    }
    world.node.status.as_mut().unwrap().gpus[0].health = Health::Healthy;
    while world.fair_step().is_some() {}
    world.check_end();
}

#[test]
fn gpu_lost_before_partitioning_reverts_its_change_and_evicts_no_pod() {
    let mut world = World::new(&scenario::all()[0]);
    world.refusals = 1000;
    until(&mut world, ChangePhase::Evicting);
    while world.agent_step(Outcome::Done) {}
    world.node.status.as_mut().unwrap().gpus[0].health = Health::Lost;
    let decision = world.decide();
    assert_eq!((next_phase(&decision), first_event(&decision).0), (None, "GpuLost"));
    assert_eq!((decision.spec.unwrap().hold.len(), decision.evictions.len()), (0, 0));
}

#[test]
fn unhealthy_gpu_evicts_no_pod() {
    let mut world = World::new(&Scenario { pods: vec![(0, PodController::Replaces)], ..scenario::all()[0].clone() });
    until(&mut world, ChangePhase::Held);
    while world.agent_step(Outcome::Done) {}
    world.node.status.as_mut().unwrap().gpus[0].health = Health::Unhealthy;
    let decision = world.decide();
    assert_eq!(decision.evictions.len(), 0);
    assert!(decision.progress.unwrap().message.contains("unhealthy"));
}

#[test]
fn a_pending_mode_is_waited_for_and_then_named() {
    let mut world = partitioning();
    status(&mut world, AgentStep::WaitingForReset, Some(("nvidia-smi --gpu-reset", 19)));
    let decision = world.decide();
    assert_eq!(decision.spec, None);
    let message = decision.progress.unwrap().message;
    assert!(
        message.contains("pending until the GPU is reset (nvidia-smi --gpu-reset returned 19: words)"),
        "{message}"
    );
    world.now += SignedDuration::from_mins(6);
    let decision = world.decide();
    assert_eq!((next_phase(&decision), first_event(&decision).0), (Some(ChangePhase::RollingBack), "ModePending"));
}

#[test]
fn a_node_that_is_partitioned_as_a_whole_times_out_only_without_an_open_request() {
    let mut world = partitioning();
    world.partitioner = Partitioner::MigManager;
    status(&mut world, AgentStep::Steady, None);
    world.now += SignedDuration::from_mins(6);
    world.request = Some(RequestState::InProgress("the MIG manager works".into()));
    assert_eq!(next_phase(&world.decide()), None, "a request has timeouts of its own");
    world.request = None;
    let decision = world.decide();
    assert_eq!((next_phase(&decision), first_event(&decision).0), (Some(ChangePhase::RollingBack), "Overdue"));
}

#[test]
fn a_process_in_the_way_is_named_with_its_pid_command_container_and_pod() {
    let mut world = partitioning();
    status(&mut world, AgentStep::WaitingForClients, None);
    let container = DeviceOwner { namespace: "team-b".into(), pod: "monitor-x7k2p".into(), container: "main".into() };
    let holder =
        Holder { pid: 4711, command: "python train.py".into(), container: Some(container), ..Holder::default() };
    world.node.status.as_mut().unwrap().gpus[0].holders = vec![holder];
    let message = world.decide().progress.unwrap().message;
    let named = "process 4711 (python train.py) of container main of pod team-b/monitor-x7k2p still uses";
    assert!(message.contains(named), "{message}");
    world.now += SignedDuration::from_mins(6);
    assert_eq!(first_event(&world.decide()).0, "InUse");
}

#[test]
fn what_fails_again_and_again_is_tried_ever_more_seldom() {
    let mut world = calm();
    world.failures = 1_000_000;
    let begin = world.now;
    while world.now.duration_since(begin) < SignedDuration::from_hours(24 * 14) {
        world.fair_step().unwrap();
    }
    assert!((20..80).contains(&world.writes), "{} writes in two weeks", world.writes);
}

#[test]
fn a_plan_that_looks_better_because_a_pod_has_left_does_not_undo_the_change() {
    let mut world = World::new(&scenario::all()[0]);
    let wanted = world.target.clone();
    until(&mut world, ChangePhase::Evicting);
    while world.evicted.is_empty() {
        let _ = world.agent_step(Outcome::Done) || world.operator_step(Outcome::Done);
    }
    let intent = world.spec().change.clone().unwrap().intent;
    world.target = world.from.clone();
    let decision = world.decide_with(&intent);
    assert_eq!(
        decision.spec.as_ref().and_then(|s| s.change.as_ref()).or(world.spec().change.as_ref()).unwrap().to,
        wanted
    );
    let decision = world.decide();
    assert_eq!(decision.spec.map(|s| s.change), Some(None), "what people write counts at any time");
}
