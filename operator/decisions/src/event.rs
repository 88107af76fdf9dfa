//! Kubernetes events of a decision; the shell publishes them.

use gputenancy_crds::reasons::Reason;

/// An event about a GPU or its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventMessage {
    /// Type Warning, or else Normal.
    pub warning: bool,
    /// Why, from the table of reasons.
    pub reason: Reason,
    /// One sentence.
    pub message: String,
}

impl EventMessage {
    /// An event of type Normal.
    pub fn normal(reason: Reason, message: String) -> Self {
        Self { warning: false, reason, message }
    }

    /// An event of type Warning.
    pub fn warning(reason: Reason, message: String) -> Self {
        Self { warning: true, reason, message }
    }
}
