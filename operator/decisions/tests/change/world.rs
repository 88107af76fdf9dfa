//! API server, operator, agent, kubelet, pods and NVML of one node with one GPU, each a few fields; [`super::actors`] moves them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gputenancy_crds::{
    AgentStep, ChangePhase, DeviceOwner, DeviceState, GpuError, GpuNode, GpuNodeSpec, GpuNodeStatus, GpuSpec, GpuState,
    InstanceState, Layout, MigMode, Partitioner, ids::PodName,
};
use gputenancy_decisions::change::{
    CanaryPod, CanaryRequest, ChangeDecision, ChangeObservation, Eviction, EvictionNotice, PodController, PodFacts,
    Policy, Refusal, is_at_rest, step,
};
use gputenancy_decisions::partitioner::{self, RequestState};
use gputenancy_plan::{plain, seen};
use k8s_openapi::jiff::Timestamp;

use super::scenario::Scenario;

pub const UUID: &str = "GPU-0";

/// One of the things that a decision of the operator makes it write.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Spec(Box<GpuSpec>),
    Notice(EvictionNotice),
    Evict(Eviction),
    Spare(PodName),
    Canary(Box<CanaryRequest>),
    /// A canary pod that no change wants is deleted.
    Dismiss(String),
}

/// A canary pod, and the device that its resource stands for.
#[derive(Clone, Debug)]
pub struct Tried {
    pub start: i32,
    pub pod: CanaryPod,
    /// It has the device.
    pub has: bool,
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub uid: String,
    pub start: i32,
    pub terminating: bool,
    /// Its process has ended; kubelet has yet to give the device back.
    pub ended: bool,
    pub controller: PodController,
    pub notice: Option<Timestamp>,
}

#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub up: bool,
    /// The spec that it has read, with its generation.
    pub spec: Option<(i64, GpuSpec)>,
    pub failed: Option<GpuError>,
}

#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "who is up and who is not")]
pub struct World {
    pub now: Timestamp,
    pub api: bool,
    pub node: GpuNode,
    pub node_ready: bool,
    /// The agent has left its node, and the operator knows it.
    pub silent: bool,
    /// When it has returned.
    pub alive_since: Timestamp,
    pub allocatable: BTreeMap<String, i64>,
    pub pods: BTreeMap<PodName, Pod>,
    pub canaries: BTreeMap<String, Tried>,
    /// What the operator has decided and not yet written.
    pub queue: VecDeque<Effect>,
    /// In the operator's memory.
    pub refused: BTreeMap<String, Timestamp>,
    pub agent: Agent,
    pub kubelet: bool,
    /// Starts of the devices that kubelet would give to a pod.
    pub listed: BTreeSet<i32>,
    pub silicon: GpuState,
    pub target: Layout,
    pub from: Layout,
    pub policy: Policy,
    pub refusals: u32,
    pub failures: u32,
    pub broken: u32,
    pub arrivals: u32,
    pub blocked: bool,
    pub partitioner: Partitioner,
    /// Of a node that is partitioned as a whole.
    pub request: Option<RequestState>,
    /// Writes of the spec and eviction attempts so far.
    pub writes: u32,
    pub evicted: BTreeSet<PodName>,
    /// Pods so far: no name is given twice.
    pub names: usize,
    pub story: Vec<String>,
    pub tells: bool,
}

impl World {
    /// At rest with the scenario's first layout and pods, the other layout just planned.
    pub fn new(scenario: &Scenario) -> Self {
        let Scenario { from, to, pods, refusals, failures, broken, arrivals, policy, blocked, .. } = scenario.clone();
        let spec =
            GpuSpec { uuid: UUID.into(), mig: from.mig, instances: from.instances.clone(), ..GpuSpec::default() };
        let mut node = GpuNode::new("n", GpuNodeSpec { gpus: vec![spec], ..GpuNodeSpec::default() });
        node.metadata.generation = Some(1);
        node.status = Some(GpuNodeStatus { observed_generation: Some(0), ..GpuNodeStatus::default() });
        let silicon = GpuState {
            uuid: UUID.into(),
            mig: Some(MigMode { enabled: from.mig, pending: None }),
            step: AgentStep::Steady,
            whole: (!from.mig).then(DeviceState::default),
            ..GpuState::default()
        };
        let mut world = Self {
            now: Timestamp::from_second(1_000_000).unwrap(),
            api: true,
            node,
            node_ready: true,
            silent: false,
            alive_since: Timestamp::from_second(1_000_000).unwrap(),
            allocatable: BTreeMap::new(),
            pods: BTreeMap::new(),
            canaries: BTreeMap::new(),
            queue: VecDeque::new(),
            refused: BTreeMap::new(),
            agent: Agent { up: true, ..Agent::default() },
            kubelet: true,
            listed: BTreeSet::new(),
            silicon,
            target: from.clone(),
            from,
            policy,
            refusals,
            failures: 0,
            broken,
            arrivals,
            blocked,
            partitioner: Partitioner::Agent,
            request: None,
            writes: 0,
            evicted: BTreeSet::new(),
            names: 0,
            story: Vec::new(),
            tells: false,
        };
        for _ in 0..50 {
            world.agent_step(super::actors::Outcome::Done);
        }
        for (start, controller) in pods {
            world.arrive(start, controller);
        }
        for _ in 0..5 {
            world.agent_step(super::actors::Outcome::Done);
        }
        (world.target, world.failures, world.writes) = (to, failures, 0);
        world
    }

