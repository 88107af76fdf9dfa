//! Why NVML does not answer.

use std::time::Duration;

use gputenancy_nvml::{NvmlFailure, OpenError};

use super::platform::UnsupportedPlatform;

/// Why NVML does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library does not exist or does not load.
    #[error("{0}")]
    NoLibrary(String),
    /// NVML is not called on this machine.
    #[error(transparent)]
    Platform(#[from] UnsupportedPlatform),
    /// NVML refused.
    #[error(transparent)]
    Call(#[from] NvmlFailure),
    /// A call has not returned.
    #[error("{call} has not returned for {} s", .elapsed.as_secs())]
    Hangs {
        /// The call.
        call: &'static str,
        /// Its duration so far.
        elapsed: Duration,
    },
    /// The thread, or that for open files, ended, which is a defect of the agent.
    #[error("the NVML thread ended")]
    Ended,
}

impl From<OpenError> for NvmlError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Init(failure) => Self::Call(failure),
            OpenError::NotFound(_) | OpenError::Load { .. } => Self::NoLibrary(error.to_string()),
        }
    }
}
