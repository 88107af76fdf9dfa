//! Devices: which this process sees, and what they are.

use std::ffi::{c_char, c_int, c_uint};

use silicon::{
    Machine,
    machine::CUDA_VERSION,
    visible::{self, View},
};

use crate::{
    abi::{CuResult, Device, Failure, INVALID_VALUE, put},
    process::{self, Identity, cuda},
};

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
const MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
const MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
const POOLS: c_int = 115;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: c_int = 102;

/// The devices in CUDA's order: GPUs without MIG mode, or the first MIG device alone. `CUDA_VISIBLE_DEVICES` chooses by index or UUID.
pub fn visible(machine: &Machine) -> Vec<Identity> {
    let view = View::of(machine, std::env::var_os(visible::VARIABLE));
    let identity = |gpu: &silicon::machine::Gpu, instance, uuid: &str, name: String| Identity {
        gpu: gpu.index,
        instance,
        name,
        uuid: bytes(uuid),
        gpu_uuid: bytes(&gpu.uuid),
        capability: gpu.board.compute_capability,
    };
    let devices = machine.mig_devices();
    let migs = devices.iter().filter(|d| view.gpu(d.gpu.index) && view.mig(d));
    let migs = migs.map(|d| {
        let name = format!("{} MIG {}", d.gpu.board.name, d.profile_name());
        (d.uuid(), identity(d.gpu, Some((d.gi.id, d.ci.id)), &d.uuid(), name))
    });
    let mut migs: Vec<_> = migs.collect();
    let whole = machine.gpus.iter().filter(|gpu| view.gpu(gpu.index) && !gpu.mig && !gpu.lost);
    let whole = whole.map(|gpu| (gpu.uuid.clone(), identity(gpu, None, &gpu.uuid, gpu.board.name.clone())));
    let mut found: Vec<(String, Identity)> = whole.collect();
    if let Ok(chosen) = std::env::var("CUDA_VISIBLE_DEVICES") {
        let all: Vec<_> = found.into_iter().chain(migs).collect();
        let named = |wanted: &str| {
            let by_index = wanted.parse::<usize>().ok().and_then(|index| all.get(index));
            by_index.or_else(|| all.iter().find(|(uuid, _)| uuid == wanted)).map(|(_, identity)| identity.clone())
        };
        return chosen.split(',').map_while(named).collect();
    }
    if !migs.is_empty() {
        migs.truncate(1);
        found = migs;
    }
    found.into_iter().map(|(_, identity)| identity).collect()
}

/// The bytes of a UUID such as `GPU-xxxxxxxx-xxxx-…`.
fn bytes(uuid: &str) -> [u8; 16] {
    let digits: Vec<u8> =
        uuid.bytes().skip(4).filter_map(|b| char::from(b).to_digit(16)).filter_map(|d| d.try_into().ok()).collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
    }
    bytes
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> CuResult {
    let initialized = if flags == 0 { process::initialize(visible) } else { Err(INVALID_VALUE) };
    initialized.map_or_else(|Failure(code)| code, |()| 0)
}

/// Names another version of CUDA that the driver claims: runtimes do not ask for functions that are newer than the driver.
const VERSION_VARIABLE: &str = "NVSIM_CUDA_VERSION";

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CuResult {
    let claimed = std::env::var(VERSION_VARIABLE).ok().and_then(|version| version.parse().ok());
    put(version, claimed.unwrap_or(CUDA_VERSION)).map_or_else(|Failure(code)| code, |()| 0)
}

cuda! {
    fn cuDeviceGetCount(process, count: *mut c_int) {
        put(count, c_int::try_from(process.devices.len()).unwrap_or(c_int::MAX))
    }

    fn cuDeviceGet(process, device: *mut Device, ordinal: c_int) {
        process.device(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetName(process, name: *mut c_char, length: c_int, device: Device) {
        let text = process.device(device)?.identity.name.clone();
        let capacity = usize::try_from(length).map_err(|_| INVALID_VALUE)?.checked_sub(1).ok_or(INVALID_VALUE)?;
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        for (at, byte) in text.bytes().take(capacity).chain([0]).enumerate() {
            // SAFETY: CUDA demands a buffer of `length` bytes, of which the text takes at most one less before its NUL.
            unsafe { name.add(at).write(c_char::from_ne_bytes([byte])) };
        }
        Ok(())
    }

    fn cuDeviceGetUuid(process, uuid: *mut [u8; 16], device: Device) {
        put(uuid, process.device(device)?.identity.gpu_uuid)
    }

    fn cuDeviceGetUuid_v2(process, uuid: *mut [u8; 16], device: Device) {
        put(uuid, process.device(device)?.identity.uuid)
    }

    fn cuDeviceTotalMem_v2(process, bytes: *mut usize, device: Device) {
        process.device(device)?;
        let (total, _) = process.memory(usize::try_from(device).unwrap_or(0))?;
        put(bytes, usize::try_from(total).unwrap_or(usize::MAX))
    }

    fn cuDeviceTotalMem(process, bytes: *mut c_uint, device: Device) {
        process.device(device)?;
        let (total, _) = process.memory(usize::try_from(device).unwrap_or(0))?;
        put(bytes, c_uint::try_from(total).unwrap_or(c_uint::MAX))
    }

    fn cuDeviceGetAttribute(process, value: *mut c_int, attribute: c_int, device: Device) {
        let (major, minor) = process.device(device)?.identity.capability;
        put(value, match attribute {
            MAJOR => major,
            MINOR => minor,
            POOLS | VIRTUAL_MEMORY => 1,
            _ => 0,
        })
    }
}
