//! `nvml-work`: calls NVML's functions for memory and processes by name, as programs do, and prints a line for each with what it returned.
#![allow(unsafe_code, reason = "calls C functions of NVML, whose signatures are those of nvml.h")]

use std::{
    error::Error,
    ffi::{CStr, c_char, c_uint},
    process::ExitCode,
    ptr::null_mut,
};

use libloading::Library;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessInfo_t,
    nvmlProcessInfo_v1_t, nvmlReturn_t,
};

/// Most processes of a list that are printed.
const PLACE: usize = 64;
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const INSUFFICIENT_SIZE: nvmlReturn_t = 7;
/// Lists of processes; each has three versions.
const LISTS: [&str; 3] = [
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
];

/// Calls a function of the library by its name.
macro_rules! nvml {
    ($nvml:expr, $name:expr, ($($argument:expr => $ty:ty),* $(,)?)) => {{
        // SAFETY: the type is that of nvml.h, and the arguments are what it demands.
        unsafe {
            let function = $nvml.get::<unsafe extern "C" fn($($ty),*) -> nvmlReturn_t>($name.as_bytes());
            function.map_or(13, |function| function($($argument),*))
        }
    }};
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvml-work: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // SAFETY: loading NVML runs no code of its own.
    let nvml = unsafe { Library::new("libnvidia-ml.so.1") }?;
    println!("before nvmlInit code={}", no_device(&nvml));
    success("nvmlInit_v2", nvml!(nvml, "nvmlInit_v2", ()))?;
    println!("after nvmlInit code={}", no_device(&nvml));
    let mut devices = 0;
    success("nvmlDeviceGetCount_v2", nvml!(nvml, "nvmlDeviceGetCount_v2", (&raw mut devices => *mut c_uint)))?;
    for index in 0..devices {
        let mut gpu: nvmlDevice_t = null_mut();
        let get = "nvmlDeviceGetHandleByIndex_v2";
        success(get, nvml!(nvml, get, (index => c_uint, &raw mut gpu => *mut nvmlDevice_t)))?;
        show(&nvml, gpu);
        for slot in 0..7 {
            let mut instance: nvmlDevice_t = null_mut();
            let get = "nvmlDeviceGetMigDeviceHandleByIndex";
            let code = nvml!(nvml, get, (gpu => nvmlDevice_t, slot => c_uint, &raw mut instance => *mut nvmlDevice_t));
            if code == 0 {
                show(&nvml, instance);
            }
        }
    }
    Ok(())
}

/// Code for a list of processes of no device.
fn no_device(nvml: &Library) -> nvmlReturn_t {
    let mut count = 0;
    nvml!(nvml, LISTS[0], (
        null_mut() => nvmlDevice_t, &raw mut count => *mut c_uint, null_mut() => *mut nvmlProcessInfo_v1_t
    ))
}

fn success(name: &str, code: nvmlReturn_t) -> Result<(), Box<dyn Error>> {
    if code == 0 { Ok(()) } else { Err(format!("{name}: NVML error {code}").into()) }
}

fn show(nvml: &Library, device: nvmlDevice_t) {
    let mut uuid: [c_char; 96] = [0; 96];
    let _ = nvml!(nvml, "nvmlDeviceGetUUID", (device => nvmlDevice_t, uuid.as_mut_ptr() => *mut c_char, 96 => c_uint));
    // SAFETY: the last byte is NUL: NVML writes fewer.
    let uuid = unsafe { CStr::from_ptr(uuid.as_ptr()) }.to_string_lossy().into_owned();
    println!("device {uuid}");
    memory(nvml, device);
    for name in LISTS {
        lists(nvml, device, name);
    }
    details(nvml, device);
    let lists =
        [("nvmlDeviceGetEncoderSessions", 0), ("nvmlDeviceGetFBCSessions", 0), ("nvmlDeviceGetAccountingPids", 0)];
    for (name, mut count) in lists {
        let code =
            nvml!(nvml, name, (device => nvmlDevice_t, &raw mut count => *mut c_uint, null_mut() => *mut c_uint));
        println!("{name} code={code} count={count}");
    }
    let mut count = 0;
    let name = "nvmlDeviceGetProcessUtilization";
    let code = nvml!(nvml, name, (
        device => nvmlDevice_t, null_mut() => *mut c_uint, &raw mut count => *mut c_uint, 0 => u64
    ));
    println!("{name} code={code} count={count}");
}

