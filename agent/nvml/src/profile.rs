//! GPU instance profiles of a board and their placements.

use std::mem::zeroed;

use nvml_wrapper_sys::bindings::{
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
    nvmlGpuInstanceProfileInfo_v3_t,
};

use crate::{
    Engines, Gpu, InstanceProfile, NvmlFailure, code,
    library::{call, list, output, string},
    name::profile_name,
};

/// Enums to probe; the headers of some versions have one less.
const PROFILE_ENUMS: u32 = 18;

/// The fields that all versions of NVML's struct have; the placements follow from another call.
macro_rules! profile {
    ($info:ident, $name:expr) => {
        InstanceProfile {
            id: $info.id,
            name: $name,
            slices: $info.sliceCount,
            max: $info.instanceCount,
            multiprocessors: $info.multiprocessorCount,
            memory_mib: $info.memorySizeMB,
            engines: Engines {
                copy: $info.copyEngineCount,
                decoder: $info.decoderCount,
                encoder: $info.encoderCount,
                jpeg: $info.jpegCount,
                ofa: $info.ofaCount,
            },
            size: 0,
            starts: Vec::new(),
        }
    };
}

/// A profile by a struct with a name.
macro_rules! named_profile {
    ($gpu:expr, $profile_enum:expr, $info:ty, $version:literal) => {{
        // SAFETY: a struct of integers and character arrays; zero is a value of each.
        let mut info: $info = unsafe { zeroed() };
        info.version = u32::try_from(size_of_val(&info)).ok()? | $version << 24;
        // the C prototype names the oldest struct; `version` contains the size of this one
        let pointer = (&raw mut info).cast();
        call!($gpu.nvml, nvmlDeviceGetGpuInstanceProfileInfoV($gpu.handle, $profile_enum, pointer)).ok()?;
        Some(profile!(info, plain_name(&string(&info.name))?))
    }};
}

impl Gpu<'_> {
    /// Every profile of the board, by id. `total_mib` is the board's memory, for names that the driver does not report.
    pub fn instance_profiles(&self, total_mib: u64) -> Result<Vec<InstanceProfile>, NvmlFailure> {
        let mut profiles: Vec<InstanceProfile> = Vec::new();
        for profile_enum in 0..PROFILE_ENUMS {
            let Some(mut profile) = self.instance_profile(profile_enum, total_mib)? else { continue };
            if profiles.iter().any(|known| known.id == profile.id) {
                continue;
            }
            let placements = self.possible_placements(profile.id)?;
            profile.size = placements.first().map_or(0, |placement| placement.1);
            profile.starts = placements.iter().map(|placement| placement.0).collect();
            profile.starts.sort_unstable();
            profiles.push(profile);
        }
        profiles.sort_by_key(|profile| profile.id);
        Ok(profiles)
    }

    fn instance_profile(&self, profile_enum: u32, total_mib: u64) -> Result<Option<InstanceProfile>, NvmlFailure> {
        // an older driver refuses a newer struct and an unknown profile with the same codes; only the oldest call distinguishes them
        let v3 = || named_profile!(self, profile_enum, nvmlGpuInstanceProfileInfo_v3_t, 3);
        let v2 = || named_profile!(self, profile_enum, nvmlGpuInstanceProfileInfo_v2_t, 2);
        if let Some(profile) = v3().or_else(v2) {
            return Ok(Some(profile));
        }
        NvmlFailure::none_for(&[code::NOT_SUPPORTED, code::INVALID_ARGUMENT], self.profile_v1(profile_enum, total_mib))
    }

    fn profile_v1(&self, profile_enum: u32, total_mib: u64) -> Result<InstanceProfile, NvmlFailure> {
        // SAFETY: a struct of integers; zero is a value of each.
        let empty: nvmlGpuInstanceProfileInfo_t = unsafe { zeroed() };
        let info = output(empty, |info| {
            call!(self.nvml, nvmlDeviceGetGpuInstanceProfileInfo(self.handle, profile_enum, info))
        })?;
        Ok(profile!(info, profile_name(profile_enum, info.sliceCount, info.memorySizeMB, total_mib)))
    }

    /// Possible placements of a profile, as (start, size) in memory slices.
    pub fn possible_placements(&self, profile_id: u32) -> Result<Vec<(u32, u32)>, NvmlFailure> {
        let query = |buffer, count| {
            call!(self.nvml, nvmlDeviceGetGpuInstancePossiblePlacements_v2(self.handle, profile_id, buffer, count))
        };
        let count = output(0, |count| query(std::ptr::null_mut(), count))?;
        let placements = list(nvmlGpuInstancePlacement_t { start: 0, size: 0 }, count, query)?;
        Ok(placements.into_iter().map(|placement| (placement.start, placement.size)).collect())
    }
}

/// The driver writes `MIG 1g.10gb` for `1g.10gb`. An empty name is none.
fn plain_name(name: &str) -> Option<String> {
    let name = name.strip_prefix("MIG ").unwrap_or(name).trim();
    (!name.is_empty()).then(|| name.to_owned())
}
