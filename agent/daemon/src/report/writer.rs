//! Writes the status when it changes, at a limited rate.

use std::time::{Duration, Instant};

use gputenancy_cluster::{error::sentence, write::FieldManager};
use gputenancy_crds::{AgentStep, GpuNode, GpuNodeStatus, names::AGENT_MANAGER};
use k8s_openapi::jiff::Timestamp;
use kube::Api;

use super::status::stopped;
use crate::metrics::Metrics;

/// Two writes a second in the long run; the last state is always written.
const INTERVAL: Duration = Duration::from_millis(500);
/// A burst of sixteen writes is allowed: more than two consecutive changes of a GPU have steps that the operator waits for.
const BURST: Duration = Duration::from_secs(8);
/// Interval of writes that only show progress of a partitioning: they must not use up the burst, which would delay its end.
const PROGRESS: Duration = Duration::from_secs(1);
/// Changes within this time are one write.
pub const DEBOUNCE: Duration = Duration::from_millis(25);
/// A write that takes longer is abandoned, and repeated with the latest state.
const DEADLINE: Duration = Duration::from_secs(10);
/// Limit of the last write: kubelet kills the agent soon afterwards.
const STOP_DEADLINE: Duration = Duration::from_secs(3);

/// Limits the rate of writes.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// Until when the writes so far would have taken at the steady limit.
    spent: Instant,
}

impl RateLimit {
    /// No write before `now`.
    pub fn new(now: Instant) -> Self {
        Self { spent: now }
    }

    /// Counts a write; returns the delay before the next one.
    pub fn after_write(&mut self, now: Instant) -> Duration {
        self.spent = self.spent.max(now) + INTERVAL;
        self.spent.saturating_duration_since(now + BURST)
    }
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The API server has this status already.
    Unchanged,
    /// Written.
    Written,
    /// Not written, or unknown.
    Failed,
}

/// How long a status may be delayed after the previous write.
fn delay(known: &GpuNodeStatus, status: &GpuNodeStatus, ago: Duration) -> Option<Duration> {
    let left = PROGRESS.saturating_sub(ago);
    (!left.is_zero() && known != status && without_progress(known) == without_progress(status)).then_some(left)
}

/// The status without progress: instances of GPUs that are being partitioned, and messages; and without limits of other products, which teams
/// can change as often as they like.
fn without_progress(status: &GpuNodeStatus) -> GpuNodeStatus {
    let mut rest = GpuNodeStatus { layout: None, devices: None, ..status.clone() };
    rest.enforcement.iter_mut().for_each(|node| node.other_limits.clear());
    for gpu in rest.gpus.iter_mut().filter(|gpu| matches!(gpu.step, AgentStep::Destroying | AgentStep::Creating)) {
        gpu.instances.clear();
    }
    for condition in &mut rest.conditions {
        condition.message.clear();
    }
    rest
}

/// Writes one object's status.
pub struct Writer {
    api: Api<GpuNode>,
    name: String,
    metrics: Metrics,
    /// The status at the API server, if known.
    written: Option<GpuNodeStatus>,
    /// The latest status, also if its write failed.
    latest: Option<GpuNodeStatus>,
    /// Time of the latest write.
    at: Instant,
}

impl Writer {
    /// A writer for the `GpuNode` with this name, whose status is unknown.
    pub fn new(api: Api<GpuNode>, name: &str, metrics: Metrics) -> Self {
        Self { api, name: name.to_owned(), metrics, written: None, latest: None, at: Instant::now() }
    }

    /// The API server has this status, of an earlier run.
    pub fn continue_from(&mut self, status: Option<GpuNodeStatus>) {
        self.latest.clone_from(&status);
        self.written = status;
    }

    /// The API server has another status than was written.
    pub fn forget(&mut self) {
        self.written = None;
    }

