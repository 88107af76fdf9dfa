//! A small world for the change machine: one node with one GPU, an agent that obeys at once and without care, a kubelet, pods
//! that come and go. What the machine must prevent is checked where it would happen.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    AgentStep, ChangePhase, DeviceOwner, DeviceState, DoNotEvict, GpuError, GpuNode, GpuNodeSpec, GpuNodeStatus,
    GpuState, Layout, MigMode, ids::PodName,
};
use gputenancy_decisions::adoption::adopted_node;
use gputenancy_decisions::change::{
    ChangeDecision, ChangeObservation, LIMIT_REACHED, PodController, PodFacts, Policy, Refusal, step,
};
use gputenancy_plan::{plain, seen};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

#[path = "../../../plan/tests/support/carve.rs"]
mod silicon;

pub use silicon::{carve, devices};

pub const UUID: &str = "GPU-0";

#[allow(clippy::struct_excessive_bools, reason = "each is a switch of a test")]
pub struct World {
    pub now: Timestamp,
    pub node: GpuNode,
    /// What NVML would show; the status has what the agent saw last.
    pub silicon: GpuState,
    pub allocatable: BTreeMap<String, i64>,
    pub pods: BTreeMap<PodName, PodFacts>,
    pub target: Option<Layout>,
    pub policy: Policy,
    pub alive: bool,
    pub alive_since: Option<Timestamp>,
    pub reason: String,
    /// So many creates fail from now on.
    pub failures: u32,
    /// A budget refuses evictions.
    pub refuses: bool,
    pub may_start: bool,
    /// Resources that the node's allocatable never counts.
    pub uncounted: BTreeSet<String>,
    pub staged: bool,
    pub writes: usize,
    pub evicted: Vec<String>,
    pub events: Vec<String>,
    failed: Option<GpuError>,
    names: usize,
    /// The layout that the agent has on its disk.
    served: Option<Layout>,
}

impl World {
    pub fn new(layout: &Layout) -> Self {
        let silicon = GpuState {
            uuid: UUID.into(),
            mig: Some(MigMode::default()),
            whole: Some(DeviceState::default()),
            step: AgentStep::Unmanaged,
            ..GpuState::default()
        };
        let mut node = GpuNode::new("n", GpuNodeSpec::default());
        node.metadata.generation = Some(1);
        node.status = Some(GpuNodeStatus {
            gpus: vec![silicon.clone()],
            observed_generation: Some(1),
            ..GpuNodeStatus::default()
        });
        let mut world = Self {
            now: Timestamp::from_second(1_000_000).unwrap(),
            node,
            silicon,
            allocatable: BTreeMap::new(),
            pods: BTreeMap::new(),
            target: Some(layout.clone()),
            policy: Policy::default(),
            alive: true,
            alive_since: None,
            reason: "a tenant needs it".into(),
            failures: 0,
            refuses: false,
            may_start: true,
            uncounted: BTreeSet::new(),
            staged: false,
            writes: 0,
            evicted: Vec::new(),
            events: Vec::new(),
            failed: None,
            names: 0,
            served: None,
        };
        world.settle();
        assert_eq!(world.shown(), *layout);
        world.writes = 0;
        world.events.clear();
        world
    }

    pub fn decide(&self) -> ChangeDecision {
        // in this world targets change because people write others
        self.decide_for(&format!("{:?}", self.target))
    }

    pub fn decide_for(&self, intent: &str) -> ChangeDecision {
        step(&ChangeObservation {
            cordoned: None,
            now: self.now,
            uuid: UUID,
            node: &self.node,
            allocatable: &self.allocatable,
            target: self.target.as_ref(),
            reason: &self.reason,
            intent,
            canaries: &BTreeMap::new(),
            pods: &self.pods,
            policy: &self.policy,
            agent_alive: self.alive,
            alive_since: self.alive_since,
            others_idle: true,
            partitioner: gputenancy_decisions::partitioner::of(gputenancy_crds::Partitioner::Agent),
            request: None,
            recreate: None,
            staged: self.staged,
            waits: (!self.may_start).then_some(LIMIT_REACHED),
        })
    }

