//! The actors, one small step each, and how they crash.

use std::collections::BTreeSet;

use gputenancy_crds::{
    AgentStep, ChangePhase, DeviceOwner, DeviceState, GpuError, GpuSpec, InstanceSpec, MigMode, ids::PodName, names,
};
use gputenancy_decisions::change::{CanaryOutcome, CanaryPod, PodController};
use k8s_openapi::jiff::Timestamp;

use super::world::{Effect, Pod, Tried, World, fresh, wanted};

/// What becomes of an effect at the moment of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    NotDone,
    /// It is done, and whoever asked for it hears of a failure.
    Unheard,
}

/// Who crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Operator,
    /// It crashes, and nobody notices before it is back.
    Agent,
    /// The agent is taken off its node, and the operator sees that it is silent.
    AgentLeaves,
    /// An agent of another version is there, which has not reported yet.
    AgentReplaced,
    Api,
    Kubelet,
    Node,
}

pub const CRASHES: [Crash; 7] =
    [Crash::Operator, Crash::Agent, Crash::AgentLeaves, Crash::AgentReplaced, Crash::Api, Crash::Kubelet, Crash::Node];

impl World {
    /// Operator: decides when it has nothing to write, else writes the next thing. False: there was nothing to do.
    pub fn operator_step(&mut self, outcome: Outcome) -> bool {
        if let Some(effect) = self.queue.pop_front() {
            self.tell(|| format!("operator: {effect:?} {outcome:?}").chars().take(300).collect());
            let outcome = if self.api { outcome } else { Outcome::NotDone };
            if outcome != Outcome::NotDone {
                self.write(effect);
            }
            if outcome != Outcome::Done {
                // a write that fails ends the work on this node; the next pass begins anew
                self.queue.clear();
            }
            return true;
        }
        let decision = self.decide();
        assert!(
            decision.requeue_at.is_none_or(|at| at > self.now),
            "a wake-up in the past is a hot loop: {decision:?}"
        );
        // without an agent a change may be cancelled, but it does not proceed
        let partitions = decision.spec.as_ref().is_some_and(|s| s.layout() != self.spec().layout());
        let disturbs = partitions || !decision.evictions.is_empty() || !decision.canaries.is_empty();
        assert!(self.agent_alive() || !disturbs, "a change proceeds without an agent: {decision:?}");
        self.queue.extend(decision.spec.map(|s| Effect::Spec(Box::new(s))));
        self.queue.extend(decision.evictions.into_iter().map(Effect::Evict));
        self.queue.extend(decision.notices.into_iter().map(Effect::Notice));
        self.queue.extend(decision.canaries.into_iter().map(|c| Effect::Canary(Box::new(c))));
        let stray = |(name, tried): (&String, &Tried)| {
            tried.pod.outcome != CanaryOutcome::Terminating && !decision.kept_canaries.contains(name)
        };
        let strays: Vec<String> =
            self.canaries.iter().filter(|entry| stray(*entry)).map(|(name, _)| name.clone()).collect();
        self.queue.extend(strays.into_iter().map(Effect::Dismiss));
        let stale = |(name, pod): (&PodName, &Pod)| {
            let spared = pod.notice.is_some() && !pod.terminating && !decision.notified.contains(name);
            (spared && self.node_ready).then(|| name.clone())
        };
        let spared: Vec<PodName> = self.pods.iter().filter_map(stale).collect();
        self.queue.extend(spared.into_iter().map(Effect::Spare));
        !self.queue.is_empty()
    }