    pub fn tell(&mut self, words: impl FnOnce() -> String) {
        if self.tells {
            self.story.push(words());
        }
    }

    pub fn spec(&self) -> &GpuSpec {
        &self.node.spec.gpus[0]
    }

    /// As `liveness` decides it.
    pub fn agent_alive(&self) -> bool {
        let reported = self.node.status.as_ref().is_some_and(|s| s.observed_generation.is_some_and(|g| g >= 0));
        self.node_ready && !self.silent && reported
    }

    pub fn phase(&self) -> Option<ChangePhase> {
        self.spec().change.as_ref().map(|c| c.phase)
    }

    pub fn shown(&self) -> Layout {
        seen(&self.silicon)
    }

    /// A pod gets the device at `start`.
    pub fn arrive(&mut self, start: i32, controller: PodController) {
        self.names += 1;
        let name = PodName { namespace: "team".into(), name: format!("pod-{}", self.names) };
        let device = self.device(start).expect("a device");
        let container = "main".to_owned();
        device.owner = Some(DeviceOwner { namespace: "team".into(), pod: name.name.clone(), container });
        device.clients = 1;
        self.tell(|| format!("{name} starts on {start}"));
        let (terminating, ended, notice) = (false, false, None);
        let uid = format!("uid-{name}");
        self.pods.insert(name, Pod { uid, start, terminating, ended, controller, notice });
    }

    pub fn device(&mut self, start: i32) -> Option<&mut DeviceState> {
        if start == 0 && self.silicon.whole.is_some() {
            return self.silicon.whole.as_mut();
        }
        self.silicon.instances.iter_mut().find(|i| i.start == start).and_then(|i| i.device.as_mut())
    }

    pub fn devices(&self) -> Vec<(i32, Option<&str>, &DeviceState)> {
        let exclusive = self.silicon.instances.iter().filter_map(|i| Some((i, i.device.as_ref()?)));
        let instances = exclusive.map(|(i, device)| (i.start, Some(i.profile.as_str()), device));
        instances.chain(self.silicon.whole.iter().map(|w| (0, None, w))).collect()
    }

    /// Devices that a layout does not have.
    pub fn going(&self, to: &Layout) -> Vec<(i32, &DeviceState)> {
        let stays = |start: i32, profile: Option<&str>| match profile {
            None => !to.mig,
            Some(p) => to.mig && to.instances.iter().any(|i| i.start == start && i.profile == p),
        };
        self.devices().into_iter().filter(|(s, p, _)| !stays(*s, *p)).map(|(s, _, d)| (s, d)).collect()
    }

    /// In this world targets change because people write others.
    pub fn decide(&self) -> ChangeDecision {
        self.decide_with(&format!("{:?}", self.target))
    }

