//! Profiles of GPU instances and compute instances, in every version of their structs.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t, nvmlComputeInstanceProfileInfo_v3_t,
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
    nvmlGpuInstanceProfileInfo_v3_t,
};
use silicon::Code;
use silicon::board::Profile;
use silicon::compute_profile::{self, ComputeProfile};

use crate::call::{
    context::Context,
    nvml,
    out::{field, get, put},
};

/// `NVML_GPU_INSTANCE_PROFILE_COUNT` of NVML 13.
const GI_PROFILES: u32 = 18;
/// `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` of NVML 13.
const CI_PROFILES: u32 = 9;

/// Checks a struct's version field: its size, and its version in the top byte.
pub fn version(given: u32, size: usize, number: u32) -> Result<(), Code> {
    if given as usize == size | (number as usize) << 24 { Ok(()) } else { Err(Code::ARGUMENT_VERSION_MISMATCH) }
}

impl Context {
    fn gi_profile(&self, device: nvmlDevice_t, wanted: u32) -> Result<&Profile, Code> {
        let gpu = self.gpu(device)?;
        if wanted >= GI_PROFILES {
            return Err(Code::INVALID_ARGUMENT);
        }
        gpu.board.profile_by_enum(wanted).ok_or(Code::NOT_SUPPORTED)
    }

    fn gi_profile_by_id(&self, device: nvmlDevice_t, id: u32) -> Result<&Profile, Code> {
        self.gpu(device)?.board.profile(id).ok_or(Code::INVALID_ARGUMENT)
    }

    /// The compute-instance profile, and its name.
    fn ci_profile(&self, gi: nvmlGpuInstance_t, wanted: u32, engines: u32) -> Result<(ComputeProfile, String), Code> {
        let (gpu, gi) = self.gi(gi)?;
        if wanted >= CI_PROFILES || engines != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let of = gpu.profile_of(gi)?;
        let found = compute_profile::profile(&gpu.board, of, wanted).ok_or(Code::NOT_SUPPORTED)?;
        Ok((found, compute_profile::device_name(&gpu.board, of, found.id)))
    }
}

fn gi_info(p: &Profile) -> nvmlGpuInstanceProfileInfo_t {
    nvmlGpuInstanceProfileInfo_t {
        id: p.id,
        isP2pSupported: 0,
        sliceCount: p.slices,
        instanceCount: p.max_instances,
        multiprocessorCount: p.engines.sm,
        copyEngineCount: p.engines.copy_engines,
        decoderCount: p.engines.decoders,
        encoderCount: p.engines.encoders,
        jpegCount: p.engines.jpeg,
        ofaCount: p.engines.ofa,
        memorySizeMB: p.memory_mib,
    }
}

/// Fills the struct of whichever version the caller has.
fn put_gi_info(p: &Profile, to: *mut nvmlGpuInstanceProfileInfo_v2_t) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // The version is the first field of every version of the struct.
    let given = get(to.cast::<c_uint>())?;
    let old = gi_info(p);
    let name: [c_char; 96] = field(&format!("MIG {}", p.name));
    if version(given, size_of::<nvmlGpuInstanceProfileInfo_v2_t>(), 2).is_ok() {
        return put(
            to,
            nvmlGpuInstanceProfileInfo_v2_t {
                version: given,
                id: old.id,
                isP2pSupported: old.isP2pSupported,
                sliceCount: old.sliceCount,
                instanceCount: old.instanceCount,
                multiprocessorCount: old.multiprocessorCount,
                copyEngineCount: old.copyEngineCount,
                decoderCount: old.decoderCount,
                encoderCount: old.encoderCount,
                jpegCount: old.jpegCount,
                ofaCount: old.ofaCount,
                memorySizeMB: old.memorySizeMB,
                name,
            },
        );
    }
    version(given, size_of::<nvmlGpuInstanceProfileInfo_v3_t>(), 3)?;
    put(
        to.cast(),
        nvmlGpuInstanceProfileInfo_v3_t {
            version: given,
            id: old.id,
            sliceCount: old.sliceCount,
            instanceCount: old.instanceCount,
            multiprocessorCount: old.multiprocessorCount,
            copyEngineCount: old.copyEngineCount,
            decoderCount: old.decoderCount,
            encoderCount: old.encoderCount,
            jpegCount: old.jpegCount,
            ofaCount: old.ofaCount,
            memorySizeMB: old.memorySizeMB,
            name,
            capabilities: 0,
        },
    )
}

