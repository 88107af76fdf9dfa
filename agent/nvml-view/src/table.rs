//! All functions that the view replaces.
#![allow(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "the functions are documented in nvml.h, and so are the demands on pointers"
)]

use std::ffi::{c_uint, c_ulonglong};

use crate::{
    abi::{Code, Device, Memory, MemoryV2, ProcessDetailList, ProcessV1, ProcessV2, ProcessesUtilization, Untyped},
    memory, processes,
};

/// Exports functions. The body has the call of the driver's function of the same name with the same arguments as `$real`.
macro_rules! view {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) | $real:ident | $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $ty),*) -> Code {
            let $real = || crate::real::driver!($name($($argument => $ty),*));
            $body
        }
    )*};
}

view! {
    fn nvmlDeviceGetMemoryInfo(device: Device, to: *mut Memory) |real| memory::of(device, to, real);
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: *mut MemoryV2) |real| memory::of(device, to, real);

    fn nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut c_uint, to: *mut ProcessV1) |real|
        processes::compute(device, count, to, real);
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut c_uint, to: *mut ProcessV2) |real|
        processes::compute(device, count, to, real);
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, to: *mut ProcessV2) |real|
        processes::compute(device, count, to, real);
    fn nvmlDeviceGetRunningProcessDetailList(device: Device, to: *mut ProcessDetailList) |real|
        processes::details(device, to, real);

    fn nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut c_uint, to: *mut ProcessV1) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut c_uint, to: *mut ProcessV2) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, to: *mut ProcessV2) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut c_uint, to: *mut ProcessV1) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut c_uint, to: *mut ProcessV2) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut c_uint, to: *mut ProcessV2) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetEncoderSessions(device: Device, count: *mut c_uint, to: Untyped) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetFBCSessions(device: Device, count: *mut c_uint, to: Untyped) |real|
        processes::none(device, count, real);

    fn nvmlDeviceGetProcessUtilization(device: Device, to: Untyped, count: *mut c_uint, since: c_ulonglong) |real|
        processes::samples(device, count, real);
    fn nvmlDeviceGetProcessesUtilizationInfo(device: Device, to: *mut ProcessesUtilization) |real|
        processes::samples_of_struct(device, to, real);
    fn nvmlDeviceGetAccountingPids(device: Device, count: *mut c_uint, to: *mut c_uint) |real|
        processes::none(device, count, real);
    fn nvmlDeviceGetAccountingStats(device: Device, pid: c_uint, to: Untyped) |real|
        processes::unknown(device, real);
    // the second argument is as wide as a register, so that the call passes a number or a pointer
    fn nvmlDeviceGetAccountingStats_v2(device: Device, second: usize, third: usize) |real|
        processes::unknown(device, real);
}
