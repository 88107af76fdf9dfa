//! GPU instances: listing, creating by placement, destroying.

use std::{mem::zeroed, ptr::null_mut};

use nvml_wrapper_sys::bindings::{nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t};

use crate::{
    Gpu, InstanceProfile, Nvml, NvmlFailure, code,
    library::{call, list, output},
};

/// No board has more instances of one profile; the maximum that older drivers report may be too small.
const MOST_INSTANCES: u32 = 16;

/// A GPU instance.
#[derive(Clone, Copy)]
pub struct GpuInstance<'n> {
    pub(crate) nvml: &'n Nvml,
    pub(crate) handle: nvmlGpuInstance_t,
    pub(crate) parent: Gpu<'n>,
}

/// Info of a GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInstanceInfo {
    /// Its id on the GPU.
    pub id: u32,
    /// The device's id of its profile.
    pub profile_id: u32,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
}

impl<'n> Gpu<'n> {
    /// GPU instances of these profiles; none while MIG is off.
    pub fn gpu_instances(&self, profiles: &[InstanceProfile]) -> Result<Vec<GpuInstance<'n>>, NvmlFailure> {
        let mut instances = Vec::new();
        for profile in profiles {
            let handles = list(null_mut(), profile.max.max(MOST_INSTANCES), |buffer, count| {
                call!(self.nvml, nvmlDeviceGetGpuInstances(self.handle, profile.id, buffer, count))
            });
            let handles = NvmlFailure::none_for(&[code::NOT_SUPPORTED], handles)?.unwrap_or_default();
            instances.extend(handles.into_iter().map(|handle| self.instance(handle)));
        }
        Ok(instances)
    }

    /// The GPU instance with this id, or `None`.
    pub fn gpu_instance(&self, id: u32) -> Result<Option<GpuInstance<'n>>, NvmlFailure> {
        let found = output(null_mut(), |found| call!(self.nvml, nvmlDeviceGetGpuInstanceById(self.handle, id, found)));
        let found = NvmlFailure::none_for(&[code::NOT_FOUND, code::NOT_SUPPORTED], found)?;
        Ok(found.map(|handle| self.instance(handle)))
    }

    /// Creates a GPU instance at exactly this placement. An occupied one is `INSUFFICIENT_RESOURCES`.
    pub fn create_gpu_instance(&self, profile_id: u32, start: u32, size: u32) -> Result<GpuInstance<'n>, NvmlFailure> {
        let placement = nvmlGpuInstancePlacement_t { start, size };
        let placement = &raw const placement;
        let created = output(null_mut(), |created| {
            call!(self.nvml, nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, profile_id, placement, created))
        });
        Ok(self.instance(created?))
    }

    fn instance(&self, handle: nvmlGpuInstance_t) -> GpuInstance<'n> {
        GpuInstance { nvml: self.nvml, handle, parent: *self }
    }
}

impl GpuInstance<'_> {
    /// Id, profile and place.
    pub fn info(&self) -> Result<GpuInstanceInfo, NvmlFailure> {
        // SAFETY: a struct of integers and handles; zero is a value of each.
        let empty: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
        let info = output(empty, |info| call!(self.nvml, nvmlGpuInstanceGetInfo(self.handle, info)))?;
        let nvmlGpuInstancePlacement_t { start, size } = info.placement;
        Ok(GpuInstanceInfo { id: info.id, profile_id: info.profileId, start, size })
    }

    /// Destroys it; `IN_USE` while it has a compute instance or a process.
    pub fn destroy(self) -> Result<(), NvmlFailure> {
        call!(self.nvml, nvmlGpuInstanceDestroy(self.handle))
    }
}