    /// How long this status may be delayed; `None` for one that the operator may wait for.
    pub fn delay(&self, status: &GpuNodeStatus, now: Instant) -> Option<Duration> {
        delay(self.written.as_ref()?, status, now.saturating_duration_since(self.at))
    }

    /// Writes the status if it differs.
    pub async fn write(&mut self, status: GpuNodeStatus) -> WriteOutcome {
        if self.written.as_ref() == Some(&status) {
            return WriteOutcome::Unchanged;
        }
        self.latest = Some(status.clone());
        let manager = FieldManager::new(AGENT_MANAGER);
        let write = manager.apply_status(&self.api, &self.name, &status);
        let error = match tokio::time::timeout(DEADLINE, write).await {
            Ok(written) => written.err().map(|error| sentence(&error)),
            Err(_) => Some("timeout".to_owned()),
        };
        if let Some(error) = &error {
            tracing::warn!(error, gpu_node = self.name, "status not written");
        }
        let done = error.is_none();
        self.metrics.status_write(done);
        self.written = done.then_some(status);
        self.at = Instant::now();
        if done { WriteOutcome::Written } else { WriteOutcome::Failed }
    }

    /// Reports that the agent stops, within a few seconds.
    pub async fn write_stopped(&mut self, now: Timestamp) {
        let Some(latest) = self.latest.clone() else { return };
        let name = self.name.clone();
        if tokio::time::timeout(STOP_DEADLINE, self.write(stopped(latest, now))).await.is_err() {
            tracing::warn!(gpu_node = name, "stop not reported in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn partitioning(step: &str, instances: &[i32], message: &str) -> GpuNodeStatus {
        let instances: Vec<Value> =
            instances.iter().map(|s| json!({"start": s, "profile": "1g.10gb", "gi": s, "device": {}})).collect();
        let time = "2026-01-01T00:00:00Z";
        let condition = json!({"type": "Ready", "status": "False", "reason": "Creating", "message": message, "lastTransitionTime": time});
        let gpu = json!({"uuid": "GPU-a", "index": 0, "board": 0, "step": step, "instances": instances});
        serde_json::from_value(json!({"gpus": [gpu], "conditions": [condition]})).unwrap()
    }

    #[test]
    fn progress_is_delayed_up_to_a_second_and_the_end_is_not() {
        let begun = partitioning("Destroying", &[0, 1, 2], "destroying 1g.10gb at 0");
        let further = partitioning("Destroying", &[1, 2], "destroying 1g.10gb at 1");
        let (soon, late) = (Duration::from_millis(300), Duration::from_millis(700));
        assert_eq!(delay(&begun, &further, soon), Some(late));
        assert_eq!(delay(&begun, &further, PROGRESS), None, "once a second");
        assert_eq!(delay(&further, &partitioning("Creating", &[], ""), soon), None);
        assert_eq!(delay(&partitioning("Creating", &[0], ""), &partitioning("Steady", &[0], ""), soon), None);
        assert_eq!(delay(&partitioning("Steady", &[0], ""), &partitioning("Steady", &[0, 1], ""), soon), None);
    }

    proptest! {
        #[test]
        fn rate_limit_allows_a_burst_and_the_long_term_rate_over_ten_seconds(
            idle in proptest::collection::vec(0_u64..800, 1..200),
        ) {
            let start = Instant::now();
            let (mut now, mut limit) = (start, RateLimit::new(start));
            let mut writes: Vec<Duration> = Vec::new();
            for (i, idle) in idle.into_iter().enumerate() {
                now += Duration::from_millis(idle);
                writes.push(now - start);
                let pause = limit.after_write(now);
                prop_assert!(pause <= INTERVAL);
                if i < 15 {
                    prop_assert_eq!(pause, Duration::ZERO);
                }
                now += pause;
            }
            for from in &writes {
                let share = writes.iter().filter(|at| *at >= from && **at < *from + Duration::from_secs(10)).count();
                prop_assert!(share <= 20 + 16 + 1, "{share} writes in ten seconds");
            }
        }
    }
}
