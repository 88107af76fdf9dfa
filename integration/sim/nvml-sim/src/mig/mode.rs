//! MIG mode, and the MIG devices of a GPU.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use silicon::Code;
use silicon::history::Event;
use silicon::latency::Slow;

use crate::call::{
    handle::{self, Device},
    nvml,
    out::put,
};

nvml! {
    fn nvmlDeviceGetMigMode[device](ctx, device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let gpu = ctx.gpu(device)?;
        if !ctx.machine.has_mig(gpu) {
            return Err(Code::NOT_SUPPORTED);
        }
        put(current, gpu.mig.into())?;
        put(pending, gpu.mig_pending.into())
    }

    fn nvmlDeviceSetMigMode[device](ctx, device: nvmlDevice_t, mode: c_uint, activation: *mut c_uint) {
        let gpu = ctx.gpu(device)?;
        let (index, on) = (gpu.index, match mode {
            0 => false,
            1 => true,
            _ => return Err(Code::INVALID_ARGUMENT),
        });
        let at_once = gpu.mig != on && !gpu.board.arch.mode_needs_reset();
        let code = |activated: &Result<(), Code>| activated.map_or_else(|code| code.0, |()| 0);
        let activated = ctx.change(
            at_once.then_some(Slow::SetMode),
            |machine, clients| machine.set_mig_mode(index, on, clients),
            |activated| Event::Mode { gpu: index, on, activation: code(activated) },
        )?;
        put(activation, code(&activated))
    }

    fn nvmlDeviceGetMaxMigDeviceCount[device](ctx, device: nvmlDevice_t, count: *mut c_uint) {
        let gpu = ctx.gpu(device)?;
        put(count, if gpu.mig { gpu.board.max_mig_devices } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex[device](
        ctx, device: nvmlDevice_t, index: c_uint, mig: *mut nvmlDevice_t,
    ) {
        let gpu = ctx.mig_gpu(device)?;
        if index >= gpu.board.max_mig_devices {
            return Err(Code::INVALID_ARGUMENT);
        }
        let devices = ctx.machine.mig_devices();
        let found = devices.iter().find(|d| d.gpu.index == gpu.index && d.ci.mig_index == index);
        let seen = found.filter(|d| ctx.view.mig(d)).ok_or(Code::NOT_FOUND)?;
        put(mig, handle::of_mig(seen))
    }

    fn nvmlDeviceIsMigDeviceHandle[device](ctx, device: nvmlDevice_t, answer: *mut c_uint) {
        put(answer, matches!(ctx.device(device)?, Device::Mig(_)).into())
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle[mig](ctx, mig: nvmlDevice_t, device: *mut nvmlDevice_t) {
        put(device, handle::of_gpu(ctx.mig_device(mig)?.gpu))
    }

    fn nvmlDeviceGetGpuInstanceId[device](ctx, device: nvmlDevice_t, id: *mut c_uint) {
        put(id, ctx.mig_device(device)?.gi.id)
    }

    fn nvmlDeviceGetComputeInstanceId[device](ctx, device: nvmlDevice_t, id: *mut c_uint) {
        put(id, ctx.mig_device(device)?.ci.id)
    }

    fn nvmlDeviceGetPersistenceMode[device](ctx, device: nvmlDevice_t, mode: *mut c_uint) {
        put(mode, ctx.gpu(device)?.persistence.into())
    }
}
