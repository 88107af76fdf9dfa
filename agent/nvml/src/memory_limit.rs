//! Memory limits of cgroups in the driver, which it has from version 615 on. The bindings are older than these two functions, so their structs
//! are declared here, after `nvml.h` of CUDA 13.5: they have no version field, the version is in the names of the functions.

use std::{
    ffi::{CString, c_char, c_ulonglong},
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr::null,
};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::{Gpu, NvmlFailure, code};

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: as a hard limit, none. With soft 0 it clears the limits of a cgroup.
pub const NO_LIMIT: u64 = u64::MAX;

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
struct SetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
struct GetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

/// The limits of a cgroup on one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Guaranteed.
    pub soft: u64,
    /// At most; [`NO_LIMIT`]: no limit.
    pub hard: u64,
    /// In use by the processes of the cgroup.
    pub used: u64,
}

impl MemoryLimit {
    /// A cgroup without limits.
    pub const NONE: Self = Self { soft: 0, hard: NO_LIMIT, used: 0 };
}

impl Gpu<'_> {
    /// The limits of a cgroup on this GPU, by its full path in sysfs; [`MemoryLimit::NONE`] if it has none. `None`: library, driver or kernel
    /// have no such limits.
    pub fn memory_limit(&self, cgroup: &Path) -> Result<Option<MemoryLimit>, NvmlFailure> {
        let name = name(cgroup)?;
        let mut limits = GetLimits { name_space: name.as_ptr(), soft: 0, hard: NO_LIMIT, used: 0 };
        let call = self.limits_call("nvmlDeviceGetMemoryLimits_v1", &mut limits);
        limits.name_space = null();
        let found = NvmlFailure::none_for(&[code::NOT_FOUND], call);
        Ok(NvmlFailure::optional(found)?.map(|found| match found {
            Some(()) => MemoryLimit { soft: limits.soft, hard: limits.hard, used: limits.used },
            None => MemoryLimit::NONE,
        }))
    }

    /// Sets the limits of a cgroup on this GPU, in bytes; needs root. `None`: library, driver or kernel have no such limits.
    pub fn set_memory_limit(&self, cgroup: &Path, soft: u64, hard: u64) -> Result<Option<()>, NvmlFailure> {
        let name = name(cgroup)?;
        let mut limits = SetLimits { name_space: name.as_ptr(), soft, hard };
        NvmlFailure::optional(self.limits_call("nvmlDeviceSetMemoryLimits_v1", &mut limits))
    }

    /// Calls one of the two functions; `limits` is the struct that its name stands for.
    fn limits_call<T>(&self, function: &'static str, limits: &mut T) -> Result<(), NvmlFailure> {
        type Function<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t;
        self.nvml.observed(function, || {
            // SAFETY: the callers give the struct of the function's signature in nvml.h, and the symbol is used no longer than this call.
            let found = unsafe { self.nvml.lib.__library.get::<Function<T>>(function.as_bytes()) };
            match found {
                // SAFETY: the handle is of this library since its last initialisation, the struct is live and exclusive, and the string
                // that it points to is of the caller, ends with NUL and outlives the call.
                Ok(found) => unsafe { found(self.handle, limits) },
                Err(_) => code::FUNCTION_NOT_FOUND,
            }
        })
    }
}

/// A path for C; one with a NUL names no cgroup.
fn name(cgroup: &Path) -> Result<CString, NvmlFailure> {
    CString::new(cgroup.as_os_str().as_bytes()).map_err(|_| NvmlFailure {
        call: "nvmlDeviceSetMemoryLimits_v1",
        code: code::INVALID_ARGUMENT,
        message: "the path of the cgroup has a NUL".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structs_have_the_layout_of_the_header() {
        assert_eq!((size_of::<SetLimits>(), size_of::<GetLimits>()), (24, 32));
        assert_eq!((offset_of!(SetLimits, soft), offset_of!(SetLimits, hard)), (8, 16));
        assert_eq!(
            [offset_of!(GetLimits, soft), offset_of!(GetLimits, hard), offset_of!(GetLimits, used)],
            [8, 16, 24]
        );
    }
}
