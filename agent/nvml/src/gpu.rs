//! One GPU: identity, memory and MIG mode.

use std::{ffi::CString, mem::zeroed, ptr::null_mut};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGridLicensableFeatures_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
};

use crate::{
    ComputeMode, MemoryUse, MigMode, Nvml, NvmlFailure, Vgpu, code,
    library::{call, output, string, text},
};

/// `NVML_DEVICE_ARCH_VOLTA`.
const ARCHITECTURE_VOLTA: u32 = 5;
const ARCHITECTURE_AMPERE: u32 = 7;
/// `NVML_COMPUTEMODE_DEFAULT`.
const COMPUTE_MODE_DEFAULT: u32 = 0;
/// `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const COMPUTE_MODE_EXCLUSIVE_PROCESS: u32 = 3;
/// `NVML_GPU_VIRTUALIZATION_MODE_VGPU`.
const VIRTUALIZATION_VGPU: u32 = 2;
/// `NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU`.
const VIRTUALIZATION_HOST_VGPU: u32 = 3;
/// `NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA`.
const VIRTUALIZATION_HOST_VSGA: u32 = 4;

/// A GPU (or, inside this crate, a MIG device) of an open [`Nvml`].
#[derive(Clone, Copy)]
pub struct Gpu<'n> {
    pub(crate) nvml: &'n Nvml,
    pub(crate) handle: nvmlDevice_t,
}

/// Memory of a GPU, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total_mib: u64,
    /// Reserved by the driver, if the driver reports it.
    pub reserved_mib: Option<u64>,
}

/// Whether a new MIG mode is active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Active.
    Done,
    /// Active after a reset; NVML's reason, which is no failure of the call.
    Pending(NvmlFailure),
}

impl Nvml {
    /// The GPU with this index, `0..gpu_count`.
    pub fn gpu(&self, index: u32) -> Result<Gpu<'_>, NvmlFailure> {
        let handle = output(null_mut(), |handle| call!(self, nvmlDeviceGetHandleByIndex_v2(index, handle)))?;
        Ok(Gpu { nvml: self, handle })
    }

    /// The GPU or MIG device with this UUID.
    pub fn by_uuid(&self, uuid: &str) -> Result<Gpu<'_>, NvmlFailure> {
        let uuid = CString::new(uuid).unwrap_or_default();
        let handle = output(null_mut(), |handle| call!(self, nvmlDeviceGetHandleByUUID(uuid.as_ptr(), handle)))?;
        Ok(Gpu { nvml: self, handle })
    }
}

impl<'n> Gpu<'n> {
    /// NVML's UUID, `GPU-…` or `MIG-…`.
    pub fn uuid(&self) -> Result<String, NvmlFailure> {
        text(|buffer, length| call!(self.nvml, nvmlDeviceGetUUID(self.handle, buffer, length)))
    }

    /// Product name, such as `NVIDIA A100-SXM4-80GB`.
    pub fn name(&self) -> Result<String, NvmlFailure> {
        text(|buffer, length| call!(self.nvml, nvmlDeviceGetName(self.handle, buffer, length)))
    }

    /// N of `/dev/nvidiaN`.
    pub fn minor(&self) -> Result<u32, NvmlFailure> {
        output(0, |minor| call!(self.nvml, nvmlDeviceGetMinorNumber(self.handle, minor)))
    }

    /// PCI address, such as `00000000:01:00.0`.
    pub fn pci_bus_id(&self) -> Result<String, NvmlFailure> {
        // SAFETY: a struct of integers and character arrays; zero is a value of each.
        let empty: nvmlPciInfo_t = unsafe { zeroed() };
        Ok(string(&output(empty, |info| call!(self.nvml, nvmlDeviceGetPciInfo_v3(self.handle, info)))?.busId))
    }

    /// Total memory, and the reserved part if the driver has the newer call.
    pub fn memory(&self) -> Result<Memory, NvmlFailure> {
        if let Some(v2) = self.memory_v2() {
            return Ok(Memory { total_mib: v2.total >> 20, reserved_mib: Some(v2.reserved >> 20) });
        }
        let empty = nvmlMemory_t { total: 0, free: 0, used: 0 };
        let v1 = output(empty, |v1| call!(self.nvml, nvmlDeviceGetMemoryInfo(self.handle, v1)))?;
        Ok(Memory { total_mib: v1.total >> 20, reserved_mib: None })
    }

    /// All memory by its use. `None` if the driver does not have the newer call, or it fails.
    pub fn memory_use(&self) -> Option<MemoryUse> {
        let nvmlMemory_v2_t { reserved, free, used, .. } = self.memory_v2()?;
        Some(MemoryUse { reserved, used, free })
    }

    fn memory_v2(&self) -> Option<nvmlMemory_v2_t> {
        let version = u32::try_from(size_of::<nvmlMemory_v2_t>()).unwrap_or(0) | 2 << 24;
        let empty = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        output(empty, |v2| call!(self.nvml, nvmlDeviceGetMemoryInfo_v2(self.handle, v2))).ok()
    }

    /// A change of MIG mode needs a reset: on Ampere, and on no later architecture.
    pub fn mode_needs_reset(&self) -> Result<bool, NvmlFailure> {
        Ok(self.architecture()? <= ARCHITECTURE_AMPERE)
    }

