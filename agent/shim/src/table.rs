//! All functions that the shim replaces: one declaration exports the function and lists it for [`crate::routing`].
#![allow(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "the functions are documented in cuda.h, and so are the demands on pointers"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::{
    abi::{
        AllocationProperties, Array3dDescriptor, Array3dDescriptor32, ArrayDescriptor, ArrayDescriptor32, CuResult,
        Device, Handle, InstantiateParameters, LaunchConfig, Pointer,
    },
    array, context, ended, graph, graph_memory, pace, plain, pool,
    real::driver,
    routing::{self, Hook},
    view, virtual_memory,
};

/// `fn NAME(ARGUMENT: TYPE, …) |real| BODY`: `real` calls the driver's function with the same arguments.
macro_rules! hooks {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) |$real:ident| $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $ty),*) -> CuResult {
                crate::fork::watch();
                let $real = || driver!($name($($argument => $ty),*));
                $body
            }
        )*

        /// All of them.
        pub static HOOKS: &[Hook] = &[$(Hook {
            // SAFETY: the literal ends with NUL and has no other.
            name: unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
            replacement: || $name as *const c_void,
        }),*];
    };
}

hooks! {
    fn cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize) |real| plain::allocate(pointer, bytes as u64, real);
    fn cuMemAlloc(pointer: *mut c_uint, bytes: c_uint) |real| plain::allocate_32(pointer, bytes.into(), real);
    fn cuMemAllocManaged(pointer: *mut Pointer, bytes: usize, flags: c_uint) |real|
        plain::allocate(pointer, bytes as u64, real);
    fn cuMemAllocPitch_v2(
        pointer: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: c_uint,
    ) |real| plain::allocate_pitch(pointer, pitch, width, height, real);
    fn cuMemAllocPitch(
        pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint,
    ) |real| plain::allocate_32(pointer, u64::from(width).saturating_mul(height.into()), real);
    fn cuMemFree_v2(pointer: Pointer) |real| plain::free(pointer, real);
    fn cuMemFree(pointer: c_uint) |real| plain::free(pointer.into(), real);

    fn cuMemAllocAsync(pointer: *mut Pointer, bytes: usize, stream: Handle) |real|
        pool::allocate(None, (pointer, bytes), (stream, false), real, |allocated| {
            driver!(cuMemFreeAsync(allocated => Pointer, stream => Handle))
        });
    fn cuMemAllocFromPoolAsync(pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) |real|
        pool::allocate(Some(pool), (pointer, bytes), (stream, false), real, |allocated| {
            driver!(cuMemFreeAsync(allocated => Pointer, stream => Handle))
        });
    fn cuMemAllocAsync_ptsz(pointer: *mut Pointer, bytes: usize, stream: Handle) |real|
        pool::allocate(None, (pointer, bytes), (stream, true), real, |allocated| {
            driver!(cuMemFreeAsync_ptsz(allocated => Pointer, stream => Handle))
        });
    fn cuMemAllocFromPoolAsync_ptsz(pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) |real|
        pool::allocate(Some(pool), (pointer, bytes), (stream, true), real, |allocated| {
            driver!(cuMemFreeAsync_ptsz(allocated => Pointer, stream => Handle))
        });
    fn cuMemFreeAsync(pointer: Pointer, stream: Handle) |real| ended::free_on_stream(pointer, real);
    fn cuMemFreeAsync_ptsz(pointer: Pointer, stream: Handle) |real| ended::free_on_stream(pointer, real);
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) |real| pool::after(pool, real);
    fn cuMemPoolCreate(pool: *mut Handle, properties: *const AllocationProperties) |real|
        pool::create(pool, properties, real);
    fn cuMemPoolDestroy(pool: Handle) |real| pool::destroy(pool, real);

    fn cuMemCreate(
        handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong,
    ) |real| virtual_memory::create(handle, bytes as u64, properties, real);
    fn cuMemRelease(handle: u64) |real| virtual_memory::release(handle, real);
    fn cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) |real|
        virtual_memory::map(pointer, handle, real);
    fn cuMemUnmap(pointer: Pointer, bytes: usize) |real| virtual_memory::unmap(pointer, bytes as u64, real);
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) |real| virtual_memory::retain(handle, real);

    fn cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: c_uint, flags: c_ulonglong) |real|
        virtual_memory::keep(Some(handle), real);
    fn cuMulticastBindMem(
        multicast: u64, at: usize, handle: u64, offset: usize, bytes: usize, flags: c_ulonglong,
    ) |real| virtual_memory::keep(Some(handle), real);
    fn cuMemMapArrayAsync(list: *mut c_void, count: c_uint, stream: Handle) |real| virtual_memory::keep(None, real);
    fn cuMemMapArrayAsync_ptsz(list: *mut c_void, count: c_uint, stream: Handle) |real|
        virtual_memory::keep(None, real);

    fn cuArrayCreate_v2(array: *mut Handle, descriptor: *const ArrayDescriptor) |real|
        array::create(array, array::bytes(descriptor), real);
    fn cuArray3DCreate_v2(array: *mut Handle, descriptor: *const Array3dDescriptor) |real|
        array::create(array, array::bytes_3d(descriptor, 1), real);
    fn cuMipmappedArrayCreate(array: *mut Handle, descriptor: *const Array3dDescriptor, levels: c_uint) |real|
        array::create(array, array::bytes_3d(descriptor, levels), real);
    fn cuArrayDestroy(array: Handle) |real| array::destroy(array, real);
    fn cuMipmappedArrayDestroy(array: Handle) |real| array::destroy(array, real);

    fn cuArrayCreate(array: *mut Handle, descriptor: *const ArrayDescriptor32) |real|
        array::create(array, array::bytes_32(descriptor), real);
    fn cuArray3DCreate(array: *mut Handle, descriptor: *const Array3dDescriptor32) |real|
        array::create(array, array::bytes_3d_32(descriptor), real);

    fn cuGraphInstantiate(
        executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, length: usize,
    ) |real| graph::instantiate(executable, graph, real);
    fn cuGraphInstantiate_v2(
        executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, length: usize,
    ) |real| graph::instantiate(executable, graph, real);
    fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: c_ulonglong) |real|
        graph::instantiate(executable, graph, real);
    fn cuGraphInstantiateWithParams(
        executable: *mut Handle, graph: Handle, parameters: *mut InstantiateParameters,
    ) |real| graph::instantiate_with(executable, graph, parameters, real);
    fn cuGraphInstantiateWithParams_ptsz(
        executable: *mut Handle, graph: Handle, parameters: *mut InstantiateParameters,
    ) |real| graph::instantiate_with(executable, graph, parameters, real);
    fn cuGraphExecDestroy(executable: Handle) |real| graph::destroy(executable, real);
    fn cuGraphUpload(executable: Handle, stream: Handle) |real| graph::upload(executable, stream, false, real);
    fn cuGraphUpload_ptsz(executable: Handle, stream: Handle) |real| graph::upload(executable, stream, true, real);
    fn cuDeviceGraphMemTrim(device: Device) |real| graph_memory::trim_by_program(real);

    fn cuCtxCreate(context: *mut Handle, flags: c_uint, device: Device) |real| context::create(device, real);
    fn cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: Device) |real| context::create(device, real);
    fn cuCtxCreate_v3(
        context: *mut Handle, parameters: *mut c_void, count: c_int, flags: c_uint, device: Device,
    ) |real| context::create(device, real);
    fn cuCtxCreate_v4(context: *mut Handle, parameters: *mut c_void, flags: c_uint, device: Device) |real|
        context::create(device, real);
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: Device) |real| context::create(device, real);
    fn cuCtxDestroy(context: Handle) |real| pace::destroy(|| context::destroy(context, real));
    fn cuCtxDestroy_v2(context: Handle) |real| pace::destroy(|| context::destroy(context, real));
    fn cuDevicePrimaryCtxRelease(device: Device) |real| pace::release(device, || context::end_primary(device, real));
    fn cuDevicePrimaryCtxRelease_v2(device: Device) |real| pace::release(device, || context::end_primary(device, real));
    fn cuDevicePrimaryCtxReset(device: Device) |real| pace::destroy(|| context::end_primary(device, real));
    fn cuDevicePrimaryCtxReset_v2(device: Device) |real| pace::destroy(|| context::end_primary(device, real));

    fn cuLaunchKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |real| pace::launch(stream, false, real);
    fn cuLaunchCooperativeKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, arguments: *mut *mut c_void,
    ) |real| pace::launch(stream, false, real);
    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |real| pace::launch(pace::stream_of(config), false, real);
    fn cuGraphLaunch(graph: Handle, stream: Handle) |real|
        pace::launch_graph(stream, false, || graph::launch(graph, stream, false, real));
    fn cuStreamSynchronize(stream: Handle) |real| pace::synchronize(real);
    fn cuLaunchKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |real| pace::launch(stream, true, real);
    fn cuLaunchCooperativeKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, arguments: *mut *mut c_void,
    ) |real| pace::launch(stream, true, real);
    fn cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |real| pace::launch(pace::stream_of(config), true, real);
    fn cuGraphLaunch_ptsz(graph: Handle, stream: Handle) |real|
        pace::launch_graph(stream, true, || graph::launch(graph, stream, true, real));
    fn cuStreamSynchronize_ptsz(stream: Handle) |real| pace::synchronize(real);
    fn cuLaunchCooperativeKernelMultiDevice(list: *mut c_void, count: c_uint, flags: c_uint) |real|
        pace::launch(std::ptr::null_mut(), false, real);
    fn cuLaunch(function: Handle) |real| pace::launch(std::ptr::null_mut(), false, real);
    fn cuLaunchGrid(function: Handle, width: c_int, height: c_int) |real|
        pace::launch(std::ptr::null_mut(), false, real);
    fn cuLaunchGridAsync(function: Handle, width: c_int, height: c_int, stream: Handle) |real|
        pace::launch(stream, false, real);
    fn cuMemcpy(to: Pointer, from: Pointer, bytes: usize) |real| pace::synchronize(real);
    fn cuMemcpy_ptds(to: Pointer, from: Pointer, bytes: usize) |real| pace::synchronize(real);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: Pointer, bytes: usize) |real| pace::synchronize(real);
    fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: Pointer, bytes: usize) |real| pace::synchronize(real);
    fn cuMemcpyHtoD_v2(to: Pointer, from: *const c_void, bytes: usize) |real| pace::synchronize(real);
    fn cuMemcpyHtoD_v2_ptds(to: Pointer, from: *const c_void, bytes: usize) |real| pace::synchronize(real);
    fn cuStreamQuery(stream: Handle) |real| pace::synchronize(real);
    fn cuStreamQuery_ptsz(stream: Handle) |real| pace::synchronize(real);
    fn cuEventQuery(event: Handle) |real| pace::synchronize(real);
    fn cuCtxSynchronize() |real| pace::synchronize(real);
    fn cuCtxSynchronize_v2(context: Handle) |real| pace::synchronize(real);
    fn cuEventSynchronize(event: Handle) |real| pace::synchronize(real);
    fn cuStreamDestroy(stream: Handle) |real| pace::destroy_stream(stream, real);
    fn cuStreamDestroy_v2(stream: Handle) |real| pace::destroy_stream(stream, real);

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real| view::memory(free, total, real);
    fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) |real| view::memory(free, total, real);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) |real| view::total(bytes, device, real);
    fn cuDeviceTotalMem(bytes: *mut c_uint, device: Device) |real| view::total(bytes, device, real);

    fn cuGetProcAddress(symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64) |real|
        routing::route(HOOKS, function, real);
    fn cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64, status: *mut c_int,
    ) |real| routing::route(HOOKS, function, real);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn function_is_in_the_table_once() {
        let names: BTreeSet<_> = HOOKS.iter().map(|hook| hook.name).collect();
        assert_eq!(names.len(), HOOKS.len());
    }
}
