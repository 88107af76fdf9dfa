//! Why NVML cannot be opened.

use std::path::PathBuf;

use gputenancy_agent_core::nvml::NvmlFailure;

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

#[cfg(test)]
mod tests {
    use gputenancy_agent_core::nvml::code;
    use nvml_wrapper_sys::bindings as nvml;

    #[test]
    fn codes_are_those_of_nvml() {
        let pairs = [
            (code::SUCCESS, nvml::nvmlReturn_enum_NVML_SUCCESS),
            (code::UNINITIALIZED, nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED),
            (code::INVALID_ARGUMENT, nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT),
            (code::NOT_SUPPORTED, nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
            (code::NOT_FOUND, nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND),
            (code::INSUFFICIENT_SIZE, nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE),
            (code::DRIVER_NOT_LOADED, nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED),
            (code::TIMEOUT, nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT),
            (code::FUNCTION_NOT_FOUND, nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND),
            (code::GPU_IS_LOST, nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST),
            (code::RESET_REQUIRED, nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED),
            (code::OPERATING_SYSTEM, nvml::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM),
            (code::LIB_RM_VERSION_MISMATCH, nvml::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH),
            (code::IN_USE, nvml::nvmlReturn_enum_NVML_ERROR_IN_USE),
            (code::MEMORY, nvml::nvmlReturn_enum_NVML_ERROR_MEMORY),
            (code::INSUFFICIENT_RESOURCES, nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES),
            (code::NOT_READY, nvml::nvmlReturn_enum_NVML_ERROR_NOT_READY),
            (code::UNKNOWN, nvml::nvmlReturn_enum_NVML_ERROR_UNKNOWN),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours, theirs);
        }
    }
}
