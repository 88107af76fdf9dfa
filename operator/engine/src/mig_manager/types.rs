//! What is looked at on one node, and what is answered.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuNode, MigManagerRules, MigManagerRun, reasons::Reason};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::event::EventMessage;

/// All that a step depends on, for one node.
#[derive(Clone, Debug)]
pub struct MigManagerObservation<'a> {
    /// The time.
    pub now: Timestamp,
    /// The agreement about the node.
    pub node: &'a GpuNode,
    /// The node's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The agent answers, so that what its status says is of now.
    pub agent_alive: bool,
    /// Layouts that are in the `ConfigMap`.
    pub published: &'a super::config::MigConfigs,
    /// How long to wait for what.
    pub patience: MigManagerTimeouts,
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigManagerTimeouts {
    /// For an answer, or for the end of `pending`.
    pub answer: SignedDuration,
    /// For kubelet to bring the `ConfigMap` to the MIG manager.
    pub config_sync: SignedDuration,
    /// So long an answer may be the one to an earlier question: the MIG manager takes a moment to notice a label.
    pub notice: SignedDuration,
}

impl From<&MigManagerRules> for MigManagerTimeouts {
    /// A duration that cannot be read (the API server's pattern lets none through) counts as the field's default.
    fn from(rules: &MigManagerRules) -> Self {
        let read = |text: &gputenancy_crds::DurationText, default: i64| {
            SignedDuration::from_secs(text.seconds().unwrap_or(default))
        };
        Self {
            answer: read(&rules.timeout, 1200),
            config_sync: read(&rules.config_sync, 90),
            notice: SignedDuration::from_secs(20),
        }
    }
}

/// What is to be done about one node. Doing it twice does no harm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MigManagerDecision {
    /// The new journal. Written before the rest is done.
    pub run: Option<MigManagerRun>,
    /// State of the request, for the changes of the GPUs of the node.
    pub state: MigManagerState,
    /// Value for the label `nvidia.com/mig.config`.
    pub label: Option<String>,
    /// Labels that the MIG manager has left paused, to be set back to `true`.
    pub unpause: BTreeSet<String>,
    /// Events to publish.
    pub events: Vec<EventMessage>,
    /// Time of the next decision even if nothing changed.
    pub requeue_at: Option<Timestamp>,
}

/// State of the request, as the changes of the GPUs of the node see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MigManagerState {
    /// NVML shows the requested layout, and the MIG manager has finished.
    #[default]
    Done,
    /// In progress; what is waited for.
    InProgress(String),
    /// The requested layout will not be reached.
    Failed {
        /// Reason of the event.
        reason: Reason,
        /// What happened and what to do.
        message: String,
    },
}
