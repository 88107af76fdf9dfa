//! A library at the place of one of the driver's libraries: how it is linked, and how it calls the functions of the driver's own file.
//!
//! [`link::in_front_of`] is for build scripts. [`Function`] and [`call!`] are for the library itself.

use std::ffi::CStr;

mod function;
pub mod link;

pub use function::Function;

/// CUDA's own library in containers with a limit: the agent mounts it there, and the shim depends on it by this path.
pub const CUDA: &CStr = c"/run/gputenancy/driver/libcuda.so.1";
/// NVML's own library there, on which the view depends.
pub const NVML: &CStr = c"/run/gputenancy/driver/libnvidia-ml.so.1";
