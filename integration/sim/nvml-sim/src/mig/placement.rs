//! Where instances may be placed, and how many more fit.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstancePlacement_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t,
};
use silicon::{Code, compute_profile};

use crate::call::{
    context::Context,
    nvml,
    out::{put, put_all, put_list},
};

impl Context {
    fn gi_placements(&self, device: nvmlDevice_t, profile: u32) -> Result<Vec<nvmlGpuInstancePlacement_t>, Code> {
        let board = &self.gpu(device)?.board;
        if !board.has_mig() {
            return Err(Code::NOT_SUPPORTED);
        }
        let profile = board.profile(profile).ok_or(Code::INVALID_ARGUMENT)?;
        let place = |&start| nvmlGpuInstancePlacement_t { start, size: profile.size };
        Ok(profile.starts.iter().map(place).collect())
    }
}

/// Without a buffer only the number is returned.
fn put_placements<T>(items: Vec<T>, to: *mut T, count: *mut c_uint) -> Result<(), Code> {
    if to.is_null() {
        return put(count, u32::try_from(items.len()).unwrap_or(0));
    }
    put_list(items, to, count)
}

nvml! {
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2[device](
        ctx, device: nvmlDevice_t, profile: c_uint, to: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint,
    ) {
        put_placements(ctx.gi_placements(device, profile)?, to, count)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements[device](
        ctx, device: nvmlDevice_t, profile: c_uint, to: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint,
    ) {
        // the first version has no size of the buffer
        let items = ctx.gi_placements(device, profile)?;
        put(count, u32::try_from(items.len()).unwrap_or(0))?;
        if to.is_null() { Ok(()) } else { put_all(items, to) }
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity[device](
        ctx, device: nvmlDevice_t, profile: c_uint, count: *mut c_uint,
    ) {
        let gpu = ctx.mig_gpu(device)?;
        put(count, ctx.machine.remaining(gpu.index, profile)?)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements[gi](
        ctx, gi: nvmlGpuInstance_t, profile: c_uint, to: *mut nvmlComputeInstancePlacement_t, count: *mut c_uint,
    ) {
        let (gpu, gi) = ctx.gi(gi)?;
        let of = gpu.profile_of(gi)?;
        let profile = compute_profile::profile(&gpu.board, of, profile).ok_or(Code::INVALID_ARGUMENT)?;
        let places = compute_profile::placements(of, &profile).into_iter();
        let items = places.map(|p| nvmlComputeInstancePlacement_t { start: p.start, size: p.size }).collect();
        put_placements(items, to, count)
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity[gi](
        ctx, gi: nvmlGpuInstance_t, profile: c_uint, count: *mut c_uint,
    ) {
        let (gpu, gi) = ctx.gi(gi)?;
        put(count, ctx.machine.remaining_ci(gpu.index, gi.id, profile)?)
    }
}
