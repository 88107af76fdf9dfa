//! Observations and decisions of a step for one node.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuNode, GpuPool, MigManagerRun, reasons::Reason};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{duration::or_seconds, event::EventMessage};

/// All that a step depends on, for one node.
#[derive(Clone, Debug)]
pub struct RequestObservation<'a> {
    /// The time.
    pub now: Timestamp,
    /// Its `GpuNode`.
    pub node: &'a GpuNode,
    /// The node's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The agent is alive, so that its status is current.
    pub agent_alive: bool,
    /// Layouts that are in the `ConfigMap`.
    pub published: &'a super::config::MigConfigs,
    /// Timeouts of the pool.
    pub patience: RequestTimeouts,
}

/// Timeouts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimeouts {
    /// For a response, or for the end of `pending`.
    pub answer: SignedDuration,
    /// For kubelet to sync the `ConfigMap` into the MIG manager's container.
    pub config_sync: SignedDuration,
    /// After a request the state may still be that of an earlier one for this time.
    pub notice: SignedDuration,
}

impl RequestTimeouts {
    /// Those of a pool; without one, as after its deletion, the request keeps its timeout.
    pub fn of(pool: Option<&GpuPool>, request: Option<&MigManagerRun>) -> Self {
        let rules = pool.and_then(|p| p.spec.mig_manager.clone()).unwrap_or_default();
        let kept = request.filter(|_| pool.is_none()).and_then(|run| run.timeout.as_ref());
        Self {
            answer: or_seconds(kept.unwrap_or(&rules.timeout), 1200),
            config_sync: or_seconds(&rules.config_sync, 90),
            notice: SignedDuration::from_secs(20),
        }
    }
}

/// The decision for one node; idempotent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestDecision {
    /// The new journal, written before the rest is done.
    pub run: Option<MigManagerRun>,
    /// State of the request, for the changes of the GPUs of the node.
    pub state: RequestState,
    /// Value for the label `nvidia.com/mig.config`.
    pub label: Option<String>,
    /// Labels of components that the MIG manager has left paused; set back to `true`.
    pub unpause: BTreeSet<String>,
    /// Events to publish.
    pub events: Vec<EventMessage>,
    /// Time of the next decision even if nothing changed.
    pub requeue_at: Option<Timestamp>,
}

/// State of the request, as the changes of the GPUs of the node see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestState {
    /// NVML shows the requested layout, and the MIG manager has finished.
    #[default]
    Done,
    /// In progress; with what it waits for.
    InProgress(String),
    /// The requested layout will not be reached.
    Failed {
        /// Reason of the event.
        reason: Reason,
        /// State and remedy.
        message: String,
    },
}
