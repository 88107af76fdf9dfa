//! What a backend reports about the installation of a virtual cluster. Pure.

use gputenancy_crds::reasons::{self, Reason};

/// What another controller has made of its object, or why it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// vCluster is installed as wanted.
    pub done: bool,
    /// Reason of `ChartRendered`.
    pub reason: Reason,
    /// Its message.
    pub message: String,
    /// The installed version, where it is known.
    pub version: Option<String>,
}

impl Report {
    /// Installed as wanted.
    pub fn done(reason: Reason, message: impl Into<String>) -> Self {
        Self { done: true, reason, message: message.into(), version: None }
    }

    /// Not yet, and nothing has failed.
    pub fn waits(message: impl Into<String>) -> Self {
        Self { done: false, reason: reasons::APPLYING, message: message.into(), version: None }
    }

    /// Not without a change.
    pub fn failed(reason: Reason, message: impl Into<String>) -> Self {
        Self { done: false, reason, message: message.into(), version: None }
    }

    /// With the installed version.
    #[must_use]
    pub fn version(self, version: impl Into<String>) -> Self {
        Self { version: Some(version.into()), ..self }
    }
}