    fn write(&mut self, effect: Effect) {
        match effect {
            Effect::Spec(spec) => {
                assert_ne!(self.spec(), &*spec, "a write that changes nothing");
                let known = spec.change.as_ref().is_none_or(|c| [&c.from, &c.to].contains(&&spec.layout()));
                assert!(known, "the spec asks for the old layout or the new one, never for something between");
                if let (Some(old), Some(new)) = (&self.spec().change, &spec.change) {
                    let over = old.phase >= ChangePhase::RolledBack;
                    assert!(over || old.started_at == new.started_at, "two changes meet on one GPU: {:#?}", self.story);
                }
                self.check_proof(&spec);
                let unchanged = wanted(self.spec()) == wanted(&spec);
                let alive = self.going(&spec.layout()).into_iter().find(|(_, d)| d.owner.is_some() || d.clients > 0);
                assert!(
                    unchanged || alive.is_none(),
                    "{alive:?} is to be destroyed under its owner: {:#?}",
                    self.story
                );
                self.node.spec.gpus = vec![*spec];
                self.node.metadata.generation = self.node.metadata.generation.map(|g| g + 1);
                self.writes += 1;
            }
            Effect::Notice(notice) => {
                if let Some(pod) = self.pods.get_mut(&notice.pod) {
                    pod.notice = Some(notice.deadline);
                }
            }
            Effect::Spare(name) => {
                if let Some(pod) = self.pods.get_mut(&name) {
                    pod.notice = None;
                }
            }
            Effect::Canary(canary) => {
                let starts = self.devices().into_iter().map(|(s, _, _)| s);
                let start = starts.into_iter().find(|s| names::canary_resource(0, s) == canary.resource);
                let pod = CanaryPod { created: self.now, outcome: CanaryOutcome::Pending("it starts".into()) };
                let tried = Tried { start: start.unwrap_or(-1), pod, has: false };
                self.canaries.entry(canary.name).or_insert(tried);
                self.writes += 1;
            }
            Effect::Dismiss(name) => {
                if let Some(tried) = self.canaries.get_mut(&name) {
                    tried.pod.outcome = CanaryOutcome::Terminating;
                }
                self.writes += 1;
            }
            Effect::Evict(eviction) => self.evict(&eviction.pod, &eviction.uid),
        }
    }

    /// What the canaries have to prove is not offered to others before they have.
    fn check_proof(&self, spec: &GpuSpec) {
        let phase = |s: &GpuSpec| s.change.as_ref().map(|c| c.phase);
        if self.policy.canary.is_none()
            || phase(spec) != Some(ChangePhase::Verifying)
            || phase(self.spec()) == phase(spec)
        {
            return;
        }
        let change = self.spec().change.as_ref().expect("a change that goes on");
        let new = change.to.mig && change.to.instances.iter().any(|i| !change.from.instances.contains(i));
        let proven =
            |start: &i32| self.canaries.values().any(|t| t.start == *start && t.pod.outcome == CanaryOutcome::Passed);
        let tried = &self.spec().trial;
        assert!(!new || !tried.is_empty() && tried.iter().all(proven), "released without a proof: {:#?}", self.story);
    }

    fn evict(&mut self, name: &PodName, uid: &str) {
        self.writes += 1;
        let Some(pod) = self.pods.get(name).filter(|p| p.uid == uid) else { return };
        let change = self.spec().change.clone().expect("evictions belong to a change");
        let goes = self.going(&change.to).iter().any(|(start, _)| *start == pod.start);
        assert!(goes, "{name} owns nothing that goes: {:#?}", self.story);
        assert!(pod.notice.is_none() || change.evict_after.is_none_or(|at| at.0 <= self.now), "{name} goes too early");
        let now = self.now;
        let pod = self.pods.get_mut(name).unwrap();
        if self.refusals > 0 {
            self.refusals -= 1;
            self.refused.insert(uid.to_owned(), now);
        } else if !pod.terminating {
            pod.terminating = true;
            self.evicted.insert(name.clone());
        }
    }

    /// Agent: reads, offers, reports, or makes one NVML call, whichever is due first.
    pub fn agent_step(&mut self, outcome: Outcome) -> bool {
        if !self.agent.up {
            return false;
        }
        let generation = self.node.metadata.generation.unwrap();
        if self.api && self.agent.spec.as_ref().is_none_or(|(known, _)| *known != generation) {
            let first = self.agent.spec.is_none();
            let recorded = self.node.status.as_ref().unwrap().gpus.first().and_then(|g| g.error.clone());
            self.agent.failed = recorded.filter(|e| first && e.generation == generation);
            self.agent.spec = Some((generation, self.spec().clone()));
            self.tell(|| format!("agent: reads generation {generation}"));
            return true;
        }
        let Some((_, spec)) = self.agent.spec.clone() else { return false };
        let offered = self.offered(&spec);
        // the scheduler's count sinks first, and kubelet is told after it
        let counted = self.amounts(&self.listed.intersection(&offered).copied().collect());
        let sinks = self.allocatable.iter().any(|(name, count)| counted.get(name).copied().unwrap_or(0) < *count);
        if self.api && self.kubelet && sinks {
            self.tell(|| format!("agent: lowers allocatable to {counted:?}"));
            self.allocatable = counted;
            return true;
        }
        if self.kubelet && !sinks && self.listed != offered {
            self.tell(|| format!("agent: offers {offered:?}"));
            self.listed = offered;
            return true;
        }
        if self.api && self.kubelet && self.amounts(&self.listed) != self.allocatable {
            self.allocatable = self.amounts(&self.listed);
            return true;
        }
        if self.report(outcome) {
            return true;
        }
        self.call(&spec, outcome)
    }

