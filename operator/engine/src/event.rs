//! What a decision reports as a Kubernetes event; the shell publishes it.

/// An event about a GPU or its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventMessage {
    /// Type Warning, or else Normal.
    pub warning: bool,
    /// In CamelCase.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}
