//! Conditions after kstatus: `Ready`, with `Reconciling` or `Stalled` while it is not.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use crate::reasons::{self, Reason};

/// The object is as its spec states.
pub const READY: &str = "Ready";
/// Work is in progress.
pub const RECONCILING: &str = "Reconciling";
/// No progress until something outside changes; the message says what.
pub const STALLED: &str = "Stalled";

/// A condition before its times are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Type of the condition, such as `Ready`.
    pub type_: &'static str,
    /// True, False or Unknown (`None`).
    pub status: Option<bool>,
    /// CamelCase reason, listed in [`crate::reasons`].
    pub reason: Reason,
    /// State, number, object, remedy.
    pub message: String,
}

impl ConditionUpdate {
    /// A condition with status True.
    pub fn yes(type_: &'static str, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, status: Some(true), reason, message: message.into() }
    }

    /// A condition with status False.
    pub fn no(type_: &'static str, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, status: Some(false), reason, message: message.into() }
    }
}

/// State of an object, from which the three conditions of kstatus follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overall {
    /// The object is as its spec states.
    Ready {
        /// Message of the condition.
        message: String,
    },
    /// Work is in progress.
    Reconciling {
        /// CamelCase reason, listed in [`crate::reasons`].
        reason: Reason,
        /// What it waits for.
        message: String,
    },
    /// Something outside has to change.
    Stalled {
        /// CamelCase reason, listed in [`crate::reasons`].
        reason: Reason,
        /// What to do.
        message: String,
    },
}

impl Overall {
    /// `Ready`, `Reconciling` and `Stalled`, all three always present, so that a reader needs no default.
    pub fn updates(&self) -> Vec<ConditionUpdate> {
        let (condition, reason, message) = match self {
            Self::Ready { message } => (READY, reasons::READY, message),
            Self::Reconciling { reason, message } => (RECONCILING, *reason, message),
            Self::Stalled { reason, message } => (STALLED, *reason, message),
        };
        let update = |type_: &'static str| {
            let message = if type_ == READY || type_ == condition { message.clone() } else { String::new() };
            ConditionUpdate { type_, status: Some(type_ == condition), reason, message }
        };
        [READY, RECONCILING, STALLED].map(update).into()
    }
}

/// Conditions with times; an unchanged status keeps its transition time, so that an unchanged state serialises to unchanged bytes. Times are
/// whole seconds, as the API server returns them.
pub fn merge(
    old: &[Condition],
    updates: Vec<ConditionUpdate>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let merged = updates.into_iter().map(|update| {
        let ConditionUpdate { type_, status, reason, message } = update;
        let status = match status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let since = old.iter().find(|c| c.type_ == type_ && c.status == status).map(|c| c.last_transition_time.clone());
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            observed_generation: generation,
            last_transition_time: since.unwrap_or(Time(now)),
        }
    });
    merged.collect()
}

/// Whether the condition of this type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_keeps_transition_time_of_unchanged_status() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::from_millisecond(1_999).unwrap());
        let ready = || Overall::Ready { message: "3 namespaces".into() }.updates();
        let first = merge(&[], ready(), Some(1), then);
        assert_eq!(merge(&first, ready(), Some(1), now), first);
        let stalled = Overall::Stalled { reason: reasons::PROFILE_NOT_FOUND, message: "create it".into() };
        let second = merge(&first, stalled.updates(), Some(2), now);
        assert!(is_true(&second, STALLED) && !is_true(&second, READY));
        let read: Vec<Condition> = serde_json::from_value(serde_json::to_value(&second).unwrap()).unwrap();
        assert_eq!(read, second, "as the API server returns it");
        assert_eq!(second.iter().find(|c| c.type_ == RECONCILING).map(|c| c.last_transition_time.0), Some(then));
    }
}
