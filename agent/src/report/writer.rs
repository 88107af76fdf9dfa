//! Writes the status when it differs from what was written last, and not more often than the API server likes.

use std::time::{Duration, Instant};

use gputenancy_crds::{AgentStep, GpuNode, GpuNodeStatus, names::AGENT_MANAGER};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::metrics::Metrics;

/// In the long run there are at most two writes a second; the last state always gets written.
const STEADY: Duration = Duration::from_millis(500);
/// So much of it may be had in advance: sixteen writes, more than two changes of a GPU, one right after the other, have steps that
/// somebody waits for.
const CREDIT: Duration = Duration::from_secs(8);
/// How far a GPU is that is being carved is only looked at, and is written this often at most: a change would use up what may be had
/// in advance, and its end, which others wait for, would be told late.
const PROGRESS: Duration = Duration::from_secs(1);
/// News of one moment are one write: so long is waited for the rest of them.
pub const BURST: Duration = Duration::from_millis(25);
/// A write that takes longer is given up and tried again with what is true by then.
const DEADLINE: Duration = Duration::from_secs(10);

/// How soon the next write may be: a short burst at once, a lasting one slowly.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Until when the writes so far would have taken at the steady pace.
    spent: Instant,
}

impl Pace {
    /// Nothing was written before `now`.
    pub fn new(now: Instant) -> Self {
        Self { spent: now }
    }

    /// Something is written now; answers how long to wait before the next write.
    pub fn after_write(&mut self, now: Instant) -> Duration {
        self.spent = self.spent.max(now) + STEADY;
        self.spent.saturating_duration_since(now + CREDIT)
    }
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The API server had it already.
    Same,
    /// The API server has it now.
    New,
    /// Nobody knows what the API server has.
    Failed,
}

/// How long a status may wait that follows one written so long ago.
fn may_wait(known: &GpuNodeStatus, status: &GpuNodeStatus, ago: Duration) -> Option<Duration> {
    let left = PROGRESS.saturating_sub(ago);
    (!left.is_zero() && known != status && awaited(known) == awaited(status)).then_some(left)
}

/// A status without what nobody waits for: how far a GPU is that is being carved, and words about it.
fn awaited(status: &GpuNodeStatus) -> GpuNodeStatus {
    let mut rest = GpuNodeStatus { layout: None, devices: None, ..status.clone() };
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
    /// What the API server has.
    written: Option<GpuNodeStatus>,
    /// Since when.
    at: Instant,
}

impl Writer {
    /// A writer for the `GpuNode` with this name, whose status is known to be `written`.
    pub fn new(api: Api<GpuNode>, name: &str, metrics: Metrics, written: Option<GpuNodeStatus>) -> Self {
        Self { api, name: name.to_owned(), metrics, written, at: Instant::now() }
    }

    /// How long this status may wait to be written; none when somebody may be waiting for it.
    pub fn may_wait(&self, status: &GpuNodeStatus, now: Instant) -> Option<Duration> {
        may_wait(self.written.as_ref()?, status, now.saturating_duration_since(self.at))
    }

    /// Makes the status so.
    pub async fn write(&mut self, status: GpuNodeStatus) -> Written {
        if self.written.as_ref() == Some(&status) {
            return Written::Same;
        }
        let body = json!({
            "apiVersion": GpuNode::api_version(&()),
            "kind": GpuNode::kind(&()),
            "status": status,
        });
        let params = PatchParams::apply(AGENT_MANAGER).force();
        let patch = Patch::Apply(body);
        let write = self.api.patch_status(&self.name, &params, &patch);
        let done = match tokio::time::timeout(DEADLINE, write).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "writing the status of GpuNode {}", self.name);
                false
            }
            Err(_) => {
                tracing::warn!("writing the status of GpuNode {} takes more than {} s", self.name, DEADLINE.as_secs());
                false
            }
        };
        self.metrics.status_write(done);
        // After a failure nobody knows what the API server has.
        self.written = done.then_some(status);
        self.at = Instant::now();
        if done { Written::New } else { Written::Failed }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn carving(step: &str, instances: &[i32], message: &str) -> GpuNodeStatus {
        let instances: Vec<Value> =
            instances.iter().map(|s| json!({"start": s, "profile": "1g.10gb", "gi": s, "device": {}})).collect();
        let time = "2026-01-01T00:00:00Z";
        let condition = json!({"type": "Ready", "status": "False", "reason": "Carving", "message": message, "lastTransitionTime": time});
        let gpu = json!({"uuid": "GPU-a", "index": 0, "board": 0, "step": step, "instances": instances});
        serde_json::from_value(json!({"gpus": [gpu], "conditions": [condition]})).unwrap()
    }

    #[test]
    fn how_far_carving_is_may_wait_for_a_second_and_its_end_may_not() {
        let begun = carving("Destroying", &[0, 1, 2], "destroying 1g.10gb at 0");
        let further = carving("Destroying", &[1, 2], "destroying 1g.10gb at 1");
        let (soon, late) = (Duration::from_millis(300), Duration::from_millis(700));
        assert_eq!(may_wait(&begun, &further, soon), Some(late));
        assert_eq!(may_wait(&begun, &further, PROGRESS), None, "once a second it is told");
        assert_eq!(may_wait(&further, &carving("Creating", &[], ""), soon), None);
        assert_eq!(may_wait(&carving("Creating", &[0], ""), &carving("Steady", &[0], ""), soon), None);
        assert_eq!(may_wait(&carving("Steady", &[0], ""), &carving("Steady", &[0, 1], ""), soon), None);
    }

    proptest! {
        #[test]
        fn a_burst_goes_at_once_and_no_ten_seconds_have_more_than_their_share(
            idle in proptest::collection::vec(0_u64..800, 1..200),
        ) {
            let start = Instant::now();
            let (mut now, mut pace) = (start, Pace::new(start));
            let mut writes: Vec<Duration> = Vec::new();
            for (i, idle) in idle.into_iter().enumerate() {
                now += Duration::from_millis(idle);
                writes.push(now - start);
                let pause = pace.after_write(now);
                prop_assert!(pause <= STEADY);
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