    fn offered(&self, spec: &GpuSpec) -> BTreeSet<i32> {
        let layout = wanted(spec);
        let leaving: BTreeSet<i32> = self.going(&layout).into_iter().map(|(s, _)| s).collect();
        let starts = self.devices().into_iter().map(|(s, _, _)| s);
        starts.filter(|s| !leaving.contains(s) && (spec.trial.contains(s) || !spec.hold.contains(s))).collect()
    }

    fn amounts(&self, of: &BTreeSet<i32>) -> std::collections::BTreeMap<String, i64> {
        let mut amounts = std::collections::BTreeMap::new();
        let trial = self.on_trial();
        for (start, profile, _) in self.devices() {
            if of.contains(&start) {
                *amounts.entry(name(&trial, start, profile)).or_insert(0) += 1;
            }
        }
        amounts
    }

    fn report(&mut self, outcome: Outcome) -> bool {
        let Some((generation, spec)) = self.agent.spec.clone() else { return false };
        let (offered, listed) = (self.offered(&spec), self.listed.clone());
        let mut seen = self.silicon.clone();
        (seen.step, seen.error) = (self.doing(&spec), self.agent.failed.clone());
        let show = |start: i32, profile: Option<&str>, device: &mut DeviceState| {
            device.resource = offered.contains(&start).then(|| name(&spec.trial, start, profile));
            device.allocatable = listed.contains(&start);
        };
        for i in &mut seen.instances {
            i.device.iter_mut().for_each(|device| show(i.start, Some(&i.profile), device));
        }
        seen.whole.iter_mut().for_each(|w| show(0, None, w));
        let status = self.node.status.as_mut().unwrap();
        if !self.api || (status.observed_generation == Some(generation) && status.gpus.first() == Some(&seen)) {
            return false;
        }
        if outcome != Outcome::NotDone {
            status.observed_generation = Some(generation);
            status.gpus = vec![seen];
            let step = self.node.status.as_ref().unwrap().gpus[0].step;
            self.tell(|| format!("agent: reports generation {generation}, {step:?}"));
        }
        true
    }

    /// What the agent does next, as its status says it.
    fn doing(&self, spec: &GpuSpec) -> AgentStep {
        let to = wanted(spec);
        if self.shown() == to {
            return AgentStep::Steady;
        }
        if self.agent.failed.is_some() {
            return AgentStep::Failed;
        }
        let going = self.going(&to);
        if going.iter().any(|(_, d)| d.clients > 0) {
            return AgentStep::WaitingForClients;
        }
        if going.iter().any(|(s, _)| self.devices().iter().any(|(at, p, _)| at == s && p.is_some())) {
            return AgentStep::Destroying;
        }
        if self.silicon.mig.unwrap().enabled == to.mig { AgentStep::Creating } else { AgentStep::SettingMode }
    }

    fn call(&mut self, spec: &GpuSpec, outcome: Outcome) -> bool {
        let to = wanted(spec);
        let doing = self.doing(spec);
        if matches!(doing, AgentStep::Steady | AgentStep::Failed | AgentStep::WaitingForClients) {
            return false;
        }
        let going: Vec<i32> = self.going(&to).into_iter().map(|(s, _)| s).collect();
        let owned = |s: &i32| self.devices().iter().any(|(at, _, d)| at == s && d.owner.is_some());
        // kubelet could still give it away, or has
        if going.iter().any(|s| self.listed.contains(s) || owned(s)) {
            return false;
        }
        if outcome == Outcome::NotDone {
            return true;
        }
        self.tell(|| format!("agent: {doing:?}"));
        let instances = &mut self.silicon.instances;
        if let Some(place) = instances.iter().position(|i| going.contains(&i.start)) {
            let gone = instances.remove(place);
            assert_eq!(
                gone.device.map(|device| device.clients),
                Some(0),
                "a device was destroyed under its process: {:#?}",
                self.story
            );
        } else if self.silicon.mig.unwrap().enabled != to.mig {
            self.silicon.mig = Some(MigMode { enabled: to.mig, pending: None });
            self.silicon.whole = (!to.mig).then(DeviceState::default);
        } else {
            let there = |i: &InstanceSpec| instances.iter().any(|s| s.start == i.start && s.profile == i.profile);
            let Some(next) = to.instances.iter().find(|i| !there(i)) else { return false };
            if self.failures > 0 {
                self.failures -= 1;
                let call = "nvmlDeviceCreateGpuInstanceWithPlacement".to_owned();
                let generation = self.agent.spec.as_ref().unwrap().0;
                self.agent.failed = Some(GpuError { call, code: 23, message: "no room".into(), generation });
                return true;
            }
            instances.push(fresh(&next.profile, next.start));
            instances.sort_by_key(|i| i.start);
        }
        true
    }

