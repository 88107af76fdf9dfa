//! Functions of the driver's own library.

pub use gputenancy_interpose::NVML as LIBRARY;

/// Calls a function of the driver's library: `driver!(nvmlDeviceGetGpuInstanceId(device => Device, &raw mut id => *mut c_uint))`.
macro_rules! driver {
    ($name:ident($($argument:expr => $ty:ty),* $(,)?)) => {
        ::gputenancy_interpose::call!(
            $crate::real::LIBRARY,
            $crate::abi::FUNCTION_NOT_FOUND,
            $name($($argument => $ty),*) -> $crate::abi::Code
        )
    };
}
pub(crate) use driver;
