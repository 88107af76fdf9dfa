//! Framebuffer memory: total, and what clients use of it.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};
use silicon::Code;
use silicon::attach::RESERVED_MIB;
use silicon::machine::Gpu;

use crate::call::nvml;
use crate::context::Context;
use crate::handle::Device;
use crate::out::{get, put};
use crate::profile::version;

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
                total: self.machine.board.memory_mib << 20,
                reserved: RESERVED_MIB << 20,
                used: used(&|c| c.gpu == gpu.index) + leaked(gpu, None),
            },
            Device::Mig(device) => Memory {
                total: self.machine.profile_of(device.gi)?.memory_mib << 20,
                reserved: 0,
                used: used(&|c| c.gpu == device.gpu.index && c.instance.is_some_and(|(gi, _)| gi == device.gi.id))
                    + leaked(device.gpu, Some(device.gi.id)),
            },
        })
    }
}

nvml! {
    fn nvmlDeviceGetMemoryInfo[device](ctx, device: nvmlDevice_t, memory: *mut nvmlMemory_t) {
        let Memory { total, reserved, used } = ctx.memory(ctx.device(device)?)?;
        let used = (reserved + used).min(total);
        put(memory, nvmlMemory_t { total, free: total - used, used })
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
