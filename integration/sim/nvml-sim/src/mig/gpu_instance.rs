//! GPU instances: creating, listing, destroying.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t};
use silicon::Code;
use silicon::board::Placement;
use silicon::history::Event;
use silicon::latency::Slow;

use crate::call::{
    context::Context,
    handle, nvml,
    out::{get, put, put_all},
};

impl Context {
    fn create_gi(
        &self,
        device: nvmlDevice_t,
        profile: u32,
        at: Option<Placement>,
        to: *mut nvmlGpuInstance_t,
    ) -> Result<(), Code> {
        let gpu = self.mig_gpu(device)?.index;
        if to.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let made = self.change(
            Some(Slow::CreateGpuInstance),
            |machine, _| machine.create_gi(gpu, profile, at),
            |made| Event::Create { gpu, gi: made.id, ci: None, profile },
        )?;
        put(to, handle::of_gi(gpu, &made))
    }
}

nvml! {
    fn nvmlDeviceCreateGpuInstance[device](
        ctx, device: nvmlDevice_t, profile: c_uint, gi: *mut nvmlGpuInstance_t,
    ) {
        ctx.create_gi(device, profile, None, gi)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement[device](
        ctx, device: nvmlDevice_t, profile: c_uint, placement: *const nvmlGpuInstancePlacement_t,
        gi: *mut nvmlGpuInstance_t,
    ) {
        let at = get(placement)?;
        ctx.create_gi(device, profile, Some(Placement { start: at.start, size: at.size }), gi)
    }

    fn nvmlGpuInstanceDestroy[gi](ctx, gi: nvmlGpuInstance_t) {
        let (gpu, gi) = ctx.gi(gi)?;
        let (gpu, id) = (gpu.index, gi.id);
        ctx.change(
            Some(Slow::DestroyGpuInstance),
            |machine, clients| machine.destroy_gi(gpu, id, clients),
            |()| Event::Destroy { gpu, gi: id, ci: None },
        )
    }

    fn nvmlDeviceGetGpuInstances[device](
        ctx, device: nvmlDevice_t, profile: c_uint, to: *mut nvmlGpuInstance_t, count: *mut c_uint,
    ) {
        let gpu = ctx.mig_gpu(device)?;
        if !ctx.view.configure() {
            return Err(Code::NO_PERMISSION);
        }
        gpu.board.profile(profile).ok_or(Code::INVALID_ARGUMENT)?;
        let of_profile = gpu.instances.iter().filter(|gi| gi.profile == profile);
        let handles: Vec<_> = of_profile.map(|gi| handle::of_gi(gpu.index, gi)).collect();
        put(count, u32::try_from(handles.len()).unwrap_or(0))?;
        put_all(handles, to)
    }

    fn nvmlDeviceGetGpuInstanceById[device](
        ctx, device: nvmlDevice_t, id: c_uint, gi: *mut nvmlGpuInstance_t,
    ) {
        let gpu = ctx.mig_gpu(device)?;
        put(gi, handle::of_gi(gpu.index, gpu.instance(id)?))
    }

    fn nvmlGpuInstanceGetInfo[gi](ctx, gi: nvmlGpuInstance_t, info: *mut nvmlGpuInstanceInfo_t) {
        let (gpu, gi) = ctx.gi(gi)?;
        let Placement { start, size } = gi.placement;
        put(info, nvmlGpuInstanceInfo_t {
            device: handle::of_gpu(gpu),
            id: gi.id,
            profileId: gi.profile,
            placement: nvmlGpuInstancePlacement_t { start, size },
        })
    }

    fn nvmlDeviceSetPersistenceMode[device](ctx, device: nvmlDevice_t, mode: c_uint) {
        let (gpu, on) = (ctx.gpu(device)?.index, mode != 0);
        if !ctx.view.configure() {
            return Err(Code::NO_PERMISSION);
        }
        ctx.quietly(|machine| {
            machine.gpu_mut(gpu)?.persistence = on;
            Ok(())
        })
    }
}
