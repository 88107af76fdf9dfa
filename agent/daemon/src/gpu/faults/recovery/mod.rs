//! Whether a GPU returns after a fault without a reset: the driver asks for nothing, no fault follows, and a canary pod passes on it. Pure.

use gputenancy_crds::{FaultFinding, FaultRecovery, FaultVerdict, RecoveryState, names::CLEARED_FAULTS};
use gputenancy_nvml::{NvmlFailure, RecoveryAction};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

/// Faults within this time are one, and so much time without one, while the driver asks for nothing, precedes the canary pod.
pub const QUIET: SignedDuration = SignedDuration::from_secs(30);
/// Faults count for this time.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);
/// After so many faults in that time a GPU returns only by a reset or a person.
const TOO_MANY: usize = 3;
/// Unit of the times in the status.
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// Most times that are kept.
const KEPT: usize = 8;

/// What the driver says must be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// It was not read, or could not be.
    #[default]
    Unknown,
    /// The driver does not say it.
    Unsupported,
    /// This.
    Action(RecoveryAction),
}

impl Asked {
    /// What a call has returned; without an answer nothing is known.
    pub fn of(read: Result<Option<RecoveryAction>, NvmlFailure>) -> Self {
        match read {
            Ok(Some(action)) => Self::Action(action),
            Ok(None) => Self::Unsupported,
            Err(failure) => {
                tracing::debug!(%failure, "recovery action of GPU not known");
                Self::Unknown
            }
        }
    }
}

/// The faults of one GPU since its last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFaults {
    /// The fault that keeps new pods away.
    pub fault: Option<String>,
    /// Times of the faults, oldest first; to the second, as the status has them.
    times: Vec<Timestamp>,
    asked: Asked,
    /// Since when the driver has asked for nothing and no fault has come.
    quiet_since: Option<Timestamp>,
    verdict: Option<FaultVerdict>,
}

impl GpuFaults {
    /// Those that an earlier run of the agent has reported.
    pub fn recorded(fault: Option<String>, times: Vec<Timestamp>) -> Self {
        Self { fault, times, ..Self::default() }
    }

    /// A fault has come.
    pub fn record(&mut self, fault: String, now: Timestamp) {
        // a later fault has no earlier time, also if the clock was set back, and a verdict on the one before does not cover it
        let step = if self.verdict.take().is_some() { SECOND } else { SignedDuration::ZERO };
        let earliest = self.times.last().and_then(|last| last.checked_add(step).ok());
        let now = in_seconds(now).max(earliest.unwrap_or(Timestamp::MIN));
        match self.times.last_mut() {
            Some(last) if now.duration_since(*last).abs() < QUIET => *last = now,
            _ => self.times.push(now),
        }
        self.times.drain(..self.times.len().saturating_sub(KEPT));
        self.fault = Some(fault);
        self.quiet_since = None;
    }

    /// Takes note of what the driver asks for now, and of a verdict.
    pub fn observe(&mut self, asked: Asked, verdict: Option<&FaultVerdict>, now: Timestamp) {
        self.asked = asked;
        // a clock that was set back must not make the wait longer than it is
        let quiet = self.quiet_since.map_or(now, |since| since.min(now));
        self.quiet_since = (asked == Asked::Action(RecoveryAction::None)).then_some(quiet);
        self.verdict =
            verdict.filter(|verdict| self.times.last().is_some_and(|last| verdict.until.0 >= *last)).cloned();
        if self.verdict.as_ref().is_some_and(FaultVerdict::is_cleared) {
            self.fault = None;
        }
        if self.verdict.as_ref().is_some_and(|verdict| verdict.finding == FaultFinding::ClearedByPerson) {
            self.times.clear();
        }
        let first = if self.fault.is_some() { self.times.len().saturating_sub(1) } else { self.times.len() };
        let old = self.times.iter().take(first).take_while(|at| now.duration_since(**at) > REMEMBERED).count();
        self.times.drain(..old);
    }

    /// Nothing is left to remember.
    pub fn is_over(&self) -> bool {
        self.fault.is_none() && self.times.is_empty()
    }

    /// What the status says of it; `None`: there was no fault.
    pub fn recovery(&self, now: Timestamp) -> Option<FaultRecovery> {
        if self.is_over() {
            return None;
        }
        let (state, message) = self.state(now);
        Some(FaultRecovery { state, message, faults: self.times.iter().copied().map(Time).collect() })
    }

    fn state(&self, now: Timestamp) -> (RecoveryState, String) {
        use RecoveryState::{AwaitingCanary, Cleared, StaysOut, Waiting};
        let found = self.verdict.as_ref().map(|verdict| verdict.reason.as_str());
        if self.fault.is_none() {
            return (Cleared, found.unwrap_or("cleared by an earlier verdict").to_owned());
        }
        let out = |why: &str| (StaysOut, format!("{why}: {}", remedy()));
        if let Some(found) = found {
            return out(found);
        }
        let recent = self.times.iter().filter(|at| now.duration_since(**at) <= REMEMBERED).count();
        if recent >= TOO_MANY {
            return out(&format!("{recent} faults in 24 hours"));
        }
        match self.asked {
            Asked::Unsupported => out("the driver does not say what must be done; versions from 570 on do"),
            Asked::Unknown => (Waiting, "what the driver asks for could not be read yet".to_owned()),
            Asked::Action(RecoveryAction::None) => {
                if self.quiet_since.is_some_and(|since| now.duration_since(since) >= QUIET) {
                    let message = "the driver asks for nothing: a canary pod has to pass on a free device. Without spec.verify.canary in the pool none starts: add it, or";
                    (AwaitingCanary, format!("{message} {}", remedy()))
                } else {
                    let quiet = QUIET.as_secs();
                    (Waiting, format!("the driver asks for nothing; {quiet} seconds without a fault are awaited"))
                }
            }
            Asked::Action(action) => (Waiting, format!("the driver asks for {}", name(action))),
        }
    }
}

/// Without parts of a second, as Kubernetes writes times.
pub fn in_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn remedy() -> String {
    format!(
        "reset the GPU, restart its node or replace it, or clear its faults by the annotation {CLEARED_FAULTS} of the Node, as UUID=time"
    )
}

fn name(action: RecoveryAction) -> String {
    match action {
        RecoveryAction::None => "nothing".to_owned(),
        RecoveryAction::GpuReset => "a reset of the GPU".to_owned(),
        RecoveryAction::NodeReboot => "a restart of the node".to_owned(),
        RecoveryAction::DrainP2P => "an end of traffic between GPUs, then a reset".to_owned(),
        RecoveryAction::DrainAndReset => "a reset of the GPU when its programs have ended".to_owned(),
        RecoveryAction::Other(number) => format!("recovery action {number} of NVML"),
    }
}

#[cfg(test)]
mod tests;
