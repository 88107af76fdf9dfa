//! Memory limits of cgroups, as drivers have them from version 615 on.

use std::ffi::{c_char, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use silicon::Code;
use silicon::memory_limits::used;

use crate::call::{
    context::Context,
    nvml,
    out::{get, put, text},
};

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

impl Context {
    /// The limits are of whole GPUs; a driver without them supports no handle.
    fn index(&self, device: nvmlDevice_t) -> Result<u32, Code> {
        if !self.machine.memory_limits.supported {
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(self.gpu(device)?.index)
    }
}

nvml! {
    fn nvmlDeviceSetMemoryLimits_v1[device](ctx, device: nvmlDevice_t, limits: *mut SetLimits) {
        let index = ctx.index(device)?;
        // SAFETY: takes no argument and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Code::NO_PERMISSION);
        }
        let SetLimits { name_space, soft, hard } = get(limits)?;
        let cgroup = text(name_space)?;
        ctx.quietly(|machine| machine.set_memory_limit(index, cgroup, soft, hard))
    }

    fn nvmlDeviceGetMemoryLimits_v1[device](ctx, device: nvmlDevice_t, limits: *mut GetLimits) {
        let index = ctx.index(device)?;
        let found = get(limits)?;
        let limit = ctx.machine.memory_limit(index, text(found.name_space)?)?;
        let used = used(limit, &ctx.clients()?);
        put(limits, GetLimits { soft: limit.soft, hard: limit.hard, used, ..found })
    }
}