fn memory(nvml: &Library, device: nvmlDevice_t) {
    let mib = |bytes: u64| bytes >> 20;
    let mut first = nvmlMemory_t { total: 0, free: 0, used: 0 };
    let name = "nvmlDeviceGetMemoryInfo";
    let code = nvml!(nvml, name, (device => nvmlDevice_t, &raw mut first => *mut nvmlMemory_t));
    println!("{name} code={code} total={} used={} free={}", mib(first.total), mib(first.used), mib(first.free));
    let version = version::<nvmlMemory_v2_t>(2);
    let mut second = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
    let name = "nvmlDeviceGetMemoryInfo_v2";
    let code = nvml!(nvml, name, (device => nvmlDevice_t, &raw mut second => *mut nvmlMemory_v2_t));
    println!("{name} code={code} total={} used={} free={}", mib(second.total), mib(second.used), mib(second.free));
}

/// `NVML_STRUCT_VERSION`.
fn version<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(0) | number << 24
}

fn lists(nvml: &Library, device: nvmlDevice_t, name: &str) {
    let mut first = [nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 }; PLACE];
    let found = list(nvml, device, name, &mut first);
    print(name, found.map(|count| processes(first.iter().take(count).map(|p| (p.pid, p.usedGpuMemory)))));
    for version in ["_v2", "_v3"] {
        let empty = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut newer = [empty; PLACE];
        let name = format!("{name}{version}");
        let found = list(nvml, device, &name, &mut newer);
        print(&name, found.map(|count| processes(newer.iter().take(count).map(|p| (p.pid, p.usedGpuMemory)))));
    }
}

/// Asks for the number of processes first, as programs do.
fn list<T>(nvml: &Library, device: nvmlDevice_t, name: &str, entries: &mut [T; PLACE]) -> Result<usize, nvmlReturn_t> {
    let mut count: c_uint = 0;
    let mut call =
        |to: *mut T| nvml!(nvml, name, (device => nvmlDevice_t, &raw mut count => *mut c_uint, to => *mut T));
    let code = match call(null_mut()) {
        INSUFFICIENT_SIZE => call(entries.as_mut_ptr()),
        code => code,
    };
    if code == 0 { Ok(count as usize) } else { Err(code) }
}

fn details(nvml: &Library, device: nvmlDevice_t) {
    for (mode, kind) in ["compute", "graphics", "mps"].into_iter().enumerate() {
        let name = "nvmlDeviceGetRunningProcessDetailList";
        let empty = nvmlProcessDetail_v1_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
            usedGpuCcProtectedMemory: 0,
        };
        let mut entries = [empty; PLACE];
        let mut list = nvmlProcessDetailList_t {
            version: version::<nvmlProcessDetailList_t>(1),
            mode: u32::try_from(mode).unwrap_or(0),
            numProcArrayEntries: u32::try_from(PLACE).unwrap_or(0),
            procArray: entries.as_mut_ptr(),
        };
        let code = nvml!(nvml, name, (device => nvmlDevice_t, &raw mut list => *mut nvmlProcessDetailList_t));
        let count = list.numProcArrayEntries as usize;
        let found = if code == 0 { Ok(count) } else { Err(code) };
        let label = format!("{name} {kind}");
        print(&label, found.map(|count| processes(entries.iter().take(count).map(|p| (p.pid, p.usedGpuMemory)))));
    }
}

/// Each as its id and MiB.
fn processes(entries: impl Iterator<Item = (u32, u64)>) -> String {
    entries.map(|(pid, bytes)| format!(" {pid}:{}", bytes >> 20)).collect::<Vec<_>>().concat()
}

fn print(name: &str, found: Result<String, nvmlReturn_t>) {
    match found {
        Ok(processes) => println!("{name} code=0{processes}"),
        Err(code) => println!("{name} code={code}"),
    }
}
