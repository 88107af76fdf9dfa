//! Why a call failed.

use std::path::PathBuf;

/// NVML's return codes that this project uses.
pub mod code {
    pub use nvml_wrapper_sys::bindings::{
        nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
        nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND as FUNCTION_NOT_FOUND,
        nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST, nvmlReturn_enum_NVML_ERROR_IN_USE as IN_USE,
        nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES,
        nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
        nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
        nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH as LIB_RM_VERSION_MISMATCH,
        nvmlReturn_enum_NVML_ERROR_MEMORY as MEMORY, nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
        nvmlReturn_enum_NVML_ERROR_NOT_READY as NOT_READY, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
        nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM as OPERATING_SYSTEM,
        nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED as RESET_REQUIRED, nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
        nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED, nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
        nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
    };
}

/// A call that NVML refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message} ({code})")]
pub struct NvmlFailure {
    /// Name of the C function.
    pub call: &'static str,
    /// NVML's return code, see [`code`].
    pub code: u32,
    /// NVML's message for the code.
    pub message: String,
}

impl NvmlFailure {
    /// `None` if device or library do not support the call.
    pub fn optional<T>(result: Result<T, Self>) -> Result<Option<T>, Self> {
        Self::none_for(&[code::NOT_SUPPORTED, code::FUNCTION_NOT_FOUND], result)
    }

    /// `None` if the call failed with one of these codes.
    pub(crate) fn none_for<T>(codes: &[u32], result: Result<T, Self>) -> Result<Option<T>, Self> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failure) if codes.contains(&failure.code) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

/// Why NVML cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No library under the driver root.
    #[error("no libnvidia-ml.so.1 under {0}: is the driver installed there?")]
    NotFound(PathBuf),
    /// The library does not load.
    #[error("{path} does not load: {reason}")]
    Load {
        /// The library.
        path: PathBuf,
        /// The dynamic linker's message.
        reason: String,
    },
    /// The library fails to initialise.
    #[error(transparent)]
    Init(#[from] NvmlFailure),
}
