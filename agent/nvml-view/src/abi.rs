//! Types and codes of `nvml.h` that the view uses.

use std::ffi::{c_uint, c_ulonglong, c_void};

/// `nvmlReturn_t`.
pub type Code = c_uint;
/// `nvmlDevice_t`.
pub type Device = *mut c_void;
/// What the view does not read or write.
pub type Untyped = *mut c_void;

/// `NVML_SUCCESS`.
pub const SUCCESS: Code = 0;
/// `NVML_ERROR_INVALID_ARGUMENT`.
pub const INVALID_ARGUMENT: Code = 2;
/// `NVML_ERROR_NOT_FOUND`.
pub const NOT_FOUND: Code = 6;
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
pub const INSUFFICIENT_SIZE: Code = 7;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
pub const FUNCTION_NOT_FOUND: Code = 13;
/// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`.
pub const VERSION_MISMATCH: Code = 25;
/// `NVML_ERROR_UNKNOWN`.
pub const UNKNOWN: Code = 999;

/// Id of an instance where there is none.
pub const NO_INSTANCE: c_uint = c_uint::MAX;

/// `NVML_STRUCT_VERSION` of the first version of a struct.
pub const fn first_version<T>() -> c_uint {
    #[allow(clippy::cast_possible_truncation, reason = "as in nvml.h")]
    let size = size_of::<T>() as c_uint;
    size | 1 << 24
}

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memory {
    /// All.
    pub total: c_ulonglong,
    /// Not used.
    pub free: c_ulonglong,
    /// Used.
    pub used: c_ulonglong,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryV2 {
    /// Version of the struct.
    pub version: c_uint,
    /// All.
    pub total: c_ulonglong,
    /// For the driver.
    pub reserved: c_ulonglong,
    /// Not used.
    pub free: c_ulonglong,
    /// Used by programs.
    pub used: c_ulonglong,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessV1 {
    /// Process id.
    pub pid: c_uint,
    /// Bytes.
    pub used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, and `nvmlProcessInfo_t` of the third version.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessV2 {
    /// Process id.
    pub pid: c_uint,
    /// Bytes.
    pub used: c_ulonglong,
    /// GPU instance.
    pub gpu_instance: c_uint,
    /// Compute instance.
    pub compute_instance: c_uint,
}

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessDetail {
    /// Process id.
    pub pid: c_uint,
    /// Bytes.
    pub used: c_ulonglong,
    /// GPU instance.
    pub gpu_instance: c_uint,
    /// Compute instance.
    pub compute_instance: c_uint,
    /// Bytes that are protected by confidential computing.
    pub protected: c_ulonglong,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
pub struct ProcessDetailList {
    /// Version of the struct.
    pub version: c_uint,
    /// Which processes: see [`COMPUTE`].
    pub mode: c_uint,
    /// Length of the array, and then number of processes.
    pub count: c_uint,
    /// The processes.
    pub array: *mut ProcessDetail,
}

/// Mode of a [`ProcessDetailList`] of compute processes.
pub const COMPUTE: c_uint = 0;

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
pub struct ProcessesUtilization {
    /// Version of the struct.
    pub version: c_uint,
    /// Length of the array, and then number of samples.
    pub count: c_uint,
    /// Only samples after this time, in microseconds.
    pub since: c_ulonglong,
    /// The samples.
    pub array: *mut c_void,
}
