//! Why a call failed.

use std::path::PathBuf;

/// NVML's return codes that this project uses.
pub mod code {
    /// Success.
    pub const SUCCESS: u32 = 0;
    /// `nvmlInit_v2` has not been called, or the driver was reloaded since.
    pub const UNINITIALIZED: u32 = 1;
    /// The driver does not know an argument.
    pub const INVALID_ARGUMENT: u32 = 2;
    /// Not supported by the device.
    pub const NOT_SUPPORTED: u32 = 3;
    /// Not found.
    pub const NOT_FOUND: u32 = 6;
    /// The buffer is too small.
    pub const INSUFFICIENT_SIZE: u32 = 7;
    /// The kernel module is not loaded.
    pub const DRIVER_NOT_LOADED: u32 = 9;
    /// Timeout.
    pub const TIMEOUT: u32 = 10;
    /// The library does not have this function.
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    /// The GPU fell off the bus.
    pub const GPU_IS_LOST: u32 = 15;
    /// The GPU must be reset first.
    pub const RESET_REQUIRED: u32 = 16;
    /// The operating system refused the call.
    pub const OPERATING_SYSTEM: u32 = 17;
    /// Library and kernel module are of different versions.
    pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
    /// A process or a compute instance uses it.
    pub const IN_USE: u32 = 19;
    /// The driver has no memory for this.
    pub const MEMORY: u32 = 20;
    /// The placement is occupied.
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
    /// The device is not ready yet.
    pub const NOT_READY: u32 = 27;
    /// Unknown error.
    pub const UNKNOWN: u32 = 999;
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
