//! A GPU that may return after a fault: one free device goes to a canary pod, and its outcome becomes a verdict.

use std::collections::BTreeMap;

use gputenancy_crds::{
    Canary, Change, ChangePhase, DeviceOwner, DeviceState, DurationText, FaultFinding, FaultRecovery, FaultVerdict,
    GpuNode, GpuNodeSpec, GpuNodeStatus, GpuSpec, GpuState, Health, InstanceState, MigMode, RecoveryState, names,
};
use gputenancy_decisions::change::{
    CanaryOutcome, CanaryPod, ChangeDecision, ChangeObservation, Policy, is_at_rest, step,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::change::scenario::split;

const UUID: &str = "GPU-0";

fn at(seconds: i64) -> Time {
    Time(Timestamp::from_second(1_000_000 + seconds).unwrap())
}

/// A node with one GPU in three instances, of which the first has a pod, after a fault.
struct World {
    node: GpuNode,
    canaries: BTreeMap<String, CanaryPod>,
    policy: Policy,
}

impl World {
    fn new() -> Self {
        let layout = split();
        let device = |resource: String, owner| DeviceState {
            resource: Some(resource),
            allocatable: true,
            owner,
            ..DeviceState::default()
        };
        let owner = || DeviceOwner { namespace: "team".into(), pod: "work".into(), container: "c".into() };
        let instance = |i: &gputenancy_crds::InstanceSpec| InstanceState {
            start: i.start,
            profile: i.profile.clone(),
            device: Some(device(i.resource_name(), (i.start == 0).then(owner))),
            ..InstanceState::default()
        };
        let recovery =
            FaultRecovery { state: RecoveryState::AwaitingCanary, faults: vec![at(0)], ..Default::default() };
        let state = GpuState {
            uuid: UUID.into(),
            mig: Some(MigMode { enabled: true, pending: None }),
            health: Health::Unhealthy,
            fault: Some("Xid 48".into()),
            recovery: Some(recovery),
            instances: layout.instances.iter().map(instance).collect(),
            ..GpuState::default()
        };
        let spec = GpuSpec { uuid: UUID.into(), mig: true, instances: layout.instances, ..GpuSpec::default() };
        let mut node = GpuNode::new("n", GpuNodeSpec { gpus: vec![spec], ..GpuNodeSpec::default() });
        node.metadata.generation = Some(1);
        let status = GpuNodeStatus { gpus: vec![state], observed_generation: Some(1), ..GpuNodeStatus::default() };
        node.status = Some(status);
        let canary = Canary { image: "i".into(), command: vec![], timeout: DurationText::parse("2m").unwrap() };
        let policy = Policy { canary: Some(canary), ..Policy::default() };
        Self { node, canaries: BTreeMap::new(), policy }
    }

    fn state(&mut self) -> &mut GpuState {
        &mut self.node.status.as_mut().unwrap().gpus[0]
    }

    fn spec(&self) -> &GpuSpec {
        &self.node.spec.gpus[0]
    }

    fn decide(&self) -> ChangeDecision {
        let trial: BTreeMap<String, i64> =
            self.spec().trial.iter().map(|start| (names::canary_resource(0, start), 1)).collect();
        step(&ChangeObservation {
            now: at(100).0,
            uuid: UUID,
            node: &self.node,
            allocatable: &trial,
            cordoned: None,
            target: Some(&split()),
            reason: "",
            intent: "",
            canaries: &self.canaries,
            pods: &BTreeMap::new(),
            policy: &self.policy,
            agent_alive: true,
            alive_since: None,
            others_idle: true,
            partitioner: gputenancy_decisions::partitioner::of(gputenancy_crds::Partitioner::Agent),
            request: None,
            recreate: None,
            staged: false,
            waits: None,
        })
    }

    /// Operator and agent carry a decision out.
    fn carry_out(&mut self, decision: &ChangeDecision) {
        if let Some(spec) = &decision.spec {
            self.node.spec.gpus[0] = spec.clone();
            let trial = spec.trial.clone();
            for instance in &mut self.state().instances {
                let canary = names::canary_resource(0, instance.start);
                let own = names::mig_resource(&instance.profile);
                let device = instance.device.as_mut().unwrap();
                device.resource = Some(if trial.contains(&instance.start) { canary } else { own });
            }
        }
        for request in &decision.canaries {
            let outcome = CanaryOutcome::Pending("it runs".into());
            self.canaries.insert(request.name.clone(), CanaryPod { created: at(90).0, outcome });
        }
    }

    /// Decisions are carried out until nothing is decided; the last one.
    fn settle(&mut self) -> ChangeDecision {
        for _ in 0..10 {
            let decision = self.decide();
            if decision.spec.is_none() && decision.canaries.is_empty() {
                return decision;
            }
            self.carry_out(&decision);
        }
        panic!("no end: {:#?}", self.node.spec);
    }

    /// The canary pod runs, and this becomes of it.
    fn ends(outcome: &CanaryOutcome) -> (Self, ChangeDecision) {
        let mut world = Self::new();
        world.settle();
        assert_eq!(world.canaries.len(), 1);
        world.canaries.values_mut().for_each(|pod| pod.outcome = outcome.clone());
        let decision = world.decide();
        (world, decision)
    }
}

fn events(decision: &ChangeDecision) -> Vec<(bool, &str)> {
    decision.events.iter().map(|event| (event.warning, event.reason.as_str())).collect()
}

#[test]
fn free_device_is_advertised_to_one_canary_pod_and_the_owned_one_stays() {
    let mut world = World::new();
    assert!(!is_at_rest(&world.node, UUID, Some(&split())));
    let first = world.decide();
    assert_eq!((&first.spec.as_ref().unwrap().trial[..], first.canaries.len()), (&[1][..], 0));
    world.carry_out(&first);
    let second = world.decide();
    assert_eq!(second.spec, None);
    let canary = &second.canaries[0];
    assert_eq!(
        (canary.resource.as_str(), canary.device.as_str()),
        ("gputenancy.io/canary_0_1", "1g.10gb at 1 of n GPU 0")
    );
    world.carry_out(&second);
    let waits = world.settle();
    assert_eq!(waits.kept_canaries.iter().collect::<Vec<_>>(), world.canaries.keys().collect::<Vec<_>>());
    let text = waits.pending.unwrap();
    assert!(
        text.starts_with("Pending: after Xid 48 canary pod ") && text.ends_with(" on 1g.10gb at 1: it runs"),
        "{text}"
    );
}

#[test]
fn canary_that_passes_clears_the_fault_until_its_time() {
    let (mut world, decision) = World::ends(&CanaryOutcome::Passed);
    let spec = decision.spec.clone().unwrap();
    let FaultVerdict { until, finding, reason } = spec.fault_verdict.unwrap();
    assert_eq!((until, finding, spec.trial.len()), (at(0), FaultFinding::CanaryPassed, 0));
    assert!(reason.contains("on 1g.10gb at 1 has passed"), "{reason}");
    assert_eq!((events(&decision), decision.kept_canaries.len()), (vec![(false, "CanaryPassed")], 0));
    world.carry_out(&decision);
    assert_eq!(world.decide(), ChangeDecision::default(), "until the agent has carried it out, nothing more");
}

#[test]
fn canary_that_fails_is_a_verdict_too_and_no_other_is_started() {
    let (mut world, decision) = World::ends(&CanaryOutcome::Failed("exit code 3".into()));
    let verdict = decision.spec.clone().unwrap().fault_verdict.unwrap();
    assert!(!verdict.is_cleared() && verdict.reason.ends_with("has failed: exit code 3"), "{verdict:?}");
    assert_eq!(events(&decision), [(true, "CanaryFailed")]);
    world.carry_out(&decision);
    world.canaries.clear();
    assert_eq!(world.decide(), ChangeDecision::default());
    world.state().recovery.as_mut().unwrap().faults.push(at(50));
    assert_eq!(world.settle().kept_canaries.len(), 1, "a later fault has a canary of its own");
}

#[test]
fn inconclusive_canary_is_replaced() {
    let (mut world, decision) = World::ends(&CanaryOutcome::Inconclusive("node restarted".into()));
    assert_eq!((decision.spec, decision.kept_canaries.len()), (None, 1), "at most one in spec.verify.canary.timeout");
    assert_eq!(decision.requeue_at, Some(at(210).0));
    assert!(decision.pending.unwrap().contains("node restarted"));
    world.canaries.values_mut().for_each(|pod| pod.created = at(-20).0);
    let decision = world.decide();
    assert_eq!((decision.spec, decision.kept_canaries.len()), (None, 0), "it is deleted, and another one follows");
}

#[test]
fn new_fault_while_the_canary_runs_gives_the_device_back() {
    let mut world = World::new();
    world.settle();
    let recovery = world.state().recovery.as_mut().unwrap();
    (recovery.state, recovery.faults) = (RecoveryState::Waiting, vec![at(0), at(40)]);
    let decision = world.settle();
    assert_eq!((world.spec().trial.len(), world.spec().fault_verdict.is_none()), (0, true));
    assert!(decision.kept_canaries.is_empty());
}

#[test]
fn without_a_canary_a_free_device_or_a_fresh_status_nothing_is_tried() {
    let mut world = World::new();
    world.policy.canary = None;
    assert_eq!(world.decide(), ChangeDecision::default());
    let mut world = World::new();
    for instance in &mut world.state().instances {
        instance.device.as_mut().unwrap().clients = 1;
    }
    assert_eq!(world.decide(), ChangeDecision::default());
    let mut world = World::new();
    world.node.status.as_mut().unwrap().observed_generation = Some(0);
    assert_eq!((world.decide().spec, world.decide().canaries.len()), (None, 0));
    let mut world = World::new();
    world.state().recovery.as_mut().unwrap().state = RecoveryState::StaysOut;
    assert_eq!(world.decide(), ChangeDecision::default());
}

#[test]
fn failed_change_does_not_keep_the_gpu_from_returning() {
    for phase in [ChangePhase::RolledBack, ChangePhase::Stuck] {
        let mut world = World::new();
        world.node.spec.gpus[0].change = Some(Change {
            phase,
            from: split(),
            to: split(),
            started_at: at(0),
            phase_since: at(0),
            evict_after: None,
            intent: String::new(),
            failures: 1,
            reason: "Xid 48".into(),
        });
        assert_eq!(world.settle().kept_canaries.len(), 1, "{phase:?}");
    }
}
