//! The library's C ABI: every symbol is there, and structs are checked by their versions.

use crate::common::{Sim, gpu};
use nvml_wrapper_sys::bindings::*;

fn version(size: usize, number: u32) -> u32 {
    u32::try_from(size).unwrap() | number << 24
}

#[test]
fn library_exports_every_symbol() {
    let sim = Sim::new("a100-80gb");
    // SAFETY: loading the library runs no initialiser of its own.
    let library = unsafe { libloading::Library::new(sim.library()) }.unwrap();
    let missing: Vec<&str> = include_str!("symbols.txt")
        .lines()
        // SAFETY: the symbol is only looked up, never called.
        .filter(|name| unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn calls_require_initialisation() {
    let sim = Sim::new("a100-80gb");
    // SAFETY: as above.
    let lib = unsafe { NvmlLib::new(sim.library()) }.unwrap();
    let mut count = 0;
    // SAFETY: NVML's signatures, pointers to valid values.
    unsafe {
        assert_eq!(lib.nvmlDeviceGetCount_v2(&raw mut count), 1);
        assert_eq!(lib.nvmlInit_v2(), 0);
        assert_eq!(lib.nvmlInit_v2(), 0);
        assert_eq!(lib.nvmlShutdown(), 0);
        assert_eq!((lib.nvmlDeviceGetCount_v2(&raw mut count), count), (0, 2));
        assert_eq!(lib.nvmlShutdown(), 0);
        assert_eq!(lib.nvmlDeviceGetCount_v2(&raw mut count), 1);
        assert_eq!(lib.nvmlShutdown(), 1);
    }
}

#[test]
fn missing_state_returns_driver_not_loaded() {
    let sim = Sim::new("a100-80gb");
    std::fs::remove_dir_all(sim.store.dir()).unwrap();
    // SAFETY: as above.
    let lib = unsafe { NvmlLib::new(sim.library()) }.unwrap();
    // SAFETY: the signature is NVML's.
    assert_eq!(unsafe { lib.nvmlInit_v2() }, 9);
}

#[test]
fn unsimulated_functions_return_not_supported() {
    let sim = Sim::new("a100-80gb");
    let lib = sim.raw();
    let mut speed = 0;
    // SAFETY: NVML's signature, a pointer to a valid value.
    assert_eq!(unsafe { lib.nvmlDeviceGetFanSpeed(gpu(&lib, 0), &raw mut speed) }, 3);
}

#[test]
fn profile_struct_follows_the_version_field() {
    let sim = Sim::new("a100-80gb");
    let lib = sim.raw();
    let device = gpu(&lib, 0);
    // SAFETY: plain data, for which zeroes are valid.
    let mut v2: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut v3: nvmlGpuInstanceProfileInfo_v3_t = unsafe { std::mem::zeroed() };
    v2.version = version(size_of_val(&v2), 2);
    v3.version = version(size_of_val(&v3), 3);
    // SAFETY: NVML's signature; the version selects the struct.
    unsafe {
        assert_eq!(lib.nvmlDeviceGetGpuInstanceProfileInfoV(device, 2, &raw mut v2), 0);
        assert_eq!(lib.nvmlDeviceGetGpuInstanceProfileInfoV(device, 2, (&raw mut v3).cast()), 0);
    }
    // SAFETY: the library writes NUL-terminated names.
    let name = |field: *const _| unsafe { std::ffi::CStr::from_ptr(field) }.to_str().unwrap();
    assert_eq!((v2.id, v2.memorySizeMB, name(v2.name.as_ptr())), (9, 40448, "MIG 3g.40gb"));
    assert_eq!((v3.id, v3.memorySizeMB, name(v3.name.as_ptr())), (9, 40448, "MIG 3g.40gb"));
    v2.version = version(size_of_val(&v2), 7);
    // SAFETY: as above.
    assert_eq!(unsafe { lib.nvmlDeviceGetGpuInstanceProfileInfoV(device, 2, &raw mut v2) }, 25);
}

#[test]
fn missing_profile_is_not_supported_and_unknown_profile_invalid() {
    let sim = Sim::new("a100-80gb");
    let lib = sim.raw();
    // SAFETY: plain data, for which zeroes are valid.
    let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: NVML's signature, a pointer to a valid struct.
    let mut ask = |profile| unsafe { lib.nvmlDeviceGetGpuInstanceProfileInfo(gpu(&lib, 0), profile, &raw mut info) };
    assert_eq!((ask(0), ask(5), ask(17), ask(18)), (0, 3, 3, 2));
}

#[test]
fn placements_are_counted_without_buffer_and_listed_with_one() {
    let sim = Sim::new("h100-80gb");
    let lib = sim.raw();
    let device = gpu(&lib, 0);
    let mut count = 0;
    let mut list = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 8];
    // SAFETY: NVML's signature; without a buffer only the count is written, else at most `count` items.
    unsafe {
        let null = std::ptr::null_mut();
        assert_eq!(lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, 15, null, &raw mut count), 0);
        assert_eq!(count, 4);
        let mut short = 3;
        let to = list.as_mut_ptr();
        assert_eq!(lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, 15, to, &raw mut short), 7);
        assert_eq!(lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, 15, to, &raw mut count), 0);
    }
    assert_eq!(list.map(|p| p.start)[..4], [0, 2, 4, 6]);
}

