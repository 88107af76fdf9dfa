//! `cuGetProcAddress` in both ABIs: the function for a name, the CUDA version that the caller was built for, and the kind of default stream.

use std::ffi::{CStr, c_char, c_int};

use crate::{
    abi::{CuResult, Entry, Failure, INVALID_VALUE, put},
    array, context, copy, device, export, graph, import, launch, memory, pool, stream, transcript, unsupported,
    virtual_memory,
};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;
/// `CU_GET_PROC_ADDRESS_SUCCESS`.
const FOUND: c_int = 0;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const UNKNOWN_SYMBOL: c_int = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`.
const TOO_OLD: c_int = 2;

macro_rules! table {
    ($($base:literal $version:literal $($thread:ident)? => $($path:ident)::+;)*) => {
        &[$(($base, $version, table!(@ $($thread)?), $($path)::+ as *const ())),*]
    };
    (@) => { false };
    (@ per_thread) => { true };
}

/// Functions of graphs and of imported memory.
fn more_entries() -> &'static [Entry] {
    table! {
        "cuStreamBeginCapture" 10010 => graph::cuStreamBeginCapture_v2;
        "cuStreamEndCapture" 10000 => graph::cuStreamEndCapture;
        "cuStreamIsCapturing" 10000 => graph::cuStreamIsCapturing;
        "cuStreamIsCapturing" 10000 per_thread => graph::cuStreamIsCapturing_ptsz;
        "cuThreadExchangeStreamCaptureMode" 10010 => graph::cuThreadExchangeStreamCaptureMode;
        "cuGraphInstantiateWithFlags" 11040 => graph::cuGraphInstantiateWithFlags;
        "cuGraphLaunch" 10000 => graph::cuGraphLaunch;
        "cuGraphLaunch" 10000 per_thread => graph::cuGraphLaunch_ptsz;
        "cuDeviceGetGraphMemAttribute" 11040 => graph::cuDeviceGetGraphMemAttribute;
        "cuDeviceGraphMemTrim" 11040 => graph::cuDeviceGraphMemTrim;
        "cuDeviceSetGraphMemAttribute" 11040 => graph::cuDeviceSetGraphMemAttribute;
        "cuGraphAddEmptyNode" 10000 => graph::cuGraphAddEmptyNode;
        "cuGraphAddMemAllocNode" 11040 => graph::cuGraphAddMemAllocNode;
        "cuGraphAddMemFreeNode" 11040 => graph::cuGraphAddMemFreeNode;
        "cuGraphAddNode" 12020 => graph::cuGraphAddNode;
        "cuGraphAddNode" 12030 => graph::cuGraphAddNode_v2;
        "cuGraphCreate" 10000 => graph::cuGraphCreate;
        "cuGraphDestroy" 10000 => graph::cuGraphDestroy;
        "cuGraphExecDestroy" 10000 => graph::cuGraphExecDestroy;
        "cuGraphGetNodes" 10000 => graph::cuGraphGetNodes;
        "cuGraphInstantiate" 10000 => graph::cuGraphInstantiate;
        "cuGraphInstantiate" 11000 => graph::cuGraphInstantiate_v2;
        "cuGraphInstantiateWithParams" 12000 => graph::cuGraphInstantiateWithParams;
        "cuGraphInstantiateWithParams" 12000 per_thread => graph::cuGraphInstantiateWithParams_ptsz;
        "cuGraphMemAllocNodeGetParams" 11040 => graph::cuGraphMemAllocNodeGetParams;
        "cuGraphMemFreeNodeGetParams" 11040 => graph::cuGraphMemFreeNodeGetParams;
        "cuGraphNodeGetType" 10000 => graph::cuGraphNodeGetType;
        "cuGraphUpload" 11010 => graph::cuGraphUpload;
        "cuGraphUpload" 11010 per_thread => graph::cuGraphUpload_ptsz;
        "cuDestroyExternalMemory" 10000 => import::cuDestroyExternalMemory;
        "cuExternalMemoryGetMappedBuffer" 10000 => import::cuExternalMemoryGetMappedBuffer;
        "cuImportExternalMemory" 10000 => import::cuImportExternalMemory;
        "cuIpcCloseMemHandle" 4010 => import::cuIpcCloseMemHandle;
        "cuIpcGetMemHandle" 4010 => import::cuIpcGetMemHandle;
        "cuIpcOpenMemHandle" 4010 => import::cuIpcOpenMemHandle;
        "cuIpcOpenMemHandle" 11000 => import::cuIpcOpenMemHandle_v2;
    }
}

/// Copies and fills.
fn copies() -> &'static [Entry] {
    table! {
        "cuMemcpy" 4000 => copy::cuMemcpy;
        "cuMemcpy" 7000 per_thread => copy::cuMemcpy_ptds;
        "cuMemcpyAsync" 4000 => copy::cuMemcpyAsync;
        "cuMemcpyAsync" 7000 per_thread => copy::cuMemcpyAsync_ptsz;
        "cuMemcpyDtoD" 3020 => copy::cuMemcpyDtoD_v2;
        "cuMemcpyDtoD" 7000 per_thread => copy::cuMemcpyDtoD_v2_ptds;
        "cuMemcpyDtoDAsync" 3020 => copy::cuMemcpyDtoDAsync_v2;
        "cuMemcpyDtoDAsync" 7000 per_thread => copy::cuMemcpyDtoDAsync_v2_ptsz;
        "cuMemcpyDtoH" 3020 => copy::cuMemcpyDtoH_v2;
        "cuMemcpyDtoH" 7000 per_thread => copy::cuMemcpyDtoH_v2_ptds;
        "cuMemcpyDtoHAsync" 3020 => copy::cuMemcpyDtoHAsync_v2;
        "cuMemcpyDtoHAsync" 7000 per_thread => copy::cuMemcpyDtoHAsync_v2_ptsz;
        "cuMemcpyHtoD" 3020 => copy::cuMemcpyHtoD_v2;
        "cuMemcpyHtoD" 7000 per_thread => copy::cuMemcpyHtoD_v2_ptds;
        "cuMemcpyHtoDAsync" 3020 => copy::cuMemcpyHtoDAsync_v2;
        "cuMemcpyHtoDAsync" 7000 per_thread => copy::cuMemcpyHtoDAsync_v2_ptsz;
        "cuMemsetD8" 3020 => copy::cuMemsetD8_v2;
        "cuMemsetD8" 7000 per_thread => copy::cuMemsetD8_v2_ptds;
        "cuMemsetD8Async" 3020 => copy::cuMemsetD8Async;
        "cuMemsetD8Async" 7000 per_thread => copy::cuMemsetD8Async_ptsz;
        "cuMemsetD32" 3020 => copy::cuMemsetD32_v2;
        "cuMemsetD32" 7000 per_thread => copy::cuMemsetD32_v2_ptds;
        "cuMemsetD32Async" 3020 => copy::cuMemsetD32Async;
        "cuMemsetD32Async" 7000 per_thread => copy::cuMemsetD32Async_ptsz;
    }
}

/// The other functions that do something.
fn entries() -> &'static [Entry] {
    table! {
        "cuInit" 2000 => device::cuInit;
        "cuDriverGetVersion" 2020 => device::cuDriverGetVersion;
        "cuDeviceGet" 2000 => device::cuDeviceGet;
        "cuDeviceGetCount" 2000 => device::cuDeviceGetCount;
        "cuDeviceGetName" 2000 => device::cuDeviceGetName;
        "cuDeviceTotalMem" 2000 => device::cuDeviceTotalMem;
        "cuDeviceTotalMem" 3020 => device::cuDeviceTotalMem_v2;
        "cuDeviceGetAttribute" 2000 => device::cuDeviceGetAttribute;
        "cuDeviceGetUuid" 9020 => device::cuDeviceGetUuid;
        "cuDeviceGetUuid" 11040 => device::cuDeviceGetUuid_v2;
        "cuCtxCreate" 3020 => context::cuCtxCreate_v2;
        "cuCtxDestroy" 4000 => context::cuCtxDestroy_v2;
        "cuCtxSetCurrent" 4000 => context::cuCtxSetCurrent;
        "cuCtxGetCurrent" 4000 => context::cuCtxGetCurrent;
        "cuCtxGetDevice" 2000 => context::cuCtxGetDevice;
        "cuCtxGetApiVersion" 3020 => context::cuCtxGetApiVersion;
        "cuCtxSynchronize" 2000 => stream::cuCtxSynchronize;
        "cuDevicePrimaryCtxRetain" 7000 => context::cuDevicePrimaryCtxRetain;
        "cuDevicePrimaryCtxRelease" 11000 => context::cuDevicePrimaryCtxRelease_v2;
        "cuDevicePrimaryCtxGetState" 7000 => context::cuDevicePrimaryCtxGetState;
        "cuDevicePrimaryCtxReset" 11000 => context::cuDevicePrimaryCtxReset_v2;
        "cuStreamCreate" 2000 => stream::cuStreamCreate;
        "cuStreamDestroy" 4000 => stream::cuStreamDestroy_v2;
        "cuStreamSynchronize" 2000 => stream::cuStreamSynchronize;
        "cuStreamSynchronize" 7000 per_thread => stream::cuStreamSynchronize_ptsz;
        "cuEventCreate" 2000 => stream::cuEventCreate;
        "cuEventDestroy" 4000 => stream::cuEventDestroy_v2;
        "cuEventRecord" 2000 => stream::cuEventRecord;
        "cuEventRecord" 7000 per_thread => stream::cuEventRecord_ptsz;
        "cuEventQuery" 2000 => stream::cuEventQuery;
        "cuEventSynchronize" 2000 => stream::cuEventSynchronize;
        "cuEventElapsedTime" 2000 => stream::cuEventElapsedTime;
        "cuModuleLoadData" 2000 => launch::cuModuleLoadData;
        "cuModuleGetFunction" 2000 => launch::cuModuleGetFunction;
        "cuLaunchKernel" 4000 => launch::cuLaunchKernel;
        "cuLaunchKernel" 7000 per_thread => launch::cuLaunchKernel_ptsz;
        "cuLaunchKernelEx" 11060 => launch::cuLaunchKernelEx;
        "cuLaunchKernelEx" 11060 per_thread => launch::cuLaunchKernelEx_ptsz;
        "cuLaunchCooperativeKernel" 9000 => launch::cuLaunchCooperativeKernel;
        "cuLaunchCooperativeKernel" 9000 per_thread => launch::cuLaunchCooperativeKernel_ptsz;
        "cuMemAlloc" 2000 => memory::cuMemAlloc;
        "cuMemAlloc" 3020 => memory::cuMemAlloc_v2;
        "cuMemAllocManaged" 6000 => memory::cuMemAllocManaged;
        "cuMemAllocPitch" 3020 => memory::cuMemAllocPitch_v2;
        "cuMemFree" 2000 => memory::cuMemFree;
        "cuMemFree" 3020 => memory::cuMemFree_v2;
        "cuMemGetInfo" 2000 => memory::cuMemGetInfo;
        "cuMemGetInfo" 3020 => memory::cuMemGetInfo_v2;
        "cuMemGetAddressRange" 3020 => memory::cuMemGetAddressRange_v2;
        "cuPointerGetAttribute" 4000 => memory::cuPointerGetAttribute;
        "cuMemAllocAsync" 11020 => pool::cuMemAllocAsync;
        "cuMemAllocAsync" 11020 per_thread => pool::cuMemAllocAsync_ptsz;
        "cuMemAllocFromPoolAsync" 11020 => pool::cuMemAllocFromPoolAsync;
        "cuMemAllocFromPoolAsync" 11020 per_thread => pool::cuMemAllocFromPoolAsync_ptsz;
        "cuMemFreeAsync" 11020 => pool::cuMemFreeAsync;
        "cuMemFreeAsync" 11020 per_thread => pool::cuMemFreeAsync_ptsz;
        "cuDeviceGetDefaultMemPool" 11020 => pool::cuDeviceGetDefaultMemPool;
        "cuDeviceGetMemPool" 11020 => pool::cuDeviceGetMemPool;
        "cuMemPoolCreate" 11020 => pool::cuMemPoolCreate;
        "cuMemPoolDestroy" 11020 => pool::cuMemPoolDestroy;
        "cuMemPoolTrimTo" 11020 => pool::cuMemPoolTrimTo;
        "cuMemPoolGetAttribute" 11020 => pool::cuMemPoolGetAttribute;
        "cuMemPoolSetAttribute" 11020 => pool::cuMemPoolSetAttribute;
        "cuMemGetAllocationGranularity" 10020 => virtual_memory::cuMemGetAllocationGranularity;
        "cuMemCreate" 10020 => virtual_memory::cuMemCreate;
        "cuMemRelease" 10020 => virtual_memory::cuMemRelease;
        "cuMemAddressReserve" 10020 => virtual_memory::cuMemAddressReserve;
        "cuMemAddressFree" 10020 => virtual_memory::cuMemAddressFree;
        "cuMemMap" 10020 => virtual_memory::cuMemMap;
        "cuMemUnmap" 10020 => virtual_memory::cuMemUnmap;
        "cuMemSetAccess" 10020 => virtual_memory::cuMemSetAccess;
        "cuMemRetainAllocationHandle" 11000 => virtual_memory::cuMemRetainAllocationHandle;
        "cuMemExportToShareableHandle" 10020 => virtual_memory::cuMemExportToShareableHandle;
        "cuArrayCreate" 2000 => array::cuArrayCreate;
        "cuArray3DCreate" 2000 => array::cuArray3DCreate;
        "cuArrayCreate" 3020 => array::cuArrayCreate_v2;
        "cuArray3DCreate" 3020 => array::cuArray3DCreate_v2;
        "cuArrayDestroy" 2000 => array::cuArrayDestroy;
        "cuMipmappedArrayCreate" 5000 => array::cuMipmappedArrayCreate;
        "cuMipmappedArrayDestroy" 5000 => array::cuMipmappedArrayDestroy;
        "cuGetExportTable" 3000 => export::cuGetExportTable;
        "cuGetProcAddress" 11030 => cuGetProcAddress;
        "cuGetProcAddress" 12000 => cuGetProcAddress_v2;
    }
}

/// The newest form that the caller's version has; with per-thread streams that form, where there is one.
fn find(name: &str, version: c_int, flags: u64) -> Result<*const (), c_int> {
    let named = || {
        [entries(), more_entries(), copies(), unsupported::entries()]
            .into_iter()
            .flatten()
            .filter(|(base, ..)| *base == name)
    };
    let known = named().filter(|(_, since, ..)| *since <= version);
    let wanted = flags & PER_THREAD != 0;
    match known.max_by_key(|(_, since, per_thread, _)| (*per_thread == wanted, *since)) {
        Some((.., function)) => Ok(*function),
        None if named().next().is_some() => Err(TOO_OLD),
        None => Err(UNKNOWN_SYMBOL),
    }
}

/// An unknown function is no failure of the call.
fn resolve(symbol: *const c_char, function: *mut *const (), version: c_int, flags: u64) -> Result<c_int, Failure> {
    if symbol.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: CUDA demands a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(symbol) };
    let name = name.to_str().map_err(|_| INVALID_VALUE)?;
    transcript::record(name, version, flags);
    let found = find(name, version, flags);
    put(function, found.unwrap_or(std::ptr::null()))?;
    Ok(found.err().unwrap_or(FOUND))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *const (),
    version: c_int,
    flags: u64,
) -> CuResult {
    resolve(symbol, function, version, flags).map_or_else(|Failure(code)| code, |_| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *const (),
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CuResult {
    match resolve(symbol, function, version, flags) {
        Err(Failure(code)) => code,
        Ok(found) => {
            // the runtime passes none
            let _ = put(status, found);
            0
        }
    }
}
