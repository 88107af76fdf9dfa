//! Functions of the driver's own library.

use std::ffi::CStr;

/// The driver's library in containers; also in `build.rs`, which makes it a dependency.
pub const LIBRARY: &CStr = c"/run/gputenancy/driver/libcuda.so.1";

/// Calls a function of the driver's library: `driver!(cuCtxGetDevice(&raw mut device => *mut Device))`.
macro_rules! driver {
    ($name:ident($($argument:expr => $ty:ty),* $(,)?)) => {
        ::gputenancy_interpose::call!(
            $crate::real::LIBRARY,
            $crate::abi::NOT_SUPPORTED,
            $name($($argument => $ty),*) -> $crate::abi::CuResult
        )
    };
}
pub(crate) use driver;