#[test]
fn handle_of_destroyed_instance_is_invalid() {
    let sim = Sim::new("h100-80gb");
    sim.mig(0);
    let lib = sim.raw();
    let device = gpu(&lib, 0);
    let at = nvmlGpuInstancePlacement_t { start: 2, size: 1 };
    let create = || {
        let mut gi = std::ptr::null_mut();
        // SAFETY: NVML's signature, pointers to valid values.
        assert_eq!(unsafe { lib.nvmlDeviceCreateGpuInstanceWithPlacement(device, 19, &raw const at, &raw mut gi) }, 0);
        gi
    };
    let first = create();
    // SAFETY: plain data, for which zeroes are valid.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: NVML's signatures, handles of this library.
    unsafe {
        assert_eq!(lib.nvmlGpuInstanceDestroy(first), 0);
        let second = create();
        assert_eq!(lib.nvmlGpuInstanceGetInfo(first, &raw mut info), 6);
        assert_eq!(lib.nvmlGpuInstanceGetInfo(second, &raw mut info), 0);
    }
    assert_eq!((info.id, info.profileId, info.placement.start), (9, 19, 2));
}

#[test]
fn instance_and_mig_device_are_found_by_id() {
    let sim = Sim::new("h100-80gb");
    sim.mig(0);
    let id = sim.partition(0, 9);
    let lib = sim.raw();
    let device = gpu(&lib, 0);
    let (mut gi, mut ci) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: plain data, for which zeroes are valid.
    let mut info: nvmlComputeInstanceInfo_t = unsafe { std::mem::zeroed() };
    let (mut gi_id, mut ci_id, mut is_mig) = (99, 99, 0);
    // SAFETY: NVML's signatures, handles of this library, pointers to valid values.
    unsafe {
        assert_eq!(lib.nvmlDeviceGetGpuInstanceById(device, id, &raw mut gi), 0);
        assert_eq!(lib.nvmlDeviceGetGpuInstanceById(device, 14, &raw mut gi), 6);
        assert_eq!(lib.nvmlGpuInstanceGetComputeInstanceById(gi, 0, &raw mut ci), 0);
        assert_eq!(lib.nvmlComputeInstanceGetInfo_v2(ci, &raw mut info), 0);
        assert_eq!(lib.nvmlDeviceIsMigDeviceHandle(info.device, &raw mut is_mig), 0);
        assert_eq!(lib.nvmlDeviceGetGpuInstanceId(info.device, &raw mut gi_id), 0);
        assert_eq!(lib.nvmlDeviceGetComputeInstanceId(info.device, &raw mut ci_id), 0);
        // MIG is off on the other GPU.
        assert_eq!(lib.nvmlDeviceGetGpuInstanceById(gpu(&lib, 1), 0, &raw mut gi), 3);
    }
    assert_eq!((is_mig, gi_id, ci_id), (1, id, 0));
}

#[test]
fn every_return_code_has_a_message() {
    let sim = Sim::new("a100-80gb");
    let lib = sim.raw();
    // SAFETY: the function takes any number and returns a static string.
    let text =
        |code| unsafe { std::ffi::CStr::from_ptr(lib.nvmlErrorString.as_ref().unwrap()(code)) }.to_str().unwrap();
    assert_eq!(text(19), "In use by another client");
    assert_eq!(text(23), "Insufficient Resources");
    assert_eq!(text(12345), "Unknown Error");
}
