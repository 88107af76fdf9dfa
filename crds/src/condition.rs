//! Conditions after kstatus: `Ready`, with `Reconciling` or `Stalled` while it is not.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// All is as the spec wants it.
pub const READY: &str = "Ready";
/// Work is under way; nothing to do but wait.
pub const RECONCILING: &str = "Reconciling";
/// Nothing moves until a person changes something; the message says what.
pub const STALLED: &str = "Stalled";

/// One condition as a controller decides it, before times are filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Type of the condition, such as `Ready`.
    pub type_: &'static str,
    /// True, False or Unknown (`None`).
    pub status: Option<bool>,
    /// One word in CamelCase.
    pub reason: String,
    /// Names the object, the number and what to do.
    pub message: String,
}

impl Verdict {
    /// A condition that holds.
    pub fn yes(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { type_, status: Some(true), reason: reason.into(), message: message.into() }
    }

    /// A condition that does not hold.
    pub fn no(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { type_, status: Some(false), reason: reason.into(), message: message.into() }
    }
}

/// The overall state of an object, from which kstatus' three conditions follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overall {
    /// Everything is in place.
    Ready {
        /// What a person reads in the `Ready` column's message.
        message: String,
    },
    /// Work is under way.
    Reconciling {
        /// One word in CamelCase.
        reason: String,
        /// What is waited for.
        message: String,
    },
    /// A person has to act.
    Stalled {
        /// One word in CamelCase.
        reason: String,
        /// What to do.
        message: String,
    },
}

impl Overall {
    /// `Ready`, `Reconciling` and `Stalled`, all three always present, so that a reader needs no default.
    pub fn verdicts(&self) -> Vec<Verdict> {
        match self {
            Self::Ready { message } => vec![
                Verdict::yes(READY, "Ready", message),
                Verdict::no(RECONCILING, "Ready", ""),
                Verdict::no(STALLED, "Ready", ""),
            ],
            Self::Reconciling { reason, message } => vec![
                Verdict::no(READY, reason, message),
                Verdict::yes(RECONCILING, reason, message),
                Verdict::no(STALLED, reason, ""),
            ],
            Self::Stalled { reason, message } => vec![
                Verdict::no(READY, reason, message),
                Verdict::no(RECONCILING, reason, ""),
                Verdict::yes(STALLED, reason, message),
            ],
        }
    }
}

/// Turns verdicts into conditions; a condition whose status is as before keeps its transition time, so that an unchanged
/// state serialises to unchanged bytes.
pub fn merge(old: &[Condition], verdicts: Vec<Verdict>, generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    let merged = verdicts.into_iter().map(|verdict| {
        let Verdict { type_, status, reason, message } = verdict;
        let status = match status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let since = old.iter().find(|c| c.type_ == type_ && c.status == status).map(|c| c.last_transition_time.clone());
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason,
            message,
            observed_generation: generation,
            last_transition_time: since.unwrap_or(Time(now)),
        }
    });
    merged.collect()
}

/// Is the condition of this type there and true?
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_status_keeps_its_transition_time() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let ready = || Overall::Ready { message: "3 namespaces".into() }.verdicts();
        let first = merge(&[], ready(), Some(1), then);
        assert_eq!(merge(&first, ready(), Some(1), now), first);
        let stalled = Overall::Stalled { reason: "ProfileNotFound".into(), message: "create it".into() };
        let second = merge(&first, stalled.verdicts(), Some(2), now);
        assert!(is_true(&second, STALLED) && !is_true(&second, READY));
        assert_eq!(second.iter().find(|c| c.type_ == RECONCILING).map(|c| c.last_transition_time.0), Some(then));
    }
}
