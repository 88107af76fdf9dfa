//! Deadlines and retries of NVML calls.

use std::time::Duration;

use crate::nvml::code;
use gputenancy_crds::GpuError;

use super::operation::{OperationError, RESET_CALL};

/// Delay before a retry of a failure that may be transient.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// How long an answer of the NVML thread is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For a scan.
    pub scan: Duration,
    /// For an operation.
    pub operation: Duration,
}

impl Default for Deadlines {
    /// A scan of 16 partitioned GPUs takes well under a second. On hardware the destruction of a GPU instance takes about a second, a
    /// change of mode several.
    fn default() -> Self {
        Self { scan: Duration::from_secs(10), operation: Duration::from_mins(1) }
    }
}

/// What follows a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Nothing was changed and nothing is wrong: retry after the next scan.
    NextScan,
    /// The failure may be transient: report it, and retry after this time.
    After(Duration),
    /// The same call would be refused again: report it, and wait for another spec.
    NewSpec,
}

/// The retry after an error.
pub fn retry(error: &OperationError) -> Retry {
    match error {
        OperationError::InUse { .. } | OperationError::Gone(_) => Retry::NextScan,
        OperationError::Reset { .. } | OperationError::NoEffect { .. } => Retry::After(RETRY_AFTER),
        OperationError::Nvml(failure) => retry_code(failure.code),
    }
}

/// The retry after an error that an earlier run of the agent recorded.
pub fn retry_recorded(error: &GpuError) -> Retry {
    if is_reset(error) {
        return Retry::After(RETRY_AFTER);
    }
    retry_code(u32::try_from(error.code).unwrap_or(code::UNKNOWN))
}

fn retry_code(code: u32) -> Retry {
    match code {
        // a client that came between scan and call, or one that NVML does not list
        code::IN_USE | code::NOT_READY => Retry::NextScan,
        code if reopens_library(code) => Retry::NextScan,
        code::TIMEOUT
        | code::GPU_IS_LOST
        | code::RESET_REQUIRED
        | code::OPERATING_SYSTEM
        | code::MEMORY
        | code::UNKNOWN => Retry::After(RETRY_AFTER),
        _ => Retry::NewSpec,
    }
}

/// The library must be opened again after this code.
pub fn reopens_library(code: u32) -> bool {
    matches!(code, code::UNINITIALIZED | code::DRIVER_NOT_LOADED | code::LIB_RM_VERSION_MISMATCH)
}

/// The driver is not loaded. Loading it resets all GPUs, so faults of before do not count any more.
pub fn is_driver_unloaded(code: u32) -> bool {
    code == code::DRIVER_NOT_LOADED
}

/// The recorded error is a failed reset.
pub fn is_reset(error: &GpuError) -> bool {
    error.call == RESET_CALL
}

#[cfg(test)]
mod tests {
    use crate::nvml::NvmlFailure;

    use super::*;

    fn failure(code: u32) -> OperationError {
        NvmlFailure { call: "nvmlDeviceCreateGpuInstanceWithPlacement", code, message: "Insufficient Resources".into() }
            .into()
    }

    #[test]
    fn retry_of_a_refused_placement_waits_for_another_spec() {
        assert_eq!(retry(&failure(code::INSUFFICIENT_RESOURCES)), Retry::NewSpec);
        let recorded = failure(code::INSUFFICIENT_RESOURCES).to_status("creating 3g.40gb at 4", 7);
        assert_eq!(
            (recorded.call.as_str(), recorded.code, recorded.generation),
            ("nvmlDeviceCreateGpuInstanceWithPlacement", 23, 7)
        );
        assert_eq!(recorded.message, "creating 3g.40gb at 4: Insufficient Resources");
        assert_eq!(retry_recorded(&recorded), Retry::NewSpec);
    }

    #[test]
    fn retry_of_an_instance_in_use_follows_the_next_scan() {
        assert_eq!(retry(&OperationError::InUse { pids: vec![7] }), Retry::NextScan);
        assert_eq!(retry(&failure(code::IN_USE)), Retry::NextScan);
    }

    #[test]
    fn retry_of_a_driver_that_was_reloaded_follows_the_next_scan() {
        for code in [code::UNINITIALIZED, code::DRIVER_NOT_LOADED, code::LIB_RM_VERSION_MISMATCH] {
            assert_eq!(retry(&failure(code)), Retry::NextScan);
        }
    }

    #[test]
    fn retry_of_transient_failures_and_refused_resets_is_delayed() {
        assert!(matches!(retry(&failure(code::UNKNOWN)), Retry::After(_)));
        let refused = OperationError::Reset { status: 19, message: "In use by another client".into() };
        assert!(matches!(retry(&refused), Retry::After(_)));
        assert!(matches!(retry_recorded(&refused.to_status("resetting", 1)), Retry::After(_)));
    }
}
