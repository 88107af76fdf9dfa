//! Handles: values that encode their target and are never dereferenced.
//!
//! 47 bits, so that they look like addresses that are not mapped: kind, GPU, instance ids, and the serial of the
//! instance, which distinguishes a handle of a destroyed instance from that of its successor.

use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t};
use silicon::Code;
use silicon::machine::{ComputeInstance, Gpu, GpuInstance, MigDevice};

use super::context::Context;

const GPU: usize = 1;
const MIG: usize = 2;
const GPU_INSTANCE: usize = 3;
const COMPUTE_INSTANCE: usize = 4;

/// A device handle's meaning.
#[derive(Clone, Copy)]
pub enum Device<'a> {
    /// A GPU.
    Gpu(&'a Gpu),
    /// A MIG device.
    Mig(MigDevice<'a>),
}

impl<'a> Device<'a> {
    /// The GPU, also of a MIG device.
    pub fn gpu(self) -> &'a Gpu {
        match self {
            Self::Gpu(gpu) => gpu,
            Self::Mig(device) => device.gpu,
        }
    }
}

fn pack(kind: usize, gpu: u32, gi: u32, ci: u32, serial: u32) -> usize {
    let field = |value: u32, shift: u32| (value as usize & 0xf) << shift;
    kind << 44 | field(gpu, 40) | field(gi, 36) | field(ci, 32) | serial as usize
}

struct Fields {
    kind: usize,
    gpu: u32,
    gi: u32,
    ci: u32,
    serial: u32,
}

fn unpack(handle: usize) -> Fields {
    let field = |shift: u32| u32::try_from(handle >> shift & 0xf).unwrap_or(0);
    let serial = u32::try_from(handle & 0xffff_ffff).unwrap_or(0);
    Fields { kind: handle >> 44, gpu: field(40), gi: field(36), ci: field(32), serial }
}

/// The GPU that any handle is about.
pub fn gpu_of(handle: usize) -> Option<u32> {
    let fields = unpack(handle);
    (GPU..=COMPUTE_INSTANCE).contains(&fields.kind).then_some(fields.gpu)
}

/// Handle of a GPU.
pub fn of_gpu(gpu: &Gpu) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(pack(GPU, gpu.index, 0, 0, 0))
}

/// Handle of a MIG device.
pub fn of_mig(device: &MigDevice<'_>) -> nvmlDevice_t {
    let MigDevice { gpu, gi, ci } = device;
    std::ptr::without_provenance_mut(pack(MIG, gpu.index, gi.id, ci.id, ci.serial))
}

/// Handle of a GPU instance.
pub fn of_gi(gpu: u32, gi: &GpuInstance) -> nvmlGpuInstance_t {
    std::ptr::without_provenance_mut(pack(GPU_INSTANCE, gpu, gi.id, 0, gi.serial))
}

/// Handle of a compute instance.
pub fn of_ci(gpu: u32, gi: u32, ci: &ComputeInstance) -> nvmlComputeInstance_t {
    std::ptr::without_provenance_mut(pack(COMPUTE_INSTANCE, gpu, gi, ci.id, ci.serial))
}

impl Context {
    /// What a device handle names.
    pub fn device(&self, handle: nvmlDevice_t) -> Result<Device<'_>, Code> {
        let fields = unpack(handle.addr());
        match fields.kind {
            GPU => Ok(Device::Gpu(self.machine.gpu(fields.gpu)?)),
            MIG => {
                let device = self.machine.mig_device(fields.gpu, fields.gi, fields.ci)?;
                if device.ci.serial == fields.serial { Ok(Device::Mig(device)) } else { Err(Code::NOT_FOUND) }
            }
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// The GPU that a handle names; not for a MIG device.
    pub fn gpu(&self, handle: nvmlDevice_t) -> Result<&Gpu, Code> {
        match self.device(handle)? {
            Device::Gpu(gpu) => Ok(gpu),
            Device::Mig(_) => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// The GPU in MIG mode that a handle names.
    pub fn mig_gpu(&self, handle: nvmlDevice_t) -> Result<&Gpu, Code> {
        self.gpu(handle).and_then(|gpu| if gpu.mig { Ok(gpu) } else { Err(Code::NOT_SUPPORTED) })
    }

    /// The MIG device that a handle names; not for a GPU.
    pub fn mig_device(&self, handle: nvmlDevice_t) -> Result<MigDevice<'_>, Code> {
        match self.device(handle)? {
            Device::Gpu(_) => Err(Code::INVALID_ARGUMENT),
            Device::Mig(device) => Ok(device),
        }
    }

    /// The GPU and GPU instance that a handle names.
    pub fn gi(&self, handle: nvmlGpuInstance_t) -> Result<(&Gpu, &GpuInstance), Code> {
        let fields = unpack(handle.addr());
        if fields.kind != GPU_INSTANCE {
            return Err(Code::INVALID_ARGUMENT);
        }
        let gpu = self.machine.gpu(fields.gpu)?;
        let gi = gpu.instance(fields.gi)?;
        if gi.serial == fields.serial { Ok((gpu, gi)) } else { Err(Code::NOT_FOUND) }
    }

    /// The MIG device of the compute instance that a handle names.
    pub fn ci(&self, handle: nvmlComputeInstance_t) -> Result<MigDevice<'_>, Code> {
        let fields = unpack(handle.addr());
        if fields.kind != COMPUTE_INSTANCE {
            return Err(Code::INVALID_ARGUMENT);
        }
        let device = self.machine.mig_device(fields.gpu, fields.gi, fields.ci)?;
        if device.ci.serial == fields.serial { Ok(device) } else { Err(Code::NOT_FOUND) }
    }
}
