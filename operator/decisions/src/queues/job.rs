//! Times of a job, read from Kueue's object of it.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt as _, core::DynamicObject};
use serde_json::Value;

/// A job that is admitted within this time has not waited.
pub const ADMITTED_AT_ONCE: SignedDuration = SignedDuration::from_secs(10);
/// Waits that ended earlier say nothing of the next ones.
const RECENT: SignedDuration = SignedDuration::from_hours(24);

/// A condition of an object of Kueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobCondition<'o> {
    /// Is its status `True`?
    pub on: bool,
    /// Since when it has this status.
    pub since: Timestamp,
    /// Why.
    pub reason: &'o str,
    /// For people.
    pub message: &'o str,
}

/// The condition of this type; `None`: there is none, or its time cannot be read.
pub fn condition<'o>(object: &'o DynamicObject, type_: &str) -> Option<JobCondition<'o>> {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array)?;
    let found = conditions.iter().find(|condition| condition.get("type").is_some_and(|t| t == type_))?;
    let text = |field: &str| found.get(field).and_then(Value::as_str).unwrap_or_default();
    let since = text("lastTransitionTime").parse().ok()?;
    Some(JobCondition { on: text("status") == "True", since, reason: text("reason"), message: text("message") })
}

/// From when to when an admitted job has waited: from its creation, or from the end of its last eviction, to its admission.
pub fn wait(workload: &DynamicObject) -> Option<(Timestamp, Timestamp)> {
    let until = condition(workload, "Admitted").filter(|admitted| admitted.on)?.since;
    let created = workload.creation_timestamp()?.0;
    let since = condition(workload, "Requeued").map_or(created, |requeued| requeued.since.max(created));
    Some((since, until))
}

/// How long jobs of a team have waited of late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypicalWait {
    /// The median, in seconds.
    pub seconds: i64,
    /// Number of waits.
    pub jobs: usize,
}

/// The median of the waits that ended within the last day. Jobs that were admitted at once are left out: they met idle devices, and the ones that
/// wait now do not. `None`: no job has waited.
pub fn typical_wait<'o>(workloads: impl IntoIterator<Item = &'o DynamicObject>, now: Timestamp) -> Option<TypicalWait> {
    let recent = |(_, until): &(Timestamp, Timestamp)| now.duration_since(*until) <= RECENT;
    let waits = workloads.into_iter().filter_map(wait).filter(recent);
    let waits = waits.map(|(since, until)| until.duration_since(since)).filter(|wait| *wait > ADMITTED_AT_ONCE);
    let mut seconds: Vec<i64> = waits.map(|wait| wait.as_secs()).collect();
    seconds.sort_unstable();
    // of an even number the longer one of the two in the middle
    let median = seconds.get(seconds.len() / 2).copied()?;
    Some(TypicalWait { seconds: median, jobs: seconds.len() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A job that was created at 10:00, with these conditions that are True.
    fn job(conditions: &[(&str, &str)]) -> DynamicObject {
        let condition = |(type_, at): &(&str, &str)| json!({"type": type_, "status": "True", "lastTransitionTime": at});
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "w", "creationTimestamp": "2026-11-30T10:00:00Z"}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn wait_begins_at_creation_or_at_the_end_of_the_last_eviction() {
        let admitted = ("Admitted", "2026-11-30T10:05:00Z");
        let until = at("2026-11-30T10:05:00Z");
        assert_eq!(wait(&job(&[admitted])), Some((at("2026-11-30T10:00:00Z"), until)));
        let again = job(&[admitted, ("Requeued", "2026-11-30T10:04:00Z")]);
        assert_eq!(wait(&again), Some((at("2026-11-30T10:04:00Z"), until)));
        assert_eq!(wait(&job(&[])), None);
    }

    #[test]
    fn typical_wait_is_the_median_of_recent_waits_without_jobs_that_were_admitted_at_once() {
        let now = at("2026-12-01T10:01:00Z");
        let jobs = |times: &[&str]| -> Vec<DynamicObject> {
            times.iter().map(|time| job(&[("Admitted", &format!("2026-11-30T{time}Z"))])).collect()
        };
        let typical = |times: &[&str]| typical_wait(&jobs(times), now);
        assert_eq!(typical(&[]), None);
        assert_eq!(typical(&["10:00:05"]), None, "admitted at once");
        assert_eq!(typical(&["10:00:40"]), None, "longer ago than a day");
        let three = typical(&["10:20:00", "10:00:05", "10:02:00", "10:04:00"]);
        assert_eq!(three, Some(TypicalWait { seconds: 240, jobs: 3 }));
        assert_eq!(typical(&["10:02:00", "10:04:00"]), Some(TypicalWait { seconds: 240, jobs: 2 }));
    }
}