    /// Kubelet: ends the next pod that has to go, in two steps.
    pub fn kubelet_step(&mut self) -> bool {
        if !self.kubelet {
            return false;
        }
        if self.canary_step() {
            return true;
        }
        let next = self.pods.iter().find(|(_, p)| p.terminating).map(|(n, p)| (n.clone(), p.start, p.ended));
        let Some((name, start, ended)) = next else { return false };
        if !ended {
            self.pods.get_mut(&name).unwrap().ended = true;
            if let Some(device) = self.device(start) {
                device.clients = 0;
            }
            return true;
        }
        if !self.api {
            return false;
        }
        self.tell(|| format!("kubelet: {name} is gone"));
        self.pods.remove(&name);
        if let Some(device) = self.device(start).filter(|d| d.owner.as_ref().is_some_and(|o| o.pod == name.name)) {
            device.owner = None;
        }
        true
    }

    /// Devices that kubelet knows by their canaries' names.
    fn on_trial(&self) -> Vec<i32> {
        self.agent.spec.as_ref().map(|(_, spec)| spec.trial.clone()).unwrap_or_default()
    }

    /// Kubelet: starts, ends or removes the next canary pod.
    fn canary_step(&mut self) -> bool {
        let trial = self.on_trial();
        let ready = |t: &Tried| match t.pod.outcome {
            CanaryOutcome::Terminating => self.api,
            CanaryOutcome::Pending(_) => t.has || (self.listed.contains(&t.start) && trial.contains(&t.start)),
            _ => false,
        };
        let Some(name) = self.canaries.iter().find(|(_, t)| ready(t)).map(|(name, _)| name.clone()) else {
            return false;
        };
        let mut tried = self.canaries.remove(&name).unwrap();
        self.tell(|| format!("kubelet: {name} {tried:?}"));
        let starts = !tried.has && tried.pod.outcome != CanaryOutcome::Terminating;
        if let Some(device) = self.device(tried.start).filter(|_| starts || tried.has) {
            let owner = DeviceOwner { namespace: "home".into(), pod: name.clone(), container: "canary".into() };
            assert!(device.owner.as_ref().is_none_or(|o| *o == owner), "the canary's device is another pod's");
            (device.owner, device.clients) = if starts { (Some(owner), 1) } else { (None, 0) };
        }
        tried.has = starts;
        if starts {
            self.tell(|| format!("{name} has its device"));
        } else if tried.pod.outcome == CanaryOutcome::Terminating {
            return true;
        } else if self.broken > 0 {
            self.broken -= 1;
            tried.pod.outcome = CanaryOutcome::Failed("exit code 1".into());
        } else {
            tried.pod.outcome = CanaryOutcome::Passed;
        }
        self.canaries.insert(name, tried);
        true
    }

    /// A pod comes to the first device that is offered and free, one that stays if there is one, when the Node counts one more.
    pub fn pod_step(&mut self) -> bool {
        if self.arrivals == 0 || !self.kubelet || !self.api || !self.agent.up {
            return false;
        }
        let trial = self.on_trial();
        let open = |s: &i32| self.listed.contains(s) && !trial.contains(s);
        let held = |s: &i32| self.spec().hold.contains(s);
        let counted = |profile: Option<&str>| {
            let all = self.devices().into_iter().filter(|(s, p, _)| *p == profile && !trial.contains(s));
            let taken = i64::try_from(all.filter(|(_, _, d)| d.owner.is_some()).count()).unwrap();
            taken < self.allocatable.get(&resource(profile)).copied().unwrap_or(0)
        };
        let free = self.devices().into_iter().filter(|(s, p, d)| open(s) && d.owner.is_none() && counted(*p));
        let Some(start) = free.map(|(s, _, _)| s).min_by_key(|s| (held(s), *s)) else { return false };
        let evicting = self.pods.values().any(|p| p.terminating);
        assert!(!(evicting && held(&start)), "whoever replaces an evicted pod comes to what goes: {:#?}", self.story);
        self.arrivals -= 1;
        self.arrive(start, PodController::Replaces);
        true
    }

