//! Devices: finding them, and what they are.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAddressingMode_t, nvmlDeviceAttributes_t, nvmlPciInfo_t, nvmlPciInfoExt_t,
};
use silicon::board::Engines;
use silicon::machine::{Gpu, MigDevice};
use silicon::{Code, ids};

use crate::{
    call::{
        context::Context,
        handle::{self, Device},
        nvml,
        out::{field, get, put, put_text, text},
    },
    mig::profile::version,
};

/// `NVML_BRAND_NVIDIA`.
const BRAND: c_uint = 14;
/// Class of a 3D controller.
const PCI_CLASS: (u32, u32) = (0x03, 0x02);

impl Context {
    /// The GPUs that this process sees, in the order of their indices.
    pub fn visible(&self) -> Vec<&Gpu> {
        self.machine.gpus.iter().filter(|g| self.view.gpu(g.index)).collect()
    }

    fn by_index(&self, index: u32) -> Result<&Gpu, Code> {
        let gpu = *self.visible().get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        self.machine.gpu(gpu.index)
    }

    fn named(&self, wanted: impl Fn(&Gpu) -> bool) -> Result<&Gpu, Code> {
        let gpu = self.visible().into_iter().find(|g| wanted(g)).ok_or(Code::NOT_FOUND)?;
        self.machine.gpu(gpu.index)
    }

    fn by_uuid(&self, uuid: &str) -> Result<nvmlDevice_t, Code> {
        if uuid.starts_with("MIG-") {
            let devices = self.machine.mig_devices();
            let device = devices.iter().find(|d| d.uuid() == uuid).ok_or(Code::NOT_FOUND)?;
            let seen = self.view.gpu(device.gpu.index) && self.view.mig(device);
            return if seen { Ok(handle::of_mig(device)) } else { Err(Code::NOT_FOUND) };
        }
        self.named(|gpu| gpu.uuid == uuid).map(handle::of_gpu)
    }
}

