//! Functions of the driver's own library.

pub use gputenancy_interpose::CUDA as LIBRARY;

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
