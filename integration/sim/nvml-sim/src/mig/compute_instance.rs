//! Compute instances: creating, listing, destroying.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlDevice_t, nvmlGpuInstance_t,
};
use silicon::board::Placement;
use silicon::history::Event;
use silicon::latency::Slow;
use silicon::{Code, compute_profile};

use crate::call::{
    context::Context,
    handle, nvml,
    out::{get, put, put_all},
};

impl Context {
    fn create_ci(
        &self,
        gi: nvmlGpuInstance_t,
        profile: u32,
        at: Option<Placement>,
        to: *mut nvmlComputeInstance_t,
    ) -> Result<(), Code> {
        let (gpu, gi) = self.gi(gi)?;
        let (gpu, gi) = (gpu.index, gi.id);
        if to.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let made = self.change(
            Some(Slow::CreateComputeInstance),
            |machine, _| machine.create_ci(gpu, gi, profile, at),
            |made| Event::Create { gpu, gi, ci: Some(made.id), profile },
        )?;
        put(to, handle::of_ci(gpu, gi, &made))
    }

    fn ci_info(&self, ci: nvmlComputeInstance_t) -> Result<nvmlComputeInstanceInfo_t, Code> {
        let device = self.ci(ci)?;
        let Placement { start, size } = device.ci.placement;
        Ok(nvmlComputeInstanceInfo_t {
            device: handle::of_mig(&device),
            gpuInstance: handle::of_gi(device.gpu.index, device.gi),
            id: device.ci.id,
            profileId: device.ci.profile,
            placement: nvmlComputeInstancePlacement_t { start, size },
        })
    }
}

nvml! {
    fn nvmlGpuInstanceCreateComputeInstance[gi](
        ctx, gi: nvmlGpuInstance_t, profile: c_uint, ci: *mut nvmlComputeInstance_t,
    ) {
        ctx.create_ci(gi, profile, None, ci)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement[gi](
        ctx, gi: nvmlGpuInstance_t, profile: c_uint, placement: *const nvmlComputeInstancePlacement_t,
        ci: *mut nvmlComputeInstance_t,
    ) {
        let at = get(placement)?;
        ctx.create_ci(gi, profile, Some(Placement { start: at.start, size: at.size }), ci)
    }

    fn nvmlComputeInstanceDestroy[ci](ctx, ci: nvmlComputeInstance_t) {
        let device = ctx.ci(ci)?;
        let (gpu, gi, id) = (device.gpu.index, device.gi.id, device.ci.id);
        ctx.change(
            Some(Slow::DestroyComputeInstance),
            |machine, clients| machine.destroy_ci(gpu, gi, id, clients),
            |()| Event::Destroy { gpu, gi, ci: Some(id) },
        )
    }

    fn nvmlGpuInstanceGetComputeInstances[gi](
        ctx, gi: nvmlGpuInstance_t, profile: c_uint, to: *mut nvmlComputeInstance_t, count: *mut c_uint,
    ) {
        let (gpu, gi) = ctx.gi(gi)?;
        let of = gpu.profile_of(gi)?;
        compute_profile::profile(&gpu.board, of, profile).ok_or(Code::NOT_SUPPORTED)?;
        let of_profile = gi.compute.iter().filter(|ci| ci.profile == profile);
        let handles: Vec<_> = of_profile.map(|ci| handle::of_ci(gpu.index, gi.id, ci)).collect();
        put(count, u32::try_from(handles.len()).unwrap_or(0))?;
        put_all(handles, to)
    }

    fn nvmlGpuInstanceGetComputeInstanceById[gi](
        ctx, gi: nvmlGpuInstance_t, id: c_uint, to: *mut nvmlComputeInstance_t,
    ) {
        let (gpu, gi) = ctx.gi(gi)?;
        let ci = gi.compute.iter().find(|ci| ci.id == id).ok_or(Code::NOT_FOUND)?;
        put(to, handle::of_ci(gpu.index, gi.id, ci))
    }

    fn nvmlComputeInstanceGetInfo_v2[ci](
        ctx, ci: nvmlComputeInstance_t, info: *mut nvmlComputeInstanceInfo_t,
    ) {
        put(info, ctx.ci_info(ci)?)
    }

    fn nvmlComputeInstanceGetInfo[ci](
        ctx, ci: nvmlComputeInstance_t, info: *mut FirstInfo,
    ) {
        let whole = ctx.ci_info(ci)?;
        put(info, FirstInfo {
            device: whole.device,
            gpu_instance: whole.gpuInstance,
            id: whole.id,
            profile: whole.profileId,
        })
    }
}

/// The first version of the struct, without a placement.
#[repr(C)]
pub struct FirstInfo {
    device: nvmlDevice_t,
    gpu_instance: nvmlGpuInstance_t,
    id: c_uint,
    profile: c_uint,
}
