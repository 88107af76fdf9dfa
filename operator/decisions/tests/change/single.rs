//! One change at a time: what the machine does, in which order, and what it says.

use gputenancy_crds::{ChangePhase, DoNotEvict, GpuSpec, Holder, Layout, OnTimeout};
use gputenancy_decisions::change::{ChangeDecision, PodController, waits_to_retry};
use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;

use super::{
    config,
    failures::empty_answers::EmptyAnswer,
    shares::{parts, turns},
    small::{World, devices},
};

pub fn layout(instances: &[(&str, i32)]) -> Layout {
    let spec = |(profile, start): &(&str, i32)| serde_json::json!({"profile": profile, "start": start});
    let instances: Vec<_> = instances.iter().map(spec).collect();
    serde_json::from_value(serde_json::json!({"mig": !instances.is_empty(), "instances": instances})).unwrap()
}

pub fn split() -> Layout {
    layout(&[("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)])
}

pub fn halves() -> Layout {
    layout(&[("3g.40gb", 0), ("3g.40gb", 4)])
}

/// Operator and agent in turn, until the phase is reached.
pub fn until(world: &mut World, phase: ChangePhase) -> ChangeDecision {
    for _ in 0..20 {
        let decision = world.operate(3);
        if world.phase() == Some(phase) {
            return decision;
        }
        world.agent();
        world.kubelet();
    }
    panic!("{phase:?} was not reached: {:#?}", world.node.spec);
}

fn message(decision: &ChangeDecision) -> String {
    decision.progress.clone().map(|p| p.message).unwrap_or_default()
}

#[test]
fn evicts_only_the_owner_of_the_instance_that_goes() {
    let mut world = World::new(&split());
    (0..3).for_each(|_| world.start(0));
    world.agent();
    world.target = Some(layout(&[("1g.10gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)]));
    world.settle();
    assert_eq!(world.evicted, ["pod-2"]);
    assert_eq!((world.pods.len(), world.phase(), world.hold()), (2, None, vec![]));
    assert_eq!(Some(world.shown()), world.target);
    assert_eq!(world.events, ["ChangeStarted", "Changed"]);
}

#[test]
fn idle_gpu_is_changed_without_notice() {
    let mut world = World::new(&split());
    world.policy.notice = SignedDuration::from_mins(15);
    world.target = Some(halves());
    let start = world.now;
    world.settle();
    assert_eq!(Some(world.shown()), world.target);
    assert!(world.now.duration_since(start) < SignedDuration::from_mins(1));
    assert_eq!(world.writes, 4, "held, carved, given back, done");
}

#[test]
fn instances_are_added_beside_others_without_any_hold() {
    let mut world = World::new(&layout(&[("1g.10gb", 0)]));
    world.start(0);
    world.agent();
    world.target = Some(split());
    let decision = world.operate(3);
    assert_eq!(
        decision.spec.as_ref().map(|s| s.hold.clone()),
        Some(vec![1, 4]),
        "what is new is offered when all is there"
    );
    assert_eq!(world.phase(), Some(ChangePhase::Partitioning));
    world.settle();
    assert_eq!((world.evicted.len(), world.pods.len()), (0, 1));
}

#[test]
fn owners_are_notified_in_time_and_free_neighbours_are_withdrawn_at_once() {
    let mut world = World::new(&split());
    world.policy.notice = SignedDuration::from_mins(15);
    world.start(0);
    world.agent();
    world.target = Some(halves());
    let decision = world.operate(3);
    assert_eq!(world.phase(), Some(ChangePhase::Noticed));
    assert_eq!((world.hold(), decision.notices.len(), decision.evictions.len()), (vec![1], 1, 0));
    world.agent();
    world.pass(SignedDuration::from_mins(14));
    let decision = world.operate(3);
    assert_eq!((world.phase(), decision.notices.len()), (Some(ChangePhase::Noticed), 0), "notified once");
    assert!(decision.requeue_at.is_some_and(|at| at <= world.now.checked_add(SignedDuration::from_mins(1)).unwrap()));
    world.pass(SignedDuration::from_mins(1));
    until(&mut world, ChangePhase::Evicting);
    assert_eq!(world.hold(), [0, 1], "one in use is withdrawn as its owner is evicted");
    world.settle();
    assert_eq!(world.evicted, ["pod-1"]);
}

#[test]
fn without_a_notice_period_owners_are_notified_when_they_are_evicted_or_waited_for() {
    let counts = |decision: &ChangeDecision| (decision.evictions.len(), decision.notices.len());
    for (waited_for, refuses) in [(true, false), (false, true), (false, false)] {
        let mut world = World::new(&split());
        world.start(0);
        world.pods.values_mut().for_each(|pod| pod.do_not_evict = waited_for);
        world.refuses = refuses;
        world.agent();
        world.kubelet();
        world.target = Some(halves());
        let begun = world.operate(3);
        assert_eq!(counts(&begun), (0, usize::from(waited_for)), "an annotation would delay the eviction");
        world.agent();
        world.kubelet();
        let next = world.operate(3);
        assert_eq!(world.phase(), Some(ChangePhase::Evicting));
        assert_eq!(counts(&next), if waited_for { (0, 0) } else { (1, 1) });
        assert_eq!(counts(&world.operate(3)), (0, 0), "once");
    }
}

#[test]
fn annotation_holds_up_a_change_only_where_the_pool_honors_it() {
    for (rule, evicted) in [(DoNotEvict::Honor, 0), (DoNotEvict::Ignore, 1)] {
        let mut world = World::new(&split());
        world.start(0);
        world.policy.do_not_evict = rule;
        world.pods.values_mut().for_each(|pod| pod.do_not_evict = true);
        world.agent();
        world.kubelet();
        world.target = Some(halves());
        for _ in 0..4 {
            world.operate(3);
            world.agent();
            world.kubelet();
        }
        assert_eq!(world.evicted.len(), evicted, "{rule:?}");
    }
}

#[test]
fn annotation_holds_for_the_time_of_the_pool_after_the_creation_of_the_pod() {
    let mut world = World::new(&split());
    world.start(0);
    world.policy.do_not_evict_for = SignedDuration::from_hours(2);
    let created = world.now.checked_sub(SignedDuration::from_hours(1)).unwrap();
    world.pods.values_mut().for_each(|pod| (pod.do_not_evict, pod.created) = (true, Some(created)));
    world.policy.on_timeout = OnTimeout::Wait;
    world.agent();
    world.kubelet();
    world.target = Some(halves());
    let run = |world: &mut World| {
        let decisions: Vec<ChangeDecision> = (0..4)
            .map(|_| {
                let decision = world.operate(3);
                world.agent();
                world.kubelet();
                decision
            })
            .collect();
        decisions
    };
    let last = run(&mut world).pop().unwrap();
    let end = created.checked_add(SignedDuration::from_hours(2)).unwrap();
    assert_eq!((world.evicted.len(), last.requeue_at.is_some_and(|at| at <= end)), (0, true));
    let progress = format!("{:?}", last.progress);
    assert!(progress.contains(&format!("gputenancy.io/do-not-evict, which holds until {end}")), "{progress}");
    world.pass(SignedDuration::from_mins(59));
    run(&mut world);
    assert_eq!(world.evicted.len(), 0);
    world.pass(SignedDuration::from_mins(1));
    let decisions = run(&mut world);
    assert_eq!(world.evicted.len(), 1);
    let reasons: Vec<&str> = decisions.iter().flat_map(|d| &d.evictions).map(|e| e.reason.as_str()).collect();
    assert!(
        reasons.len() == 1 && reasons[0].contains(&format!("do-not-evict held until {end}")),
        "the event says why: {reasons:?}"
    );
}

#[test]
fn owners_go_as_soon_as_the_scheduler_counts_on_nothing_that_goes_and_not_before() {
    let mut world = World::new(&split());
    world.start(0);
    world.agent();
    world.kubelet();
    world.target = Some(halves());
    world.operate(3);
    assert_eq!(world.hold(), [0, 1]);
    // the agent has read it, and kubelet still lists both
    world.node.status.as_mut().unwrap().observed_generation = world.node.metadata.generation;
    for counted in [2, 1] {
        world.allocatable.insert("nvidia.com/mig-1g.10gb".into(), counted);
        assert_eq!(world.operate(3).evictions.len(), 0, "{counted} more fits");
    }
    world.allocatable.insert("nvidia.com/mig-1g.10gb".into(), 0);
    assert_eq!(world.operate(3).evictions.len(), 1);
    let status = world.node.status.as_mut().unwrap();
    assert!(devices(&mut status.gpus[0]).all(|d| d.allocatable), "kubelet learns it meanwhile");
    // the pod has gone sooner than that: nothing is carved before kubelet has withdrawn the devices
    world.pods.clear();
    devices(&mut world.node.status.as_mut().unwrap().gpus[0]).for_each(|d| d.owner = None);
    world.node.status.as_mut().unwrap().observed_generation = world.node.metadata.generation;
    world.operate(3);
    assert_eq!((world.phase(), world.hold()), (Some(ChangePhase::Evicting), vec![0, 1]));
}

#[test]
fn a_budget_that_refuses_is_waited_for_and_named_and_its_device_stays_offered() {
    let mut world = World::new(&split());
    world.start(0);
    world.agent();
    world.target = Some(halves());
    world.refuses = true;
    let asked = until(&mut world, ChangePhase::Evicting);
    assert_eq!((world.hold(), asked.evictions.len()), (vec![0, 1], 1), "withdrawn together, then asked");
    world.agent();
    let decision = world.operate(3);
    assert!(message(&decision).contains("pod team/pod-1") && message(&decision).contains("budget b"), "{decision:?}");
    assert_eq!(world.hold(), [1], "an early hold would hide free neighbours");
    assert!(decision.requeue_at.is_some(), "the eviction is tried again");
    world.refuses = false;
    world.settle();
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn pods_without_a_controller_are_waited_for_until_the_timeout_releases_the_devices() {
    let mut world = World::new(&split());
    world.start(0);
    world.pods.values_mut().for_each(|p| p.controller = PodController::None);
    world.agent();
    world.target = Some(halves());
    until(&mut world, ChangePhase::Evicting);
    world.agent();
    assert!(message(&world.decide()).contains("no controller would replace it"));
    world.pass(SignedDuration::from_mins(31));
    until(&mut world, ChangePhase::RolledBack);
    assert_eq!((world.hold(), world.evicted.len()), (vec![], 0));
    let spec = world.node.spec.gpus[0].clone();
    assert!(spec.change.unwrap().reason.contains("pod team/pod-1"));
    let decision = world.decide();
    assert_eq!((decision.spec, decision.evictions.len()), (None, 0), "not tried again at once");
    world.pods.clear();
    let mut silicon = std::mem::take(&mut world.silicon);
    devices(&mut silicon).for_each(|d| (d.owner, d.clients) = (None, 0));
    world.silicon = silicon;
    world.settle();
    assert_eq!(Some(world.shown()), world.target, "tried again later");
}

#[test]
fn a_timeout_may_also_be_waited_out() {
    let mut world = World::new(&split());
    world.start(0);
    world.agent();
    world.policy.on_timeout = OnTimeout::Wait;
    world.target = Some(halves());
    world.refuses = true;
    until(&mut world, ChangePhase::Evicting);
    world.agent();
    world.operate(3);
    world.agent();
    world.pass(SignedDuration::from_hours(5));
    assert_eq!(world.operate(3).evictions.len(), 1, "it is refused once more");
    let decision = world.operate(3);
    assert_eq!(world.phase(), Some(ChangePhase::Evicting));
    assert!(decision.requeue_at.is_some(), "the eviction is tried again, although the timeout is over");
    world.refuses = false;
    world.settle();
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn a_process_that_no_pod_explains_blocks_and_is_named() {
    let mut world = World::new(&split());
    world.silicon.instances[0].device.as_mut().unwrap().clients = 1;
    world.silicon.holders = vec![Holder { pid: 4711, command: "python".into(), start: Some(0), container: None }];
    world.agent();
    world.target = Some(halves());
    for _ in 0..4 {
        world.operate(3);
        world.agent();
    }
    assert_eq!(world.phase(), Some(ChangePhase::Idle));
    assert!(message(&world.decide()).contains("process 4711 (python) uses 1g.10gb at 0"), "{:?}", world.decide());
    // the count of clients blocks by itself: their processes may not be listed
    world.silicon.holders.clear();
    for _ in 0..4 {
        world.agent();
        world.operate(3);
    }
    assert_eq!(world.phase(), Some(ChangePhase::Idle));
    assert!(message(&world.decide()).contains("1 process still on 1g.10gb at 0"), "{:?}", world.decide());
    world.silicon.instances[0].device.as_mut().unwrap().clients = 0;
    world.settle();
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn message_about_any_number_of_processes_is_bounded() {
    let mut world = World::new(&split());
    world.silicon.instances[0].device.as_mut().unwrap().clients = 1;
    let holder = |pid| Holder { pid, command: "c".repeat(2_000), start: None, container: None };
    world.silicon.holders = (1..10_000).map(holder).collect();
    world.agent();
    world.target = Some(halves());
    for _ in 0..4 {
        world.operate(3);
        world.agent();
    }
    let message = message(&world.decide());
    assert!(message.contains("process 1 (c") && message.chars().count() <= 4096, "{} characters", message.len());
}

#[test]
fn a_create_that_nvml_refuses_brings_the_old_layout_back_and_says_why() {
    let mut world = World::new(&split());
    world.failures = 1;
    world.target = Some(halves());
    until(&mut world, ChangePhase::RolledBack);
    assert_eq!(world.shown(), split());
    let change = world.node.spec.gpus[0].change.clone().unwrap();
    assert!(
        change.reason.contains("nvmlDeviceCreateGpuInstanceWithPlacement returned 23: no room"),
        "{}",
        change.reason
    );
    let decision = world.decide();
    assert_eq!(decision.spec, None, "the same layout is not tried again at once");
    world.target = Some(layout(&[("7g.80gb", 0)]));
    world.agent();
    world.operate(3);
    assert_eq!(world.phase(), Some(ChangePhase::Held), "another one is");
}

#[test]
fn when_the_old_layout_cannot_be_had_either_it_is_stuck_and_recovers_with_the_agent() {
    let mut world = World::new(&split());
    world.failures = 2;
    world.target = Some(halves());
    until(&mut world, ChangePhase::Stuck);
    assert!(world.node.spec.gpus[0].change.clone().unwrap().reason.contains("; then "));
    world.reboot();
    world.settle();
    assert_eq!(Some(world.shown()), world.target);
    assert!(world.events.contains(&"Recovered".to_owned()));
}

#[test]
fn a_plan_that_changes_its_mind_before_anything_was_carved_costs_nothing() {
    let mut world = World::new(&split());
    world.start(0);
    world.agent();
    world.refuses = true;
    world.target = Some(halves());
    until(&mut world, ChangePhase::Evicting);
    world.target = Some(split());
    world.settle();
    assert_eq!((world.phase(), world.hold(), world.evicted.len()), (None, vec![], 0));
    assert_eq!(world.shown(), split());
}

#[test]
fn dead_agent_is_waited_for_and_its_last_report_evicts_no_pod() {
    let mut world = World::new(&split());
    world.start(0);
    world.agent();
    world.target = Some(halves());
    world.alive = false;
    assert_eq!(world.decide().spec, None, "nothing begins");
    world.alive = true;
    until(&mut world, ChangePhase::Evicting);
    world.agent();
    world.alive = false;
    let decision = world.operate(3);
    assert_eq!(decision.evictions.len(), 0);
    assert!(message(&decision).contains("agent"));
}

#[test]
fn time_limits_of_a_change_begin_again_when_its_agent_returns() {
    let away = SignedDuration::from_hours(10);
    for (phase, on_timeout) in [
        (ChangePhase::Evicting, OnTimeout::Rollback),
        (ChangePhase::Partitioning, OnTimeout::Wait),
        (ChangePhase::Verifying, OnTimeout::Wait),
    ] {
        let mut world = World::new(&split());
        world.policy.on_timeout = on_timeout;
        if phase == ChangePhase::Evicting {
            world.start(0);
            world.agent();
        }
        world.target = Some(halves());
        until(&mut world, phase);
        world.alive = false;
        world.now += away;
        world.operate(3);
        assert_eq!(world.phase(), Some(phase), "suspended while the agent is away");
        (world.alive, world.alive_since) = (true, Some(world.now));
        world.operate(3);
        assert_eq!(world.phase(), Some(phase), "resumed");
        world.settle();
        assert_eq!((Some(world.shown()), world.phase()), (world.target.clone(), None));
        assert!(!world.events.iter().any(|e| e.contains("Failed")), "{phase:?}: {:?}", world.events);
    }
}

#[test]
fn nothing_begins_before_its_turn() {
    let mut world = World::new(&split());
    world.may_start = false;
    world.target = Some(halves());
    assert_eq!(world.decide().spec, None);
}

#[test]
fn change_in_progress_does_not_turn_to_a_layout_that_its_stage_forbids() {
    let mut world = World::new(&split());
    world.start(0);
    world.agent();
    world.target = Some(halves());
    until(&mut world, ChangePhase::Evicting);
    // an edit: the new layout is staged, and this GPU is not among the first
    (world.target, world.staged, world.may_start) = (Some(Layout::default()), true, false);
    world.operate(3);
    assert_eq!((world.phase(), world.hold()), (None, vec![]), "cancelled");
    world.operate(3);
    assert_eq!((world.phase(), world.shown()), (None, split()), "it waits for its stage");
    (world.staged, world.may_start) = (false, true);
    world.settle();
    assert_eq!(world.shown(), Layout::default());
}

#[test]
fn a_hold_that_no_change_explains_is_released() {
    let mut world = World::new(&split());
    world.node.spec.gpus[0].hold = vec![4];
    world.settle();
    assert_eq!(world.hold(), Vec::<i32>::new());
    let spec: &GpuSpec = &world.node.spec.gpus[0];
    assert_eq!(spec.layout(), split());
}

#[derive(Clone, Debug)]
enum Happening {
    Operate(usize),
    Agent,
    Kubelet,
    Start(usize),
    Reap,
    Fail,
    Refuse(bool),
    Alive(bool),
    Reboot,
    Time(i64),
    Target(usize),
    Empty(EmptyAnswer),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    use Happening::{Agent, Alive, Empty, Fail, Kubelet, Operate, Reap, Reboot, Refuse, Start, Target, Time};
    let one = prop_oneof![
        8 => (0_usize..4).prop_map(Operate),
        8 => Just(Agent),
        4 => Just(Kubelet),
        4 => (0_usize..4).prop_map(Start),
        4 => Just(Reap),
        1 => Just(Fail),
        1 => any::<bool>().prop_map(Refuse),
        1 => any::<bool>().prop_map(Alive),
        1 => Just(Reboot),
        2 => prop::sample::select(vec![1, 30, 400, 2000]).prop_map(Time),
        1 => (0_usize..LAYOUTS).prop_map(Target),
        2 => prop::sample::select(&EmptyAnswer::ALL).prop_map(Empty),
    ];
    proptest::collection::vec(one, 0..80)
}

/// Number of layouts to choose from.
const LAYOUTS: usize = 7;

fn layouts(which: usize) -> Layout {
    let three = layout(&[("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)]);
    let shared = [turns(&[0, 1, 2, 3]), turns(&[1, 3]), parts(&[4], &[5, 6])];
    [split(), halves(), Layout::default(), three].into_iter().chain(shared).nth(which % LAYOUTS).unwrap()
}

proptest! {
    #![proptest_config(config())]

    /// The world itself checks that nothing in use is destroyed, and that nobody is evicted who owns nothing that goes.
    #[test]
    fn whatever_happens_it_ends_at_the_target_with_nothing_held(
        from in 0_usize..LAYOUTS, to in 0_usize..LAYOUTS, notice in prop::sample::select(vec![0, 20]), happenings in happenings(),
    ) {
        let mut world = World::new(&layouts(from));
        world.policy.notice = SignedDuration::from_secs(notice);
        world.target = Some(layouts(to));
        for happening in happenings {
            match happening {
                Happening::Operate(parts) => drop(world.operate(parts)),
                Happening::Agent if world.alive => world.agent(),
                Happening::Agent => {}
                Happening::Kubelet => world.kubelet(),
                Happening::Start(pick) => world.start(pick),
                Happening::Reap => world.reap(),
                Happening::Fail => world.failures += 1,
                Happening::Refuse(refuses) => world.refuses = refuses,
                Happening::Alive(alive) => world.alive = alive,
                Happening::Reboot => world.reboot(),
                Happening::Time(seconds) => world.pass(SignedDuration::from_secs(seconds)),
                Happening::Target(which) => world.target = Some(layouts(which)),
                Happening::Empty(source) => source.decide(&mut world),
            }
            let spec = &world.node.spec.gpus[0];
            let known = spec.change.as_ref().is_none_or(|c| [&c.from, &c.to].contains(&&spec.layout()));
            prop_assert!(known, "the spec asks for the old layout or the new one, never for something between");
        }
        (world.failures, world.refuses, world.alive) = (0, false, true);
        let before = world.writes;
        world.settle();
        prop_assert_eq!(world.shown(), world.target.clone().unwrap());
        prop_assert_eq!((world.hold(), world.phase()), (vec![], None));
        prop_assert!(world.writes - before < 40, "{} writes", world.writes - before);
    }
}

#[test]
fn notice_names_no_pod_of_another_owner() {
    let mut world = World::new(&split());
    (0..2).for_each(|_| world.start(0));
    world.agent();
    world.reason = "create 3g.40gb at 0; evicts team-b/secret (has 1g.10gb at 1)".into();
    world.policy.notice = SignedDuration::from_mins(15);
    world.target = Some(halves());
    let decision = world.operate(3);
    let reasons: Vec<&str> = decision.notices.iter().map(|n| n.reason.as_str()).collect();
    assert_eq!(reasons, ["create 3g.40gb at 0"; 2]);
    let journal = &world.node.spec.gpus[0].change.as_ref().unwrap().reason;
    assert!(journal.contains("team-b/secret"), "{journal}");
}

#[test]
fn failed_change_waits_until_its_retry_or_until_another_layout_is_wanted() {
    let mut world = World::new(&split());
    world.failures = 1;
    world.target = Some(halves());
    until(&mut world, ChangePhase::RolledBack);
    let (policy, now) = (world.policy.clone(), world.now);
    let change = world.node.spec.gpus[0].change.clone().unwrap();
    let waits = |target: &Layout, now| waits_to_retry(&change, Some(target), &policy, now);
    assert!(waits(&halves(), now));
    assert!(!waits(&halves(), now + policy.retry_after), "the retry is due");
    assert!(!waits(&split(), now), "another layout is wanted");
}
