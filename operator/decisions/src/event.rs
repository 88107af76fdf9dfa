//! What a decision reports as a Kubernetes event; the shell publishes it.

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
