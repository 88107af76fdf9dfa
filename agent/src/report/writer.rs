//! Writes the status when it differs from what was written last, and not more often than the API server likes.

use std::time::{Duration, Instant};

use gputenancy_crds::{GpuNode, GpuNodeStatus, names::AGENT_MANAGER};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::metrics::Metrics;

/// In the long run there are at most two writes a second; the last state always gets written.
const STEADY: Duration = Duration::from_millis(500);
/// So much of it may be had in advance: eight writes, more than a change of a GPU has steps that somebody waits for.
const CREDIT: Duration = Duration::from_secs(4);
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

/// Writes one object's status.
pub struct Writer {
    api: Api<GpuNode>,
    name: String,
    metrics: Metrics,
    /// What the API server has.
    written: Option<GpuNodeStatus>,
}

impl Writer {
    /// A writer for the `GpuNode` with this name, whose status is known to be `written`.
    pub fn new(api: Api<GpuNode>, name: &str, metrics: Metrics, written: Option<GpuNodeStatus>) -> Self {
        Self { api, name: name.to_owned(), metrics, written }
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
        if done { Written::New } else { Written::Failed }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                if i < 7 {
                    prop_assert_eq!(pause, Duration::ZERO);
                }
                now += pause;
            }
            for from in &writes {
                let share = writes.iter().filter(|at| *at >= from && **at < *from + Duration::from_secs(10)).count();
                prop_assert!(share <= 20 + 8 + 1, "{share} writes in ten seconds");
            }
        }
    }
}