/// PCI address and ids of a GPU.
pub fn pci_of(gpu: &Gpu) -> nvmlPciInfo_t {
    let bus = ids::pci_bus(gpu.index);
    nvmlPciInfo_t {
        busIdLegacy: field(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        pciDeviceId: gpu.board.pci_device_id,
        pciSubSystemId: SUBSYSTEM,
        busId: field(&ids::pci_bus_id(gpu.index)),
    }
}

/// Subsystem id of NVIDIA's own boards.
const SUBSYSTEM: u32 = 0x1463_10DE;

/// Bus number of a PCI address such as `0000:07:00.0`, if it is one that GPUs can have.
fn bus_of(address: &str) -> Option<u32> {
    let mut parts = address.split([':', '.']);
    let mut next = || u32::from_str_radix(parts.next()?, 16).ok();
    let (domain, bus, device, function) = (next()?, next()?, next()?, next().unwrap_or(0));
    (domain == 0 && device == 0 && function == 0).then_some(bus)
}

nvml! {
    fn nvmlDeviceGetCount_v2(ctx, count: *mut c_uint) {
        put(count, u32::try_from(ctx.visible().len()).unwrap_or(0))
    }

    fn nvmlDeviceGetCount(ctx, count: *mut c_uint) {
        put(count, u32::try_from(ctx.visible().len()).unwrap_or(0))
    }

    fn nvmlDeviceGetHandleByIndex_v2(ctx, index: c_uint, device: *mut nvmlDevice_t) {
        put(device, handle::of_gpu(ctx.by_index(index)?))
    }

    fn nvmlDeviceGetHandleByIndex(ctx, index: c_uint, device: *mut nvmlDevice_t) {
        put(device, handle::of_gpu(ctx.by_index(index)?))
    }

    fn nvmlDeviceGetHandleByUUID(ctx, uuid: *const c_char, device: *mut nvmlDevice_t) {
        put(device, ctx.by_uuid(text(uuid)?)?)
    }

    fn nvmlDeviceGetHandleBySerial(ctx, serial: *const c_char, device: *mut nvmlDevice_t) {
        let wanted = text(serial)?;
        put(device, handle::of_gpu(ctx.named(|gpu| serial_of(gpu) == wanted)?))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(ctx, address: *const c_char, device: *mut nvmlDevice_t) {
        let bus = bus_of(text(address)?).ok_or(Code::INVALID_ARGUMENT)?;
        put(device, handle::of_gpu(ctx.named(|gpu| ids::pci_bus(gpu.index) == bus)?))
    }

    fn nvmlDeviceGetHandleByPciBusId(ctx, address: *const c_char, device: *mut nvmlDevice_t) {
        let bus = bus_of(text(address)?).ok_or(Code::INVALID_ARGUMENT)?;
        put(device, handle::of_gpu(ctx.named(|gpu| ids::pci_bus(gpu.index) == bus)?))
    }

    fn nvmlDeviceGetIndex[device](ctx, device: nvmlDevice_t, index: *mut c_uint) {
        match ctx.device(device)? {
            Device::Mig(device) => put(index, device.ci.mig_index),
            Device::Gpu(gpu) => {
                let place = ctx.visible().iter().position(|g| g.index == gpu.index).ok_or(Code::NOT_FOUND)?;
                put(index, u32::try_from(place).unwrap_or(0))
            }
        }
    }

    fn nvmlDeviceGetMinorNumber[device](ctx, device: nvmlDevice_t, minor: *mut c_uint) {
        put(minor, ctx.device(device)?.gpu().index)
    }

    fn nvmlDeviceGetName[device](ctx, device: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        put_text(name, length, &name_of(ctx.device(device)?))
    }

    fn nvmlDeviceGetUUID[device](ctx, device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) {
        match ctx.device(device)? {
            Device::Gpu(gpu) => put_text(uuid, length, &gpu.uuid),
            Device::Mig(device) => put_text(uuid, length, &device.uuid()),
        }
    }

    fn nvmlDeviceGetSerial[device](ctx, device: nvmlDevice_t, serial: *mut c_char, length: c_uint) {
        put_text(serial, length, &serial_of(ctx.gpu(device)?))
    }

    fn nvmlDeviceGetPciInfo_v3[device](ctx, device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) {
        put(pci, pci_of(ctx.device(device)?.gpu()))
    }

    fn nvmlDeviceGetPciInfoExt[device](ctx, device: nvmlDevice_t, pci: *mut nvmlPciInfoExt_t) {
        let gpu = ctx.device(device)?.gpu();
        version(get(pci)?.version, size_of::<nvmlPciInfoExt_t>(), 1)?;
        let old = pci_of(gpu);
        put(pci, nvmlPciInfoExt_t {
            version: get(pci)?.version,
            domain: old.domain,
            bus: old.bus,
            device: old.device,
            pciDeviceId: old.pciDeviceId,
            pciSubSystemId: old.pciSubSystemId,
            baseClass: PCI_CLASS.0,
            subClass: PCI_CLASS.1,
            busId: old.busId,
        })
    }

    fn nvmlDeviceGetBrand[device](ctx, device: nvmlDevice_t, brand: *mut c_uint) {
        ctx.device(device)?;
        put(brand, BRAND)
    }

    fn nvmlDeviceGetArchitecture[device](ctx, device: nvmlDevice_t, arch: *mut c_uint) {
        put(arch, ctx.device(device)?.gpu().board.arch.nvml())
    }

    fn nvmlDeviceGetCudaComputeCapability[device](
        ctx, device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int,
    ) {
        let capability = ctx.device(device)?.gpu().board.compute_capability;
        put(major, capability.0)?;
        put(minor, capability.1)
    }

    fn nvmlDeviceGetAttributes_v2[device](ctx, device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t) {
        put(attributes, attributes_of(&ctx.mig_device(device).map_err(|_| Code::NOT_SUPPORTED)?)?)
    }

    fn nvmlDeviceGetVirtualizationMode[device](ctx, device: nvmlDevice_t, mode: *mut c_uint) {
        ctx.device(device)?;
        put(mode, ctx.machine.virtualization.nvml())
    }

    fn nvmlDeviceGetAddressingMode[device](
        ctx, device: nvmlDevice_t, mode: *mut nvmlDeviceAddressingMode_t,
    ) {
        ctx.gpu(device)?;
        let given = get(mode)?.version;
        version(given, size_of::<nvmlDeviceAddressingMode_t>(), 1)?;
        put(mode, nvmlDeviceAddressingMode_t { version: given, value: 0 })
    }

    fn nvmlDeviceGetMultiGpuBoard[device](ctx, device: nvmlDevice_t, multi: *mut c_uint) {
        ctx.gpu(device)?;
        put(multi, 0)
    }
}

/// Serial number on the board.
fn serial_of(gpu: &Gpu) -> String {
    format!("16510210{:05}", gpu.index + 1)
}

/// Its product name, with the profile of a MIG device.
fn name_of(device: Device<'_>) -> String {
    match device {
        Device::Gpu(gpu) => gpu.board.name.clone(),
        Device::Mig(device) => format!("{} MIG {}", device.gpu.board.name, device.profile_name()),
    }
}

/// Engines, slices and memory of a MIG device.
fn attributes_of(device: &MigDevice<'_>) -> Result<nvmlDeviceAttributes_t, Code> {
    let profile = device.gpu.profile_of(device.gi)?;
    let compute = device.gpu.compute_profile(device.gi, device.ci)?;
    let Engines { copy_engines, decoders, encoders, jpeg, ofa, .. } = profile.engines;
    Ok(nvmlDeviceAttributes_t {
        multiprocessorCount: compute.sm,
        sharedCopyEngineCount: copy_engines,
        sharedDecoderCount: decoders,
        sharedEncoderCount: encoders,
        sharedJpegCount: jpeg,
        sharedOfaCount: ofa,
        gpuInstanceSliceCount: profile.slices,
        computeInstanceSliceCount: compute.slices,
        memorySizeMB: profile.memory_mib,
    })
}
