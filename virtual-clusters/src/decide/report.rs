//! What is reported about a vCluster that something else installs. Pure.

use gputenancy_crds::reasons::Reason;

/// How far the adoption is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// It is adopted.
    pub done: bool,
    /// Reason of `ChartRendered`.
    pub reason: Reason,
    /// Its message.
    pub message: String,
    /// The version that runs, where it is known.
    pub version: Option<String>,
}

impl Report {
    /// Adopted.
    pub fn done(reason: Reason, message: impl Into<String>) -> Self {
        Self { done: true, reason, message: message.into(), version: None }
    }

    /// Not adopted.
    pub fn failed(reason: Reason, message: impl Into<String>) -> Self {
        Self { done: false, reason, message: message.into(), version: None }
    }

    /// With the version that runs.
    #[must_use]
    pub fn version(self, version: impl Into<String>) -> Self {
        Self { version: Some(version.into()), ..self }
    }
}