    pub fn crash(&mut self, who: Crash) {
        self.tell(|| format!("crash: {who:?}"));
        match who {
            Crash::Operator => {
                self.queue.clear();
                self.refused.clear();
            }
            Crash::Agent => {
                self.agent = super::world::Agent::default();
                self.listed.clear();
            }
            Crash::AgentLeaves => {
                self.crash(Crash::Agent);
                self.silent = true;
                if self.api {
                    self.allocatable.clear();
                }
            }
            Crash::AgentReplaced => {
                self.crash(Crash::Agent);
                self.agent.up = true;
                // before its first report an agent has observed generation -1
                self.node.status.as_mut().unwrap().observed_generation = Some(-1);
            }
            Crash::Api => self.api = false,
            Crash::Kubelet => {
                self.kubelet = false;
                // the plugin has to register anew
                self.listed.clear();
                self.node_ready = false;
            }
            Crash::Node => {
                self.crash(Crash::Agent);
                self.crash(Crash::Kubelet);
                self.silicon.instances.clear();
                self.silicon.whole.iter_mut().for_each(|w| *w = DeviceState::default());
                // pods that held devices fail when the node is back, and their controllers replace them
                self.pods.clear();
                for tried in self.canaries.values_mut().filter(|t| matches!(t.pod.outcome, CanaryOutcome::Pending(_))) {
                    (tried.has, tried.pod.outcome) = (false, CanaryOutcome::Inconclusive("the node went down".into()));
                }
            }
        }
    }

    /// Everything that is down comes back. True: something was.
    pub fn recover(&mut self) -> bool {
        let was_down = !(self.api && self.agent.up && self.kubelet && self.node_ready) || self.silent;
        if was_down {
            self.alive_since = self.now;
        }
        self.silent = false;
        (self.api, self.agent.up, self.kubelet, self.node_ready) = (true, true, true, true);
        was_down
    }

    /// The next step when everybody does their part; `None`: all is at rest for good.
    pub fn fair_step(&mut self) -> Option<()> {
        let done = Outcome::Done;
        if self.recover() || self.agent_step(done) || self.kubelet_step() || self.operator_step(done) {
            return Some(());
        }
        let decision = self.decide();
        if self.blocked && decision.progress.as_ref().is_some_and(|p| p.phase == ChangePhase::RolledBack) {
            return None;
        }
        let wake: Timestamp = decision.requeue_at?;
        self.tell(|| format!("time passes until {wake}"));
        self.now = wake;
        Some(())
    }

    /// Is this a good end?
    pub fn check_end(&self) {
        let notified: Vec<_> = self.pods.iter().filter(|(_, p)| p.notice.is_some()).collect();
        let end = if self.blocked && self.phase().is_some() { &self.from } else { &self.target };
        assert_eq!(&self.shown(), end, "neither the old layout nor the new one: {:#?}\n{:#?}", self.spec(), self.story);
        assert_eq!(&wanted(self.spec()), end);
        assert!(self.spec().hold.is_empty(), "a hold is left behind: {:#?}", self.story);
        assert!(notified.is_empty(), "a notice is left behind: {notified:?} {:#?}", self.story);
        assert!(self.canaries.is_empty(), "a canary is left behind: {:#?} {:#?}", self.canaries, self.story);
        assert!(self.spec().trial.is_empty(), "a device is left on trial: {:#?}", self.story);
        assert!(self.queue.is_empty());
        assert!(self.phase().is_none() || self.blocked, "{:#?}", self.spec());
    }
}

/// The name under which a device is offered.
fn name(trial: &[i32], start: i32, profile: Option<&str>) -> String {
    if trial.contains(&start) { names::canary_resource(0, start) } else { resource(profile) }
}

fn resource(profile: Option<&str>) -> String {
    profile.map_or_else(|| names::WHOLE_GPU_RESOURCE.to_owned(), names::mig_resource)
}
