//! Compute instances of a GPU instance.

use std::{mem::zeroed, ptr::null_mut};

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstanceProfileInfo_t, nvmlDevice_t,
};

use crate::{
    Gpu, GpuInstance, Nvml, NvmlFailure, code,
    library::{call, list, output},
};

/// Enums to probe; the headers of some versions have one less.
const PROFILE_ENUMS: u32 = 9;
const MOST_INSTANCES: u32 = 8;
/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`, the only one there is.
const ENGINES_SHARED: u32 = 0;

/// A profile of compute instances within one GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeProfile {
    /// The device's id, which creation takes.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most compute instances of this profile in the GPU instance.
    pub max: u32,
}

/// The profile that covers the whole GPU instance: its slices and, among those, the most multiprocessors. Hopper's `1g.20gb`
/// has two profiles of one slice, of which the first by enum would waste a part.
pub fn full_width(profiles: &[ComputeProfile], slices: u32) -> Option<ComputeProfile> {
    profiles.iter().filter(|profile| profile.slices == slices).max_by_key(|profile| profile.multiprocessors).copied()
}

/// A compute instance.
#[derive(Clone, Copy)]
pub struct ComputeInstance<'n> {
    nvml: &'n Nvml,
    handle: nvmlComputeInstance_t,
    parent: Gpu<'n>,
}

/// Info of a compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeInstanceInfo {
    /// Its id within the GPU instance.
    pub id: u32,
    /// The device's id of its profile.
    pub profile_id: u32,
    device: nvmlDevice_t,
}

impl<'n> GpuInstance<'n> {
    /// The compute profiles of this GPU instance.
    pub fn compute_profiles(&self) -> Result<Vec<ComputeProfile>, NvmlFailure> {
        let mut profiles: Vec<ComputeProfile> = Vec::new();
        for profile_enum in 0..PROFILE_ENUMS {
            // SAFETY: a struct of integers; zero is a value of each.
            let empty: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
            let (nvml, handle) = (self.nvml, self.handle);
            let info = output(empty, |info| {
                call!(nvml, nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, profile_enum, ENGINES_SHARED, info))
            });
            let info = NvmlFailure::none_for(&[code::NOT_SUPPORTED, code::INVALID_ARGUMENT], info)?;
            profiles.extend(info.filter(|info| profiles.iter().all(|known| known.id != info.id)).map(|info| {
                ComputeProfile {
                    id: info.id,
                    slices: info.sliceCount,
                    multiprocessors: info.multiprocessorCount,
                    max: info.instanceCount,
                }
            }));
        }
        Ok(profiles)
    }

    /// Its compute instances of these profiles.
    pub fn compute_instances(&self, profiles: &[ComputeProfile]) -> Result<Vec<ComputeInstance<'n>>, NvmlFailure> {
        let mut instances = Vec::new();
        for profile in profiles {
            let handles = list(null_mut(), profile.max.max(MOST_INSTANCES), |buffer, count| {
                call!(self.nvml, nvmlGpuInstanceGetComputeInstances(self.handle, profile.id, buffer, count))
            });
            instances.extend(handles?.into_iter().map(|handle| self.instance(handle)));
        }
        Ok(instances)
    }

    /// The compute instance with this id, or `None`.
    pub fn compute_instance(&self, id: u32) -> Result<Option<ComputeInstance<'n>>, NvmlFailure> {
        let found =
            output(null_mut(), |found| call!(self.nvml, nvmlGpuInstanceGetComputeInstanceById(self.handle, id, found)));
        Ok(NvmlFailure::none_for(&[code::NOT_FOUND], found)?.map(|handle| self.instance(handle)))
    }

    /// Creates a compute instance of a profile.
    pub fn create_compute_instance(&self, profile_id: u32) -> Result<ComputeInstance<'n>, NvmlFailure> {
        let created = output(null_mut(), |created| {
            call!(self.nvml, nvmlGpuInstanceCreateComputeInstance(self.handle, profile_id, created))
        });
        Ok(self.instance(created?))
    }

    fn instance(&self, handle: nvmlComputeInstance_t) -> ComputeInstance<'n> {
        ComputeInstance { nvml: self.nvml, handle, parent: self.parent }
    }
}

impl<'n> ComputeInstance<'n> {
    /// Id and profile.
    pub fn info(&self) -> Result<ComputeInstanceInfo, NvmlFailure> {
        // SAFETY: a struct of integers and handles; zero is a value of each.
        let empty: nvmlComputeInstanceInfo_t = unsafe { zeroed() };
        let info = output(empty, |info| call!(self.nvml, nvmlComputeInstanceGetInfo_v2(self.handle, info)))?;
        Ok(ComputeInstanceInfo { id: info.id, profile_id: info.profileId, device: info.device })
    }

    /// The MIG device that processes see, or `None` while the driver does not list it.
    pub fn mig_device(&self, gi: u32, info: &ComputeInstanceInfo) -> Result<Option<Gpu<'n>>, NvmlFailure> {
        // in practice this is the MIG device's handle, which saves a search over all slots that can take seconds; the header
        // documents the parent's, so it is checked
        let device = Gpu { nvml: self.nvml, handle: info.device };
        if !info.device.is_null() && device.is_mig_device() {
            return Ok(Some(device));
        }
        for device in self.parent.mig_devices()? {
            if device.mig_ids()? == (gi, info.id) {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// Destroys it; `IN_USE` while a process uses it.
    pub fn destroy(self) -> Result<(), NvmlFailure> {
        call!(self.nvml, nvmlComputeInstanceDestroy(self.handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_width_profile_has_the_most_multiprocessors() {
        let profile = |id, slices, multiprocessors| ComputeProfile { id, slices, multiprocessors, max: 1 };
        let hopper_1g20 = [profile(0, 1, 16), profile(7, 1, 26)];
        assert_eq!(full_width(&hopper_1g20, 1).map(|p| p.id), Some(7));
        let ampere_3g = [profile(0, 1, 14), profile(1, 2, 28), profile(2, 3, 42)];
        assert_eq!(full_width(&ampere_3g, 3).map(|p| p.id), Some(2));
        assert_eq!(full_width(&ampere_3g, 4), None);
    }
}
