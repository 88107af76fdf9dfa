//! Functions of the driver's own library.

use std::ffi::CStr;

/// The driver's library in containers; also in `build.rs`, which makes it a dependency.
pub const LIBRARY: &CStr = c"/run/gputenancy/driver/libnvidia-ml.so.1";

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