    pub fn decide_with(&self, intent: &str) -> ChangeDecision {
        let deadline = self.spec().change.as_ref().and_then(|c| c.evict_after.as_ref()).map(|t| t.0);
        let facts = |pod: &Pod| PodFacts {
            uid: pod.uid.clone(),
            terminating: pod.terminating,
            controller: pod.controller.clone(),
            do_not_evict: false,
            created: None,
            started: None,
            noticed: pod.notice.is_some_and(|n| deadline.is_none_or(|d| d == n)),
            refused: self.refused.get(&pod.uid).map(|at| Refusal { at: *at, message: "budget b".into() }),
        };
        let pods = self.pods.iter().map(|(name, pod)| (name.clone(), facts(pod))).collect();
        let canaries = self.canaries.iter().map(|(name, tried)| (name.clone(), tried.pod.clone())).collect();
        let decision = step(&ChangeObservation {
            cordoned: None,
            now: self.now,
            uuid: UUID,
            node: &self.node,
            allocatable: &self.allocatable,
            target: Some(&self.target),
            reason: "a tenant needs it",
            intent,
            canaries: &canaries,
            pods: &pods,
            policy: &self.policy,
            agent_alive: self.agent_alive(),
            alive_since: Some(self.alive_since),
            others_idle: true,
            partitioner: partitioner::of(self.partitioner),
            request: self.request.as_ref(),
            recreate: None,
            waits: None,
            staged: false,
        });
        let at_rest = is_at_rest(&self.node, UUID, Some(&self.target));
        assert!(!at_rest || decision == ChangeDecision::default(), "at rest, and yet: {decision:?}");
        decision
    }

    /// Everything that the future depends on, times relative to now.
    pub fn key(&self) -> String {
        let ago = |t: Timestamp| t.as_second() - self.now.as_second();
        let spec = self.spec();
        let change = spec.change.as_ref().map(|c| {
            let times = [Some(&c.started_at), Some(&c.phase_since), c.evict_after.as_ref()];
            // time limits of a change in progress begin again when its agent returns
            let begins = |t: Timestamp| if c.phase < ChangePhase::RolledBack { t.max(self.alive_since) } else { t };
            (c.phase, &c.from, &c.to, times.map(|t| t.map(|t| ago(begins(t.0)).max(-100_000))), c.failures)
        });
        let status = self.node.status.as_ref().unwrap();
        let pods: Vec<_> =
            self.pods.iter().map(|(n, p)| (&n.name, p.start, p.terminating, p.ended, p.notice.map(ago))).collect();
        let generation = self.node.metadata.generation.unwrap();
        let queue: Vec<String> = self
            .queue
            .iter()
            .map(|e| match e {
                Effect::Spec(s) => {
                    format!("{:?}{:?}{:?}{:?}", s.change.as_ref().map(|c| c.phase), s.hold, s.trial, s.layout())
                }
                Effect::Canary(c) => format!("canary {}", c.device),
                Effect::Dismiss(_) => "dismiss".to_owned(),
                Effect::Notice(n) => format!("notice {} {}", n.pod, ago(n.deadline)),
                Effect::Evict(e) => format!("evict {}", e.pod),
                Effect::Spare(p) => format!("spare {p}"),
            })
            .collect();
        let agent = (self.agent.up, self.agent.failed.is_some(), self.agent.spec.as_ref().map(|(g, _)| generation - g));
        let known = (status.observed_generation.map(|g| generation - g), brief(status.gpus.first()));
        let refused: Vec<_> = self.refused.iter().map(|(uid, at)| (uid, ago(*at))).collect();
        let wanted = self.decide().kept_canaries;
        let tried = |(name, t): (&String, &Tried)| {
            let age = ago(t.pod.created).max(-100_000);
            (t.start, t.has, age, t.pod.outcome.clone(), wanted.contains(name))
        };
        let mut canaries: Vec<_> = self.canaries.iter().map(tried).map(|t| format!("{t:?}")).collect();
        canaries.sort();
        format!(
            "{:?}",
            (
                (self.api, self.node_ready, self.silent, self.kubelet, agent, &self.listed, &self.allocatable),
                (spec.layout(), &spec.hold, &spec.trial, change, queue, pods, refused, canaries),
                (known, brief(Some(&self.silicon)), self.refusals, self.failures, self.broken, self.arrivals),
            )
        )
    }
}

fn brief(gpu: Option<&GpuState>) -> String {
    let Some(gpu) = gpu else { return String::new() };
    let device =
        |d: &DeviceState| (d.resource.is_some(), d.allocatable, d.owner.as_ref().map(|o| o.pod.clone()), d.clients);
    let instances: Vec<_> =
        gpu.instances.iter().map(|i| (i.start, &i.profile, i.device.as_ref().map(device))).collect();
    format!("{:?}", (gpu.mig, gpu.step, instances, gpu.whole.as_ref().map(device), gpu.error.is_some(), gpu.health))
}

/// The instance that the agent would create.
pub fn fresh(profile: &str, start: i32) -> InstanceState {
    let device = Some(DeviceState::default());
    InstanceState { start, profile: profile.into(), gi: start, ci: Some(0), uuid: None, device }
}

pub fn wanted(spec: &GpuSpec) -> Layout {
    plain(spec.layout())
}
