//! What can go wrong between a test and the lab.

/// Result of a step.
pub type Result<T> = std::result::Result<T, Error>;

/// A step that failed, as text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lab could not do what it was asked.
    #[error("lab: {0}")]
    Lab(#[from] lab::Error),
    /// The API server answered no.
    #[error("kubernetes: {0}")]
    Kube(#[from] kube::Error),
    /// A file or process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Text that should be JSON or YAML is not.
    #[error("{what}: {why}")]
    Text {
        /// What was being read.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// What was waited for did not come.
    #[error("after {seconds} s still not: {what}; last seen: {last}")]
    Late {
        /// The condition.
        what: String,
        /// Seconds waited.
        seconds: u64,
        /// The last state.
        last: String,
    },
    /// Something is not as it should be.
    #[error("{0}")]
    Wrong(String),
}