    /// Operator: decides and carries out so many parts of the decision before it crashes.
    pub fn operate(&mut self, parts: usize) -> ChangeDecision {
        if let Some(adopted) = adopted_node(&self.node).filter(|_| self.alive) {
            if parts > 0 {
                assert_ne!(self.node.spec, adopted.spec, "a write that changes nothing");
                self.write(adopted.spec);
            }
            return ChangeDecision::default();
        }
        self.carry_out(self.decide(), parts)
    }

    fn write(&mut self, spec: GpuNodeSpec) {
        self.node.spec = spec;
        self.node.metadata.generation = self.node.metadata.generation.map(|g| g + 1);
        self.writes += 1;
    }

    /// The `GpuNode` is deleted and created again.
    pub fn lose(&mut self) {
        let mut node = GpuNode::new("n", GpuNodeSpec::default());
        node.metadata.generation = Some(1);
        node.status = Some(GpuNodeStatus::default());
        self.node = node;
    }

    /// The `GpuNode` gets an older spec.
    pub fn restore(&mut self, older: &GpuNode) {
        self.node.spec = older.spec.clone();
        self.node.metadata.generation = self.node.metadata.generation.map(|g| g + 1);
    }

    /// As [`Self::operate`], and all of it, after a plan for the same profiles, pools and tenants as before.
    pub fn operate_for(&mut self, intent: &str) -> ChangeDecision {
        self.carry_out(self.decide_for(intent), 3)
    }

    fn carry_out(&mut self, decision: ChangeDecision, parts: usize) -> ChangeDecision {
        let going = self.going(&decision);
        if let Some(spec) = decision.spec.clone().filter(|_| parts > 0) {
            assert_ne!(self.node.spec.gpus.first(), Some(&spec), "a write that changes nothing");
            self.write(GpuNodeSpec { gpus: vec![spec], ..self.node.spec.clone() });
        }
        if parts > 1 {
            self.events.extend(decision.events.iter().map(|e| e.reason.into()));
        }
        for eviction in decision.evictions.iter().filter(|_| parts > 1) {
            assert!(going.contains(&eviction.pod), "{} owns nothing that goes", eviction.pod);
            let pod = self.pods.get_mut(&eviction.pod).unwrap();
            assert_eq!(pod.uid, eviction.uid);
            let end = pod.created.map(|at| at.checked_add(self.policy.do_not_evict_for).unwrap());
            let over = end.is_some_and(|end| end <= self.now);
            assert!(!pod.do_not_evict || over || self.policy.do_not_evict == DoNotEvict::Ignore);
            if self.refuses {
                pod.refused = Some(Refusal { at: self.now, message: "budget b needs 1 pod".into() });
            } else if !pod.terminating {
                pod.terminating = true;
                self.evicted.push(eviction.pod.name.clone());
            }
        }
        for notice in decision.notices.iter().filter(|_| parts > 2) {
            self.pods.get_mut(&notice.pod).unwrap().noticed = true;
        }
        decision
    }

    /// Owners of devices that the layout after the present change does not have.
    fn going(&self, decision: &ChangeDecision) -> Vec<PodName> {
        let spec = decision.spec.as_ref().or(self.node.spec.gpus.first());
        let to = spec.and_then(|s| s.change.as_ref()).map(|c| c.to.clone()).unwrap_or_default();
        let mut after = self.silicon.clone();
        carve(&mut after, &to);
        let stays: Vec<_> = devices(&mut after).filter_map(|d| d.owner.clone()).collect();
        let mut silicon = self.silicon.clone();
        let owners = devices(&mut silicon).filter_map(|d| d.owner.clone()).filter(|o| !stays.contains(o));
        owners.map(|o| PodName { namespace: o.namespace.into(), name: o.pod }).collect()
    }

