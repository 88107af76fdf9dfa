//! A decision while it is being made: the GPU's next spec, and what goes with it.

use gputenancy_crds::{Change, ChangePhase, GpuSpec, Layout};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    model::{Decision, Event, Progress},
    view::View,
};

/// Longest reason that the API takes.
const REASON_LIMIT: usize = 2000;

pub(super) struct Draft<'a> {
    before: Option<&'a GpuSpec>,
    now: Timestamp,
    title: String,
    spec: GpuSpec,
    /// Starts that are held whatever else is, until another layout is asked for.
    kept_back: Vec<i32>,
    pub decision: Decision,
}

impl<'a> Draft<'a> {
    pub fn of(view: &View<'a>) -> Self {
        let listed = || {
            let Layout { mig, instances, resource } = view.present();
            GpuSpec { uuid: view.state.uuid.clone(), mig, instances, resource, ..GpuSpec::default() }
        };
        Self {
            before: view.spec,
            now: view.observation.now,
            title: view.title(),
            spec: view.spec.cloned().unwrap_or_else(listed),
            kept_back: Vec::new(),
            decision: Decision::default(),
        }
    }

    /// Holds these starts with every hold that follows.
    pub fn keep_back(&mut self, starts: Vec<i32>) -> &mut Self {
        self.kept_back = starts;
        self
    }

    /// Does the spec hold already what is kept back?
    pub fn keeps_back(&self) -> bool {
        self.kept_back.iter().all(|start| self.before.is_some_and(|s| s.hold.contains(start)))
    }

    pub fn layout(&mut self, layout: &Layout) -> &mut Self {
        let Layout { mig, instances, resource } = layout.clone();
        self.kept_back.clear();
        self.spec.trial.clear();
        (self.spec.mig, self.spec.instances, self.spec.resource) = (mig, instances, resource);
        self
    }

    pub fn hold(&mut self, starts: impl IntoIterator<Item = i32>) -> &mut Self {
        self.spec.hold = starts.into_iter().chain(self.kept_back.iter().copied()).collect();
        self.spec.hold.sort_unstable();
        self.spec.hold.dedup();
        self
    }

    /// Leaves these devices to canary pods.
    pub fn trial(&mut self, starts: impl IntoIterator<Item = i32>) -> &mut Self {
        self.spec.trial = starts.into_iter().collect();
        self.spec.trial.sort_unstable();
        self
    }

    /// Does the cluster have the spec already?
    pub fn stands(&self) -> bool {
        self.before == Some(&self.spec)
    }

    pub fn begin(&mut self, change: Change) -> &mut Self {
        self.spec.change = Some(change);
        self
    }

    pub fn journal(&mut self, edit: impl FnOnce(&mut Change)) -> &mut Self {
        if let Some(change) = &mut self.spec.change {
            edit(change);
            change.reason = change.reason.chars().take(REASON_LIMIT).collect();
        }
        self
    }

    /// Why the GPU is changed, as the journal has it.
    pub fn reason(&self) -> String {
        self.spec.change.as_ref().map(|c| c.reason.clone()).unwrap_or_default()
    }

    /// Moves to a phase; its clock starts when it is another one.
    pub fn phase(&mut self, phase: ChangePhase) -> &mut Self {
        let now = stamp(self.now);
        self.journal(|c| {
            if c.phase != phase {
                (c.phase, c.phase_since) = (phase, now);
            }
        })
    }

    pub fn finish(&mut self) -> &mut Self {
        self.spec.change = None;
        self.spec.hold.clear();
        self.spec.trial.clear();
        self
    }

    pub fn event(&mut self, warning: bool, reason: &'static str, message: &str) -> &mut Self {
        let message = format!("{}: {message}", self.title);
        self.decision.events.push(Event { warning, reason, message });
        self
    }

    pub fn wake(&mut self, at: Option<Timestamp>) -> &mut Self {
        let sooner = self.decision.wake.into_iter().chain(at).min();
        self.decision.wake = sooner;
        self
    }

    /// Says where the change stands. A wake-up that is already over would be a hot loop: what is due was done.
    pub fn done(mut self, message: impl Into<String>) -> Decision {
        let progress = |c: &Change| Progress { phase: c.phase, message: message.into() };
        self.decision.progress = self.spec.change.as_ref().map(progress);
        let written = self.before != Some(&self.spec);
        if written {
            self.decision.spec = Some(self.spec);
        } else {
            self.decision.events.clear();
        }
        self.decision.wake = self.decision.wake.filter(|at| *at > self.now);
        self.decision
    }

    /// Says what a change that has not begun waits for.
    pub fn waits(mut self, message: impl Into<String>) -> Decision {
        let message = message.into();
        self.decision.pending = Some(message.clone());
        // a GPU that is not listed is listed when its change begins, and not before
        if self.before.is_none() {
            return self.decision;
        }
        let failed = self.reason();
        self.done(if failed.is_empty() { message } else { format!("{failed}; {message}") })
    }
}

/// Times in the journal have whole seconds, as the API server keeps them.
pub(super) fn stamp(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
