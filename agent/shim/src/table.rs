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
    routing::{self, Hook},
    view, virtual_memory,
};

macro_rules! hooks {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) => $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $ty),*) -> CuResult {
                crate::fork::watch();
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

/// The driver's function with these arguments.
macro_rules! real {
    ($name:ident($($argument:ident: $ty:ty),* $(,)?)) => {
        crate::real::driver!($name($($argument => $ty),*))
    };
}

hooks! {
    fn cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize) =>
        plain::allocate(pointer, bytes as u64, || real!(cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize)));
    fn cuMemAlloc(pointer: *mut c_uint, bytes: c_uint) =>
        plain::allocate_32(pointer, bytes.into(), || real!(cuMemAlloc(pointer: *mut c_uint, bytes: c_uint)));
    fn cuMemAllocManaged(pointer: *mut Pointer, bytes: usize, flags: c_uint) => plain::allocate(pointer, bytes as u64, || {
        real!(cuMemAllocManaged(pointer: *mut Pointer, bytes: usize, flags: c_uint))
    });
    fn cuMemAllocPitch_v2(pointer: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: c_uint) =>
        plain::allocate_pitch(pointer, pitch, width, height, || real!(cuMemAllocPitch_v2(
            pointer: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: c_uint
        )));
    fn cuMemAllocPitch(pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) =>
        plain::allocate_32(pointer, u64::from(width).saturating_mul(height.into()), || real!(cuMemAllocPitch(
            pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint
        )));
    fn cuMemFree_v2(pointer: Pointer) => plain::free(pointer, || real!(cuMemFree_v2(pointer: Pointer)));
    fn cuMemFree(pointer: c_uint) => plain::free(pointer.into(), || real!(cuMemFree(pointer: c_uint)));

    fn cuMemAllocAsync(pointer: *mut Pointer, bytes: usize, stream: Handle) => pool::allocate(
        None,
        (pointer, bytes),
        (stream, false),
        || real!(cuMemAllocAsync(pointer: *mut Pointer, bytes: usize, stream: Handle)),
        |allocated| real!(cuMemFreeAsync(allocated: Pointer, stream: Handle)),
    );
    fn cuMemAllocFromPoolAsync(pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) => pool::allocate(
        Some(pool),
        (pointer, bytes),
        (stream, false),
        || real!(cuMemAllocFromPoolAsync(pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle)),
        |allocated| real!(cuMemFreeAsync(allocated: Pointer, stream: Handle)),
    );
    fn cuMemAllocAsync_ptsz(pointer: *mut Pointer, bytes: usize, stream: Handle) => pool::allocate(
        None,
        (pointer, bytes),
        (stream, true),
        || real!(cuMemAllocAsync_ptsz(pointer: *mut Pointer, bytes: usize, stream: Handle)),
        |allocated| real!(cuMemFreeAsync_ptsz(allocated: Pointer, stream: Handle)),
    );
    fn cuMemAllocFromPoolAsync_ptsz(pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) => pool::allocate(
        Some(pool),
        (pointer, bytes),
        (stream, true),
        || real!(cuMemAllocFromPoolAsync_ptsz(pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle)),
        |allocated| real!(cuMemFreeAsync_ptsz(allocated: Pointer, stream: Handle)),
    );
    fn cuMemFreeAsync(pointer: Pointer, stream: Handle) =>
        ended::free_on_stream(pointer, || real!(cuMemFreeAsync(pointer: Pointer, stream: Handle)));
    fn cuMemFreeAsync_ptsz(pointer: Pointer, stream: Handle) =>
        ended::free_on_stream(pointer, || real!(cuMemFreeAsync_ptsz(pointer: Pointer, stream: Handle)));
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) => pool::after(pool, || real!(cuMemPoolTrimTo(pool: Handle, keep: usize)));
    fn cuMemPoolCreate(pool: *mut Handle, properties: *const AllocationProperties) => pool::create(pool, properties, || {
        real!(cuMemPoolCreate(pool: *mut Handle, properties: *const AllocationProperties))
    });
    fn cuMemPoolDestroy(pool: Handle) => pool::destroy(pool, || real!(cuMemPoolDestroy(pool: Handle)));

    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong) =>
        virtual_memory::create(handle, bytes as u64, properties, || real!(cuMemCreate(
            handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong
        )));
    fn cuMemRelease(handle: u64) => virtual_memory::release(handle, || real!(cuMemRelease(handle: u64)));
    fn cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) =>
        virtual_memory::map(pointer, handle, || real!(cuMemMap(
            pointer: Pointer, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong
        )));
    fn cuMemUnmap(pointer: Pointer, bytes: usize) =>
        virtual_memory::unmap(pointer, bytes as u64, || real!(cuMemUnmap(pointer: Pointer, bytes: usize)));
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) => virtual_memory::retain(handle, || {
        real!(cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void))
    });

    fn cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: c_uint, flags: c_ulonglong) =>
        virtual_memory::keep(Some(handle), || {
            real!(cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: c_uint, flags: c_ulonglong))
        });
    fn cuMulticastBindMem(multicast: u64, at: usize, handle: u64, offset: usize, bytes: usize, flags: c_ulonglong) =>
        virtual_memory::keep(Some(handle), || real!(cuMulticastBindMem(
            multicast: u64, at: usize, handle: u64, offset: usize, bytes: usize, flags: c_ulonglong
        )));
    fn cuMemMapArrayAsync(list: *mut c_void, count: c_uint, stream: Handle) =>
        virtual_memory::keep(None, || real!(cuMemMapArrayAsync(list: *mut c_void, count: c_uint, stream: Handle)));
    fn cuMemMapArrayAsync_ptsz(list: *mut c_void, count: c_uint, stream: Handle) =>
        virtual_memory::keep(None, || real!(cuMemMapArrayAsync_ptsz(list: *mut c_void, count: c_uint, stream: Handle)));

    fn cuArrayCreate_v2(array: *mut Handle, descriptor: *const ArrayDescriptor) =>
        array::create(array, array::bytes(descriptor), || real!(cuArrayCreate_v2(
            array: *mut Handle, descriptor: *const ArrayDescriptor
        )));
    fn cuArray3DCreate_v2(array: *mut Handle, descriptor: *const Array3dDescriptor) =>
        array::create(array, array::bytes_3d(descriptor, 1), || real!(cuArray3DCreate_v2(
            array: *mut Handle, descriptor: *const Array3dDescriptor
        )));
    fn cuMipmappedArrayCreate(array: *mut Handle, descriptor: *const Array3dDescriptor, levels: c_uint) =>
        array::create(array, array::bytes_3d(descriptor, levels), || real!(cuMipmappedArrayCreate(
            array: *mut Handle, descriptor: *const Array3dDescriptor, levels: c_uint
        )));
    fn cuArrayDestroy(array: Handle) => array::destroy(array, || real!(cuArrayDestroy(array: Handle)));
    fn cuMipmappedArrayDestroy(array: Handle) => array::destroy(array, || real!(cuMipmappedArrayDestroy(array: Handle)));

    fn cuArrayCreate(array: *mut Handle, descriptor: *const ArrayDescriptor32) =>
        array::create(array, array::bytes_32(descriptor), || real!(cuArrayCreate(
            array: *mut Handle, descriptor: *const ArrayDescriptor32
        )));
    fn cuArray3DCreate(array: *mut Handle, descriptor: *const Array3dDescriptor32) =>
        array::create(array, array::bytes_3d_32(descriptor), || real!(cuArray3DCreate(
            array: *mut Handle, descriptor: *const Array3dDescriptor32
        )));

    fn cuGraphInstantiate(executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, length: usize) =>
        graph::instantiate(executable, graph, || real!(cuGraphInstantiate(
            executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, length: usize
        )));
    fn cuGraphInstantiate_v2(executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, length: usize) =>
        graph::instantiate(executable, graph, || real!(cuGraphInstantiate_v2(
            executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, length: usize
        )));
    fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: c_ulonglong) =>
        graph::instantiate(executable, graph, || real!(cuGraphInstantiateWithFlags(
            executable: *mut Handle, graph: Handle, flags: c_ulonglong
        )));
    fn cuGraphInstantiateWithParams(executable: *mut Handle, graph: Handle, parameters: *mut InstantiateParameters) =>
        graph::instantiate_with(executable, graph, parameters, || real!(cuGraphInstantiateWithParams(
            executable: *mut Handle, graph: Handle, parameters: *mut InstantiateParameters
        )));
    fn cuGraphInstantiateWithParams_ptsz(executable: *mut Handle, graph: Handle, parameters: *mut InstantiateParameters) =>
        graph::instantiate_with(executable, graph, parameters, || real!(cuGraphInstantiateWithParams_ptsz(
            executable: *mut Handle, graph: Handle, parameters: *mut InstantiateParameters
        )));
    fn cuGraphExecDestroy(executable: Handle) =>
        graph::destroy(executable, || real!(cuGraphExecDestroy(executable: Handle)));
    fn cuGraphUpload(executable: Handle, stream: Handle) =>
        graph::upload(executable, stream, false, || real!(cuGraphUpload(executable: Handle, stream: Handle)));
    fn cuGraphUpload_ptsz(executable: Handle, stream: Handle) =>
        graph::upload(executable, stream, true, || real!(cuGraphUpload_ptsz(executable: Handle, stream: Handle)));
    fn cuDeviceGraphMemTrim(device: Device) =>
        graph_memory::trim_by_program(|| real!(cuDeviceGraphMemTrim(device: Device)));

    fn cuCtxCreate(context: *mut Handle, flags: c_uint, device: Device) =>
        context::create(device, || real!(cuCtxCreate(context: *mut Handle, flags: c_uint, device: Device)));
    fn cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: Device) =>
        context::create(device, || real!(cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: Device)));
    fn cuCtxCreate_v3(context: *mut Handle, parameters: *mut c_void, count: c_int, flags: c_uint, device: Device) =>
        context::create(device, || real!(cuCtxCreate_v3(context: *mut Handle, parameters: *mut c_void, count: c_int, flags: c_uint, device: Device)));
    fn cuCtxCreate_v4(context: *mut Handle, parameters: *mut c_void, flags: c_uint, device: Device) =>
        context::create(device, || real!(cuCtxCreate_v4(context: *mut Handle, parameters: *mut c_void, flags: c_uint, device: Device)));
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: Device) =>
        context::create(device, || real!(cuDevicePrimaryCtxRetain(context: *mut Handle, device: Device)));
    fn cuCtxDestroy(context: Handle) =>
        pace::destroy(|| context::destroy(context, || real!(cuCtxDestroy(context: Handle))));
    fn cuCtxDestroy_v2(context: Handle) =>
        pace::destroy(|| context::destroy(context, || real!(cuCtxDestroy_v2(context: Handle))));
    fn cuDevicePrimaryCtxRelease(device: Device) =>
        pace::release(device, || context::end_primary(device, || real!(cuDevicePrimaryCtxRelease(device: Device))));
    fn cuDevicePrimaryCtxRelease_v2(device: Device) =>
        pace::release(device, || context::end_primary(device, || real!(cuDevicePrimaryCtxRelease_v2(device: Device))));
    fn cuDevicePrimaryCtxReset(device: Device) =>
        pace::destroy(|| context::end_primary(device, || real!(cuDevicePrimaryCtxReset(device: Device))));
    fn cuDevicePrimaryCtxReset_v2(device: Device) =>
        pace::destroy(|| context::end_primary(device, || real!(cuDevicePrimaryCtxReset_v2(device: Device))));

    fn cuLaunchKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) => pace::launch(stream, false, || real!(cuLaunchKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void, extra: *mut *mut c_void
    )));
    fn cuLaunchCooperativeKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void,
    ) => pace::launch(stream, false, || real!(cuLaunchCooperativeKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void
    )));
    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) => pace::launch(pace::stream_of(config), false, || real!(cuLaunchKernelEx(
        config: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void
    )));
    fn cuGraphLaunch(graph: Handle, stream: Handle) => pace::launch_graph(stream, false, || {
        graph::launch(graph, stream, false, || real!(cuGraphLaunch(graph: Handle, stream: Handle)))
    });
    fn cuStreamSynchronize(stream: Handle) => pace::synchronize(|| real!(cuStreamSynchronize(stream: Handle)));
    fn cuLaunchKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) => pace::launch(stream, true, || real!(cuLaunchKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void, extra: *mut *mut c_void
    )));
    fn cuLaunchCooperativeKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void,
    ) => pace::launch(stream, true, || real!(cuLaunchCooperativeKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void
    )));
    fn cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) => pace::launch(pace::stream_of(config), true, || real!(cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void
    )));
    fn cuGraphLaunch_ptsz(graph: Handle, stream: Handle) => pace::launch_graph(stream, true, || {
        graph::launch(graph, stream, true, || real!(cuGraphLaunch_ptsz(graph: Handle, stream: Handle)))
    });
    fn cuStreamSynchronize_ptsz(stream: Handle) => pace::synchronize(|| real!(cuStreamSynchronize_ptsz(stream: Handle)));
    fn cuLaunchCooperativeKernelMultiDevice(list: *mut c_void, count: c_uint, flags: c_uint) =>
        pace::launch(std::ptr::null_mut(), false, || real!(cuLaunchCooperativeKernelMultiDevice(
            list: *mut c_void, count: c_uint, flags: c_uint
        )));
    fn cuLaunch(function: Handle) => pace::launch(std::ptr::null_mut(), false, || real!(cuLaunch(function: Handle)));
    fn cuLaunchGrid(function: Handle, width: c_int, height: c_int) => pace::launch(std::ptr::null_mut(), false, || {
        real!(cuLaunchGrid(function: Handle, width: c_int, height: c_int))
    });
    fn cuLaunchGridAsync(function: Handle, width: c_int, height: c_int, stream: Handle) =>
        pace::launch(stream, false, || real!(cuLaunchGridAsync(
            function: Handle, width: c_int, height: c_int, stream: Handle
        )));
    fn cuMemcpy(to: Pointer, from: Pointer, bytes: usize) =>
        pace::synchronize(|| real!(cuMemcpy(to: Pointer, from: Pointer, bytes: usize)));
    fn cuMemcpy_ptds(to: Pointer, from: Pointer, bytes: usize) =>
        pace::synchronize(|| real!(cuMemcpy_ptds(to: Pointer, from: Pointer, bytes: usize)));
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: Pointer, bytes: usize) =>
        pace::synchronize(|| real!(cuMemcpyDtoH_v2(to: *mut c_void, from: Pointer, bytes: usize)));
    fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: Pointer, bytes: usize) =>
        pace::synchronize(|| real!(cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: Pointer, bytes: usize)));
    fn cuMemcpyHtoD_v2(to: Pointer, from: *const c_void, bytes: usize) =>
        pace::synchronize(|| real!(cuMemcpyHtoD_v2(to: Pointer, from: *const c_void, bytes: usize)));
    fn cuMemcpyHtoD_v2_ptds(to: Pointer, from: *const c_void, bytes: usize) =>
        pace::synchronize(|| real!(cuMemcpyHtoD_v2_ptds(to: Pointer, from: *const c_void, bytes: usize)));
    fn cuStreamQuery(stream: Handle) => pace::synchronize(|| real!(cuStreamQuery(stream: Handle)));
    fn cuStreamQuery_ptsz(stream: Handle) => pace::synchronize(|| real!(cuStreamQuery_ptsz(stream: Handle)));
    fn cuEventQuery(event: Handle) => pace::synchronize(|| real!(cuEventQuery(event: Handle)));
    fn cuCtxSynchronize() => pace::synchronize(|| real!(cuCtxSynchronize()));
    fn cuCtxSynchronize_v2(context: Handle) => pace::synchronize(|| real!(cuCtxSynchronize_v2(context: Handle)));
    fn cuEventSynchronize(event: Handle) => pace::synchronize(|| real!(cuEventSynchronize(event: Handle)));
    fn cuStreamDestroy(stream: Handle) => pace::destroy_stream(stream, || real!(cuStreamDestroy(stream: Handle)));
    fn cuStreamDestroy_v2(stream: Handle) => pace::destroy_stream(stream, || real!(cuStreamDestroy_v2(stream: Handle)));

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) =>
        view::memory(free, total, || real!(cuMemGetInfo_v2(free: *mut usize, total: *mut usize)));
    fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) =>
        view::memory(free, total, || real!(cuMemGetInfo(free: *mut c_uint, total: *mut c_uint)));
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) =>
        view::total(bytes, device, || real!(cuDeviceTotalMem_v2(bytes: *mut usize, device: Device)));
    fn cuDeviceTotalMem(bytes: *mut c_uint, device: Device) =>
        view::total(bytes, device, || real!(cuDeviceTotalMem(bytes: *mut c_uint, device: Device)));

    fn cuGetProcAddress(symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64) =>
        routing::route(HOOKS, function, || real!(cuGetProcAddress(
            symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64
        )));
    fn cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64, status: *mut c_int,
    ) => routing::route(HOOKS, function, || real!(cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64, status: *mut c_int
    )));
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
