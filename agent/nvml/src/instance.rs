//! GPU instances: listing, creating by placement, destroying.

use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::{nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t};

use crate::{Gpu, InstanceProfile, Nvml, NvmlFailure, code, library::call};

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
            let mut count = profile.max.max(MOST_INSTANCES);
            let mut handles = vec![null_mut(); count as usize];
            let buffer = handles.as_mut_ptr();
            match call!(self.nvml, nvmlDeviceGetGpuInstances(self.handle, profile.id, buffer, &raw mut count)) {
                Ok(()) => {
                    handles.truncate(count as usize);
                    let handles = handles.into_iter();
                    instances.extend(handles.map(|handle| GpuInstance { nvml: self.nvml, handle, parent: *self }));
                }
                Err(failure) if failure.is_not_supported() => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(instances)
    }

    /// The GPU instance with this id, or `None`.
    pub fn gpu_instance(&self, id: u32) -> Result<Option<GpuInstance<'n>>, NvmlFailure> {
        let mut handle = null_mut();
        match call!(self.nvml, nvmlDeviceGetGpuInstanceById(self.handle, id, &raw mut handle)) {
            Ok(()) => Ok(Some(GpuInstance { nvml: self.nvml, handle, parent: *self })),
            Err(failure) if matches!(failure.code, code::NOT_FOUND | code::NOT_SUPPORTED) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Creates a GPU instance at exactly this placement. An occupied one is `INSUFFICIENT_RESOURCES`.
    pub fn create_gpu_instance(&self, profile_id: u32, start: u32, size: u32) -> Result<GpuInstance<'n>, NvmlFailure> {
        let placement = nvmlGpuInstancePlacement_t { start, size };
        let mut handle = null_mut();
        call!(
            self.nvml,
            nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, profile_id, &raw const placement, &raw mut handle)
        )?;
        Ok(GpuInstance { nvml: self.nvml, handle, parent: *self })
    }
}

impl GpuInstance<'_> {
    /// Id, profile and place.
    pub fn info(&self) -> Result<GpuInstanceInfo, NvmlFailure> {
        let mut info = nvmlGpuInstanceInfo_t {
            device: null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        call!(self.nvml, nvmlGpuInstanceGetInfo(self.handle, &raw mut info))?;
        Ok(GpuInstanceInfo {
            id: info.id,
            profile_id: info.profileId,
            start: info.placement.start,
            size: info.placement.size,
        })
    }

    /// Destroys it; `IN_USE` while it has a compute instance or a process.
    pub fn destroy(self) -> Result<(), NvmlFailure> {
        call!(self.nvml, nvmlGpuInstanceDestroy(self.handle))
    }
}
