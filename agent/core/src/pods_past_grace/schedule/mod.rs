//! When the containers of deleted pods are killed, and when an attempt is repeated. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use gputenancy_crds::backoff::Backoff;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{OverduePod, TerminatingPods};

/// Time after the grace period for kubelet and the runtime, in seconds.
const MARGIN: u32 = 30;
/// Intervals of attempts: kubelet may start a container that it had begun to start, and calls fail.
const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(1));
/// Shortest interval of warnings about one pod.
const WARNING_INTERVAL: Duration = Duration::from_mins(1);

/// The node's two clocks. The first can differ from the API server's, the second measures time since the agent saw a deletion.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time of day.
    pub wall: Timestamp,
    /// Monotonic clock.
    pub monotonic: Instant,
}

/// Times of the deleted pods, by UID.
#[derive(Debug, Default)]
pub struct Schedule(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    /// Kubelet has had the grace period since the agent saw the deletion.
    earliest: Instant,
    /// Time of the next attempt, after an attempt.
    retry: Option<Instant>,
    /// Attempts so far.
    attempts: u32,
    /// The event is published.
    reported: bool,
    /// The newest warning.
    warned: Option<Instant>,
}

impl Schedule {
    /// Records the deleted pods. The time of the first sight counts; a later deletion with a shorter grace period can only advance the end.
    pub fn update(&mut self, pods: &TerminatingPods, now: Instant) {
        self.0.retain(|uid, _| pods.has(uid));
        for pod in pods.all() {
            let earliest = now + pod.grace + Duration::from_secs(MARGIN.into());
            let new = Entry { earliest, retry: None, attempts: 0, reported: false, warned: None };
            let entry = self.0.entry(pod.uid.clone()).or_insert(new);
            entry.earliest = entry.earliest.min(earliest);
        }
    }

    /// Pods whose containers are to be killed now, and the time until the next pod's are.
    pub fn due(&self, pods: &TerminatingPods, now: Now) -> (Vec<OverduePod>, Option<Duration>) {
        let waits = pods.all().filter_map(|pod| Some((pod, wait(self.0.get(&pod.uid)?, pod.deadline, now))));
        let (due, waiting): (Vec<_>, Vec<_>) = waits.partition(|(_, wait)| wait.is_zero());
        let next = waiting.into_iter().map(|(_, wait)| wait).min();
        (due.into_iter().map(|(pod, _)| pod.clone()).collect(), next)
    }

    /// Schedules the next attempt: with exponential backoff, or after the longest interval at once.
    pub fn retry(&mut self, uid: &str, now: Instant, longest: bool) {
        let Some(entry) = self.0.get_mut(uid) else { return };
        entry.attempts = if longest { u32::MAX } else { entry.attempts.saturating_add(1) };
        entry.retry = Some(now + RETRY.after(entry.attempts));
    }

    /// Whether the event about this pod is published.
    pub fn is_reported(&self, uid: &str) -> bool {
        self.0.get(uid).is_some_and(|entry| entry.reported)
    }

    /// Records that the event about this pod is published.
    pub fn reported(&mut self, uid: &str) {
        if let Some(entry) = self.0.get_mut(uid) {
            entry.reported = true;
        }
    }

    /// Whether a failure of this pod is logged as a warning; records the warning.
    pub fn warns(&mut self, uid: &str, now: Instant) -> bool {
        let Some(entry) = self.0.get_mut(uid) else { return true };
        let warns = entry.warned.is_none_or(|at| now.saturating_duration_since(at) >= WARNING_INTERVAL);
        if warns {
            entry.warned = Some(now);
        }
        warns
    }
}

/// Until the later of both ends, and of the next attempt.
fn wait(entry: &Entry, deadline: Timestamp, now: Now) -> Duration {
    let end = deadline.checked_add(SignedDuration::from_secs(MARGIN.into())).unwrap_or(Timestamp::MAX);
    let wall = Duration::try_from(end.duration_since(now.wall)).unwrap_or_default();
    let next = entry.retry.map_or(entry.earliest, |at| at.max(entry.earliest));
    wall.max(next.saturating_duration_since(now.monotonic))
}

#[cfg(test)]
mod tests;
