//! What can go wrong between a test and the lab.

/// Result of a step.
pub type Result<T> = std::result::Result<T, Error>;

/// A step that failed, as text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the lab failed.
    #[error("lab: {0}")]
    Lab(#[from] lab::Error),
    /// The API server refused a request.
    #[error("kubernetes: {0}")]
    Kube(#[from] kube::Error),
    /// A file or process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Text that cannot be parsed.
    #[error("{what}: {why}")]
    Text {
        /// The text.
        what: String,
        /// The parser's error.
        why: String,
    },
    /// A wait that reached its limit.
    #[error("after {seconds} s still not: {what}; last seen: {last}")]
    Late {
        /// The condition.
        what: String,
        /// Seconds waited.
        seconds: u64,
        /// The last state.
        last: String,
    },
    /// A failed assertion.
    #[error("{0}")]
    Wrong(String),
}
