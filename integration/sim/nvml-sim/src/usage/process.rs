//! Processes that use a device.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t};
use silicon::Code;
use silicon::clients::Client;

use crate::call::{
    context::Context,
    handle::Device,
    nvml,
    out::{put, put_list},
};

/// Instance id of a process on a whole GPU.
const NONE: u32 = u32::MAX;

impl Context {
    /// The processes on a device that this process may see.
    fn processes(&self, device: Device<'_>) -> Result<Vec<Client>, Code> {
        let seen = |client: &Client| match (device, client.instance) {
            (Device::Mig(device), _) => device.has(client),
            (Device::Gpu(gpu), None) => client.gpu == gpu.index,
            (Device::Gpu(gpu), Some((gi, ci))) => {
                let device = self.machine.mig_device(gpu.index, gi, ci);
                client.gpu == gpu.index && device.is_ok_and(|d| self.view.mig(&d))
            }
        };
        Ok(self.clients()?.into_iter().filter(seen).collect())
    }

    fn compute(&self, handle: nvmlDevice_t) -> Result<Vec<nvmlProcessInfo_t>, Code> {
        let info = |c: Client| nvmlProcessInfo_t {
            pid: c.pid,
            usedGpuMemory: c.memory,
            gpuInstanceId: c.instance.map_or(NONE, |(gi, _)| gi),
            computeInstanceId: c.instance.map_or(NONE, |(_, ci)| ci),
        };
        Ok(self.processes(self.device(handle)?)?.into_iter().map(info).collect())
    }
}

nvml! {
    fn nvmlDeviceGetComputeRunningProcesses_v3[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        put_list(ctx.compute(device)?, infos, count)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t,
    ) {
        put_list(ctx.compute(device)?, infos, count)
    }

    fn nvmlDeviceGetComputeRunningProcesses[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t,
    ) {
        let old = |p: nvmlProcessInfo_t| nvmlProcessInfo_v1_t { pid: p.pid, usedGpuMemory: p.usedGpuMemory };
        put_list(ctx.compute(device)?.into_iter().map(old).collect(), infos, count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_t,
    ) {
        ctx.device(device)?;
        put(count, 0)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_t,
    ) {
        ctx.device(device)?;
        put(count, 0)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_v1_t,
    ) {
        ctx.device(device)?;
        put(count, 0)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_t,
    ) {
        ctx.device(device)?;
        put(count, 0)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_t,
    ) {
        ctx.device(device)?;
        put(count, 0)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses[device](
        ctx, device: nvmlDevice_t, count: *mut c_uint, _infos: *mut nvmlProcessInfo_v1_t,
    ) {
        ctx.device(device)?;
        put(count, 0)
    }
}