fn ci_info(p: &ComputeProfile) -> nvmlComputeInstanceProfileInfo_t {
    nvmlComputeInstanceProfileInfo_t {
        id: p.id,
        sliceCount: p.slices,
        instanceCount: p.max_instances,
        multiprocessorCount: p.sm,
        sharedCopyEngineCount: p.shared.copy_engines,
        sharedDecoderCount: p.shared.decoders,
        sharedEncoderCount: p.shared.encoders,
        sharedJpegCount: p.shared.jpeg,
        sharedOfaCount: p.shared.ofa,
    }
}

fn put_ci_info(p: &ComputeProfile, name: &str, to: *mut nvmlComputeInstanceProfileInfo_v2_t) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let given = get(to.cast::<c_uint>())?;
    let old = ci_info(p);
    let name: [c_char; 96] = field(&format!("MIG {name}"));
    if version(given, size_of::<nvmlComputeInstanceProfileInfo_v2_t>(), 2).is_ok() {
        return put(
            to,
            nvmlComputeInstanceProfileInfo_v2_t {
                version: given,
                id: old.id,
                sliceCount: old.sliceCount,
                instanceCount: old.instanceCount,
                multiprocessorCount: old.multiprocessorCount,
                sharedCopyEngineCount: old.sharedCopyEngineCount,
                sharedDecoderCount: old.sharedDecoderCount,
                sharedEncoderCount: old.sharedEncoderCount,
                sharedJpegCount: old.sharedJpegCount,
                sharedOfaCount: old.sharedOfaCount,
                name,
            },
        );
    }
    version(given, size_of::<nvmlComputeInstanceProfileInfo_v3_t>(), 3)?;
    put(
        to.cast(),
        nvmlComputeInstanceProfileInfo_v3_t {
            version: given,
            id: old.id,
            sliceCount: old.sliceCount,
            instanceCount: old.instanceCount,
            multiprocessorCount: old.multiprocessorCount,
            sharedCopyEngineCount: old.sharedCopyEngineCount,
            sharedDecoderCount: old.sharedDecoderCount,
            sharedEncoderCount: old.sharedEncoderCount,
            sharedJpegCount: old.sharedJpegCount,
            sharedOfaCount: old.sharedOfaCount,
            name,
            capabilities: 0,
        },
    )
}

nvml! {
    fn nvmlDeviceGetGpuInstanceProfileInfo[device](
        ctx, device: nvmlDevice_t, profile: c_uint, info: *mut nvmlGpuInstanceProfileInfo_t,
    ) {
        put(info, gi_info(ctx.gi_profile(device, profile)?))
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV[device](
        ctx, device: nvmlDevice_t, profile: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        put_gi_info(ctx.gi_profile(device, profile)?, info)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV[device](
        ctx, device: nvmlDevice_t, id: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        put_gi_info(ctx.gi_profile_by_id(device, id)?, info)
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfo[gi](
        ctx, gi: nvmlGpuInstance_t, profile: c_uint, engines: c_uint, info: *mut nvmlComputeInstanceProfileInfo_t,
    ) {
        put(info, ci_info(&ctx.ci_profile(gi, profile, engines)?.0))
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV[gi](
        ctx, gi: nvmlGpuInstance_t, profile: c_uint, engines: c_uint, info: *mut nvmlComputeInstanceProfileInfo_v2_t,
    ) {
        let (found, name) = ctx.ci_profile(gi, profile, engines)?;
        put_ci_info(&found, &name, info)
    }
}