    /// Agent: one step towards the spec, then the status. It destroys whatever the spec does not list, unless it retains the layout.
    pub fn agent(&mut self) {
        self.silicon.retained = self.served.clone().filter(|_| self.lacks_owned());
        if let Some(retained) = self.silicon.retained.clone() {
            return self.retain(&retained);
        }
        if self.node.spec.gpus.is_empty() {
            self.unlist();
        }
        let generation = self.node.metadata.generation;
        let status = self.node.status.as_mut().unwrap();
        if status.observed_generation != generation {
            self.failed = None;
        }
        status.observed_generation = generation;
        if let Some(spec) = self.node.spec.gpus.first() {
            let wanted = plain(spec.layout());
            self.served = Some(wanted.clone());
            let now = seen(&self.silicon);
            let lacks = !wanted.mig || wanted.instances.iter().any(|i| !now.instances.contains(i));
            if self.failed.is_none() {
                let mut after = self.silicon.clone();
                carve(&mut after, &wanted);
                if lacks && self.failures > 0 {
                    self.failures -= 1;
                    // What had to go is gone already when the create fails.
                    after.instances.retain(|i| {
                        self.silicon.instances.iter().any(|o| o.start == i.start && o.profile == i.profile)
                    });
                    let call = "nvmlDeviceCreateGpuInstanceWithPlacement".to_owned();
                    self.failed =
                        Some(GpuError { call, code: 23, message: "no room".into(), generation: generation.unwrap() });
                }
                self.nothing_alive_was_destroyed(&mut after);
                self.silicon = after;
            }
            let step = if self.failed.is_some() { AgentStep::Failed } else { AgentStep::Steady };
            (self.silicon.step, self.silicon.error) = (step, self.failed.clone());
            let hold = spec.hold.clone();
            self.offer(|start| !hold.contains(&start));
        }
        self.node.status.as_mut().unwrap().gpus = vec![self.silicon.clone()];
    }

    /// Pods own devices that the spec lacks.
    fn lacks_owned(&self) -> bool {
        let mut after = self.silicon.clone();
        match self.node.spec.gpus.first() {
            Some(spec) => carve(&mut after, &plain(spec.layout())),
            None => after.devices_mut().for_each(|device| device.owner = None),
        }
        let kept: Vec<_> = devices(&mut after).filter_map(|d| d.owner.clone()).collect();
        devices(&mut self.silicon.clone()).any(|d| d.owner.as_ref().is_some_and(|o| !kept.contains(o)))
    }

    /// The agent goes on with the layout of its disk; beside another spec no further pod gets a device that the spec lacks.
    fn retain(&mut self, layout: &Layout) {
        let listed = self.node.spec.gpus.first().map(|spec| (plain(spec.layout()), spec.hold.clone()));
        carve(&mut self.silicon, layout);
        self.silicon.step = if listed.is_some() { AgentStep::WaitingForClients } else { AgentStep::Unmanaged };
        self.silicon.error = None;
        let held: Vec<i32> = listed
            .into_iter()
            .flat_map(|(spec, hold)| {
                let starts = spec.starts();
                layout.starts().into_iter().filter(move |s| !starts.contains(s) || hold.contains(s))
            })
            .collect();
        self.offer(|start| !held.contains(&start));
        let status = self.node.status.as_mut().unwrap();
        status.observed_generation = self.node.metadata.generation;
        status.gpus = vec![self.silicon.clone()];
    }

    /// A GPU that the spec does not list is advertised under no resource, and is in no shares.
    fn unlist(&mut self) {
        if !self.silicon.mig.is_some_and(|m| m.enabled) {
            carve(&mut self.silicon, &Layout::default());
        }
        self.silicon.shares.clear();
        for instance in &mut self.silicon.instances {
            instance.device.get_or_insert_default();
        }
        self.silicon.devices_mut().for_each(|device| (device.resource, device.allocatable) = (None, false));
        self.silicon.step = AgentStep::Unmanaged;
    }

    /// Kubelet lists these devices.
    fn offer(&mut self, offered: impl Fn(i32) -> bool) {
        for instance in &mut self.silicon.instances {
            instance.device.iter_mut().for_each(|device| device.allocatable = offered(instance.start));
        }
        if let Some(whole) = &mut self.silicon.whole {
            whole.allocatable = offered(0);
        }
        for share in &mut self.silicon.shares {
            share.device.allocatable = offered(share.number);
        }
    }