    /// The architecture is older than Volta, so that one MPS server has fewer clients, and one address space for all of them.
    pub fn before_volta(&self) -> Result<bool, NvmlFailure> {
        Ok(self.architecture()? < ARCHITECTURE_VOLTA)
    }

    fn architecture(&self) -> Result<u32, NvmlFailure> {
        output(0, |value| call!(self.nvml, nvmlDeviceGetArchitecture(self.handle, value)))
    }

    /// How NVIDIA's vGPU software uses it; `None` on bare metal and for a whole GPU that is passed to a virtual machine.
    pub fn vgpu(&self) -> Result<Option<Vgpu>, NvmlFailure> {
        let mode = output(0, |mode| call!(self.nvml, nvmlDeviceGetVirtualizationMode(self.handle, mode)));
        Ok(NvmlFailure::optional(mode)?.and_then(|mode| match mode {
            VIRTUALIZATION_VGPU => Some(Vgpu::Guest),
            VIRTUALIZATION_HOST_VGPU | VIRTUALIZATION_HOST_VSGA => Some(Vgpu::Host),
            _ => None,
        }))
    }

    /// A vGPU has a licence; `None` where NVML reports no licence, as of every other GPU.
    pub fn licensed(&self) -> Result<Option<bool>, NvmlFailure> {
        // SAFETY: a struct of integers and character arrays; zero is a value of each.
        let empty: nvmlGridLicensableFeatures_t = unsafe { zeroed() };
        let features = output(empty, |f| call!(self.nvml, nvmlDeviceGetGridLicensableFeatures_v4(self.handle, f)));
        let Some(features) = NvmlFailure::optional(features)?.filter(|f| f.isGridLicenseSupported != 0) else {
            return Ok(None);
        };
        let count = features.licensableFeaturesCount as usize;
        let enabled = features.gridLicensableFeatures.iter().take(count).filter(|feature| feature.featureEnabled != 0);
        Ok(Some(enabled.into_iter().any(|feature| feature.featureState != 0)))
    }

    /// Which processes may create contexts.
    pub fn compute_mode(&self) -> Result<ComputeMode, NvmlFailure> {
        Ok(match output(0, |mode| call!(self.nvml, nvmlDeviceGetComputeMode(self.handle, mode)))? {
            COMPUTE_MODE_DEFAULT => ComputeMode::Default,
            COMPUTE_MODE_EXCLUSIVE_PROCESS => ComputeMode::ExclusiveProcess,
            other => ComputeMode::Other(other),
        })
    }

    /// Sets the compute mode, which the driver keeps until it is unloaded. Processes that run already are not affected.
    pub fn set_compute_mode(&self, mode: ComputeMode) -> Result<(), NvmlFailure> {
        let mode = match mode {
            ComputeMode::Default => COMPUTE_MODE_DEFAULT,
            ComputeMode::ExclusiveProcess => COMPUTE_MODE_EXCLUSIVE_PROCESS,
            ComputeMode::Other(other) => other,
        };
        call!(self.nvml, nvmlDeviceSetComputeMode(self.handle, mode))
    }

    /// MIG mode, or `None` on a board without MIG.
    pub fn mig_mode(&self) -> Result<Option<MigMode>, NvmlFailure> {
        let (mut current, mut pending) = (0, 0);
        let mode = call!(self.nvml, nvmlDeviceGetMigMode(self.handle, &raw mut current, &raw mut pending));
        Ok(NvmlFailure::optional(mode)?.map(|()| MigMode { current: current == 1, pending: pending == 1 }))
    }

    /// Sets the MIG mode, which may be active only after a reset: see [`Activation`].
    pub fn set_mig_mode(&self, on: bool) -> Result<Activation, NvmlFailure> {
        let set = |status| call!(self.nvml, nvmlDeviceSetMigMode(self.handle, u32::from(on), status));
        match output(code::SUCCESS, set)? {
            code::SUCCESS => Ok(Activation::Done),
            status => Ok(Activation::Pending(self.nvml.failure("nvmlDeviceSetMigMode", status))),
        }
    }

    /// The MIG devices of this GPU by walking all slots; holes are normal.
    pub(crate) fn mig_devices(&self) -> Result<Vec<Gpu<'n>>, NvmlFailure> {
        let count = output(0, |count| call!(self.nvml, nvmlDeviceGetMaxMigDeviceCount(self.handle, count)))?;
        let mut devices = Vec::new();
        for index in 0..count {
            let device = output(null_mut(), |device| {
                call!(self.nvml, nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index, device))
            });
            let device = NvmlFailure::none_for(&[code::NOT_FOUND, code::INVALID_ARGUMENT], device)?;
            devices.extend(device.map(|handle| Gpu { nvml: self.nvml, handle }));
        }
        Ok(devices)
    }

    pub(crate) fn is_mig_device(&self) -> bool {
        output(0, |is| call!(self.nvml, nvmlDeviceIsMigDeviceHandle(self.handle, is))) == Ok(1)
    }

    pub(crate) fn mig_ids(&self) -> Result<(u32, u32), NvmlFailure> {
        let gi = output(0, |gi| call!(self.nvml, nvmlDeviceGetGpuInstanceId(self.handle, gi)))?;
        let ci = output(0, |ci| call!(self.nvml, nvmlDeviceGetComputeInstanceId(self.handle, ci)))?;
        Ok((gi, ci))
    }
}
