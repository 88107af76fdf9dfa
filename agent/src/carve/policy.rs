//! What a failed order means for the next step.

use std::time::Duration;

use gputenancy_crds::GpuError;
use gputenancy_nvml::code;

use crate::gpu::OrderError;

/// How often something that may pass by itself is tried again.
const SLOW: Duration = Duration::from_secs(30);

/// What to do after an order failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing was touched and nothing is wrong: look again, and wait if need be.
    Wait,
    /// It may pass by itself: fail now, try again later.
    Retry(Duration),
    /// Only another spec (or a repaired board) helps.
    NewSpec,
}

/// The policy for an error.
pub fn policy(error: &OrderError) -> Policy {
    match error {
        OrderError::InUse { .. } | OrderError::Gone(_) => Policy::Wait,
        // Whatever holds the GPU against a reset may let go of it.
        OrderError::Reset { .. } | OrderError::NoEffect { .. } => Policy::Retry(SLOW),
        OrderError::Nvml(failure) => for_code(failure.code),
    }
}

/// The policy for an error that an earlier run of the agent wrote down.
pub fn for_record(error: &GpuError) -> Policy {
    if is_reset(error) { Policy::Retry(SLOW) } else { for_code(u32::try_from(error.code).unwrap_or(code::UNKNOWN)) }
}

fn for_code(code: u32) -> Policy {
    match code {
        // A client came between the look and the call; or, for a compute instance, one that NVML does not list.
        code::IN_USE | code::NOT_READY
        // The library is opened anew; what becomes of the board then shows at the next look.
        | code::UNINITIALIZED | code::DRIVER_NOT_LOADED | code::LIB_RM_VERSION_MISMATCH => Policy::Wait,
        code::TIMEOUT
        | code::GPU_IS_LOST
        | code::RESET_REQUIRED
        | code::OPERATING_SYSTEM
        | code::MEMORY
        | code::UNKNOWN => Policy::Retry(SLOW),
        // The same call with the same arguments would be refused again.
        _ => Policy::NewSpec,
    }
}

const RESET_CALL: &str = "nvidia-smi --gpu-reset";

/// Was it the reset that failed?
pub fn is_reset(error: &GpuError) -> bool {
    error.call == RESET_CALL
}

/// The error as the status records it.
pub fn record(error: &OrderError, doing: &str, generation: i64) -> GpuError {
    let (call, code, words) = match error {
        OrderError::Nvml(failure) => {
            (failure.call, i32::try_from(failure.code).unwrap_or(i32::MAX), failure.message.clone())
        }
        OrderError::Reset { status, message } => (RESET_CALL, *status, message.clone()),
        OrderError::NoEffect { call } => (*call, i32::try_from(code::UNKNOWN).unwrap_or(i32::MAX), error.to_string()),
        OrderError::InUse { .. } | OrderError::Gone(_) => ("", 0, error.to_string()),
    };
    GpuError { call: call.to_owned(), code, message: format!("{doing}: {words}"), generation }
}

#[cfg(test)]
mod tests {
    use gputenancy_nvml::NvmlFailure;

    use super::*;

    fn failure(code: u32) -> OrderError {
        NvmlFailure { call: "nvmlDeviceCreateGpuInstanceWithPlacement", code, message: "Insufficient Resources".into() }
            .into()
    }

    #[test]
    fn a_refused_placement_waits_for_another_spec() {
        assert_eq!(policy(&failure(code::INSUFFICIENT_RESOURCES)), Policy::NewSpec);
        let record = record(&failure(code::INSUFFICIENT_RESOURCES), "creating 3g.40gb at 4", 7);
        assert_eq!(
            (record.call.as_str(), record.code, record.generation),
            ("nvmlDeviceCreateGpuInstanceWithPlacement", 23, 7)
        );
        assert_eq!(record.message, "creating 3g.40gb at 4: Insufficient Resources");
        assert_eq!(for_record(&record), Policy::NewSpec);
    }

    #[test]
    fn a_client_that_came_in_between_is_no_failure() {
        assert_eq!(policy(&OrderError::InUse { pids: vec![7] }), Policy::Wait);
        assert_eq!(policy(&failure(code::IN_USE)), Policy::Wait);
    }

    #[test]
    fn a_refused_reset_is_tried_again() {
        let refused = OrderError::Reset { status: 19, message: "In use by another client".into() };
        assert!(matches!(policy(&refused), Policy::Retry(_)));
        assert!(matches!(for_record(&record(&refused, "resetting", 1)), Policy::Retry(_)));
    }
}