    fn nothing_alive_was_destroyed(&self, after: &mut GpuState) {
        let kept: Vec<_> = devices(after).filter_map(|d| d.owner.clone()).collect();
        let mut before = self.silicon.clone();
        for device in devices(&mut before) {
            let alive = device.owner.as_ref().is_some_and(|o| !kept.contains(o));
            assert!(!alive, "a device of {:?} was destroyed under it", device.owner);
        }
    }

    /// Kubelet reports to the node.
    pub fn kubelet(&mut self) {
        self.allocatable.clear();
        for device in devices(&mut self.silicon.clone()).filter(|d| d.allocatable) {
            *self.allocatable.entry(device.resource.clone().unwrap()).or_default() += 1;
        }
        self.allocatable.retain(|resource, _| !self.uncounted.contains(resource));
    }

    /// A pod starts on a device that kubelet offers, if there is one.
    pub fn start(&mut self, pick: usize) {
        let mut free: Vec<&mut DeviceState> =
            devices(&mut self.silicon).filter(|d| d.allocatable && d.owner.is_none()).collect();
        if free.is_empty() {
            return;
        }
        let pick = pick % free.len();
        self.names += 1;
        let name = format!("pod-{}", self.names);
        free[pick].owner = Some(DeviceOwner { namespace: "team".into(), pod: name.clone(), container: "main".into() });
        free[pick].clients = 1;
        let facts = PodFacts {
            uid: format!("uid-{name}"),
            controller: PodController::Replaces,
            started: Some(self.now),
            ..PodFacts::default()
        };
        self.pods.insert(PodName { namespace: "team".into(), name }, facts);
    }

    /// Pods that were told to go are gone; kubelet gives their devices back.
    pub fn reap(&mut self) {
        let gone: Vec<PodName> = self.pods.iter().filter(|(_, p)| p.terminating).map(|(n, _)| n.clone()).collect();
        for pod in gone {
            self.pods.remove(&pod);
            for device in devices(&mut self.silicon) {
                if device.owner.as_ref().is_some_and(|o| o.pod == pod.name) {
                    (device.owner, device.clients) = (None, 0);
                }
            }
        }
    }

    /// Power off and on: instances and pods are gone, Ampere's mode stays.
    pub fn reboot(&mut self) {
        self.pods.clear();
        self.silicon.instances.clear();
        self.silicon.shares.retain(|_| !self.silicon.mig.is_some_and(|m| m.enabled));
        for device in self.silicon.devices_mut() {
            (device.owner, device.clients) = (None, 0);
        }
        self.failed = None;
    }

    pub fn pass(&mut self, time: SignedDuration) {
        self.now = self.now.checked_add(time).unwrap();
    }

    /// Everybody does their part until nothing is left to do; time passes as the machine asks.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            let decision = self.operate(3);
            let before = self.node.status.clone();
            self.agent();
            self.kubelet();
            self.reap();
            let quiet = decision.spec.is_none() && decision.evictions.is_empty() && before == self.node.status;
            match decision.requeue_at {
                Some(wake) if quiet => {
                    assert!(wake > self.now, "a wake-up in the past is a hot loop");
                    self.now = wake;
                }
                None if quiet && self.decide() == ChangeDecision::default() => return,
                _ => self.pass(SignedDuration::from_secs(1)),
            }
        }
        panic!("no end: {:#?} {:?}", self.node.spec, self.decide());
    }

    /// What NVML and the agent show. The sizes of shares are in the spec only.
    pub fn shown(&self) -> Layout {
        let spec = self.node.spec.gpus.first().and_then(|g| g.sharing.clone());
        let shares = &self.silicon.shares;
        let Some(mut sharing) = spec.filter(|_| !shares.is_empty()) else { return seen(&self.silicon) };
        for group in &mut sharing.shares {
            let here = shares.iter().filter(|s| s.device.resource.as_ref() == Some(&group.resource));
            group.numbers = here.map(|s| s.number).collect();
        }
        plain(Layout { sharing: Some(sharing), ..Layout::default() })
    }

    pub fn phase(&self) -> Option<ChangePhase> {
        Some(self.node.spec.gpus.first()?.change.as_ref()?.phase)
    }

    pub fn hold(&self) -> Vec<i32> {
        self.node.spec.gpus.first().map(|g| g.hold.clone()).unwrap_or_default()
    }
}
