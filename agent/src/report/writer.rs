//! Writes the status when it differs from what was written last, and not more often than the API server likes.

use std::time::Duration;

use gputenancy_crds::{GpuNode, GpuNodeStatus, names::AGENT_MANAGER};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::metrics::Metrics;

/// At most two writes a second; the last state always gets written.
pub const PAUSE: Duration = Duration::from_millis(500);
/// A write that takes longer is given up and tried again with what is true by then.
const DEADLINE: Duration = Duration::from_secs(10);

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

    /// What was written last.
    pub fn written(&self) -> Option<&GpuNodeStatus> {
        self.written.as_ref()
    }

    /// Makes the status so. True when the API server has it now.
    pub async fn write(&mut self, status: GpuNodeStatus) -> bool {
        if self.written.as_ref() == Some(&status) {
            return true;
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
        done
    }
}
