//! Framebuffer memory: total, and what clients use of it.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};
use silicon::Code;
use silicon::attach::RESERVED_MIB;
use silicon::machine::Gpu;

use crate::{
    call::{
        context::Context,
        handle::Device,
        nvml,
        out::{get, put},
    },
    mig::profile::version,
};

/// Bytes of a device.
struct Memory {
    total: u64,
    reserved: u64,
    used: u64,
}

impl Context {
    fn memory(&self, device: Device<'_>) -> Result<Memory, Code> {
        let clients = self.clients()?;
        let used = |mine: &dyn Fn(&silicon::clients::Client) -> bool| {
            clients.iter().filter(|c| mine(c)).map(|c| c.memory).sum::<u64>()
        };
        let leaked = |gpu: &Gpu, instance: Option<u32>| {
            let mine = gpu.leaks.iter().filter(|leak| instance.is_none() || leak.instance == instance);
            mine.map(|leak| leak.bytes).sum::<u64>()
        };
        Ok(match device {
            Device::Gpu(gpu) => Memory {
                total: gpu.board.memory_mib << 20,
                reserved: RESERVED_MIB << 20,
                used: used(&|c| c.gpu == gpu.index) + leaked(gpu, None),
            },
            Device::Mig(device) => Memory {
                total: device.gpu.profile_of(device.gi)?.memory_mib << 20,
                reserved: 0,
                used: used(&|c| c.gpu == device.gpu.index && c.instance.is_some_and(|(gi, _)| gi == device.gi.id))
                    + leaked(device.gpu, Some(device.gi.id)),
            },
        })
    }
}

type GetMemory = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t;

/// The second version, as the dynamic linker finds it from this library: NVIDIA's library calls its exported functions in this way, so a library in
/// front of it may answer.
fn second_version() -> GetMemory {
    // SAFETY: a NUL-terminated name, and the scope of this library.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"nvmlDeviceGetMemoryInfo_v2".as_ptr()) };
    if found.is_null() {
        return nvmlDeviceGetMemoryInfo_v2;
    }
    // SAFETY: a function with this name has NVML's signature.
    unsafe { std::mem::transmute::<*mut libc::c_void, GetMemory>(found) }
}

nvml! {
    fn nvmlDeviceGetMemoryInfo[device](_ctx, device: nvmlDevice_t, memory: *mut nvmlMemory_t) {
        let version = u32::try_from(size_of::<nvmlMemory_v2_t>()).unwrap_or(0) | 2 << 24;
        let mut found = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: NVML's signature, with a pointer to a struct of this version.
        let code = unsafe { second_version()(device, &raw mut found) };
        if code != 0 {
            return Err(Code(code));
        }
        put(memory, nvmlMemory_t { total: found.total, free: found.free, used: found.total - found.free })
    }

    fn nvmlDeviceGetMemoryInfo_v2[device](ctx, device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) {
        let given = get(memory)?.version;
        version(given, size_of::<nvmlMemory_v2_t>(), 2)?;
        let Memory { total, reserved, used } = ctx.memory(ctx.device(device)?)?;
        let free = total.saturating_sub(reserved + used);
        put(memory, nvmlMemory_v2_t { version: given, total, reserved, free, used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo[device](ctx, device: nvmlDevice_t, memory: *mut nvmlBAR1Memory_t) {
        let total = (ctx.memory(ctx.device(device)?)?.total).next_power_of_two();
        put(memory, nvmlBAR1Memory_t { bar1Total: total, bar1Free: total, bar1Used: 0 })
    }
}
