//! A decision under construction: the GPU's next spec and what goes with it.

use gputenancy_crds::{Change, ChangePhase, FaultVerdict, GpuSpec, Layout, reasons::Reason};
use k8s_openapi::jiff::Timestamp;

use super::{
    context::ChangeContext,
    types::{ChangeDecision, ChangeProgress},
};
use crate::{duration::stamp, event::EventMessage};

/// Longest reason that the API takes, in characters.
pub const REASON_LIMIT: usize = 2000;

pub(super) struct Draft<'a> {
    before: Option<&'a GpuSpec>,
    now: Timestamp,
    title: String,
    spec: GpuSpec,
    /// Starts that every hold includes until another layout is requested.
    always_held: Vec<i32>,
    pub decision: ChangeDecision,
}

impl<'a> Draft<'a> {
    pub fn of(ctx: &ChangeContext<'a>) -> Self {
        let listed = || {
            let Layout { mig, instances, resource, sharing } = ctx.present();
            GpuSpec { uuid: ctx.state.uuid.clone(), mig, instances, resource, sharing, ..GpuSpec::default() }
        };
        Self {
            before: ctx.spec,
            now: ctx.observation.now,
            title: ctx.title(),
            spec: ctx.spec.cloned().unwrap_or_else(listed),
            always_held: Vec::new(),
            decision: ChangeDecision::default(),
        }
    }

    /// Includes these starts in every hold that follows.
    pub fn always_hold(&mut self, starts: Vec<i32>) -> &mut Self {
        self.always_held = starts;
        self
    }

    /// The written spec holds all of them already.
    pub fn holds_always_held(&self) -> bool {
        self.always_held.iter().all(|start| self.before.is_some_and(|s| s.hold.contains(start)))
    }

    pub fn layout(&mut self, layout: &Layout) -> &mut Self {
        let Layout { mig, instances, resource, sharing } = layout.clone();
        self.always_held.clear();
        self.spec.trial.clear();
        (self.spec.mig, self.spec.instances) = (mig, instances);
        (self.spec.resource, self.spec.sharing) = (resource, sharing);
        self
    }

    pub fn hold(&mut self, starts: impl IntoIterator<Item = i32>) -> &mut Self {
        self.spec.hold = starts.into_iter().chain(self.always_held.iter().copied()).collect();
        self.spec.hold.sort_unstable();
        self.spec.hold.dedup();
        self
    }

    /// Advertises these devices to their canary pods only.
    pub fn trial(&mut self, starts: impl IntoIterator<Item = i32>) -> &mut Self {
        self.spec.trial = starts.into_iter().collect();
        self.spec.trial.sort_unstable();
        self
    }

    /// Records what was found about a fault.
    pub fn verdict(&mut self, verdict: FaultVerdict) -> &mut Self {
        self.spec.fault_verdict = Some(verdict);
        self
    }

    pub fn is_written(&self) -> bool {
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

    /// Records a failure with its reason.
    pub fn fail(&mut self, reason: &str) -> &mut Self {
        self.journal(|c| (c.reason, c.failures) = (reason.to_owned(), c.failures.saturating_add(1)))
    }

    /// The reason without the pods that are evicted for it: one owner learns nothing about the others.
    pub fn reason_for_owner(&self) -> String {
        let reason = self.reason();
        reason.split_once("; evicts ").map_or(reason.clone(), |(before, _)| before.to_owned())
    }

    /// The journal's reason of the change.
    pub fn reason(&self) -> String {
        self.spec.change.as_ref().map(|c| c.reason.clone()).unwrap_or_default()
    }

    /// Enters a phase; entering another one starts its clock.
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

    pub fn event(&mut self, warning: bool, reason: Reason, message: &str) -> &mut Self {
        let message = format!("{}: {message}", self.title);
        self.decision.events.push(EventMessage { warning, reason, message });
        self
    }

    /// Decides again at this time, if no other one is earlier. A time that has passed is left out, because what was due is done: it
    /// must not hide a later one.
    pub fn requeue_at(&mut self, at: Option<Timestamp>) -> &mut Self {
        let ahead = at.filter(|at| *at > self.now);
        self.decision.requeue_at = self.decision.requeue_at.into_iter().chain(ahead).min();
        self
    }

    /// Ends the decision with the progress message.
    pub fn done(mut self, message: impl Into<String>) -> ChangeDecision {
        let progress = |c: &Change| ChangeProgress { phase: c.phase, message: message.into() };
        self.decision.progress = self.spec.change.as_ref().map(progress);
        if self.is_written() {
            self.decision.events.clear();
        } else {
            self.decision.spec = Some(self.spec);
        }
        self.decision
    }

    /// Ends the decision of a change that has not begun.
    pub fn pending(mut self, message: impl Into<String>) -> ChangeDecision {
        let message = message.into();
        self.decision.pending = Some(message.clone());
        // the spec lists a GPU only from the beginning of its change
        if self.before.is_none() {
            return self.decision;
        }
        let failed = self.reason();
        self.done(if failed.is_empty() { message } else { format!("{failed}; {message}") })
    }
}
