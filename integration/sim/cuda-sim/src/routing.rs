//! `cuGetProcAddress` in both ABIs: the function for a name, the CUDA version that the caller was built for, and the kind of default stream. The list of
//! all functions is that of a driver of CUDA 13.0: those that are simulated, by module, and the others that CUDA's runtimes ask for.

use std::ffi::{CStr, c_char, c_int};

use crate::{
    abi::{CuResult, Failure, INVALID_VALUE, NOT_SUPPORTED, put},
    array, context, copy, device, export, graph, import, launch, memory, pool,
    process::answer,
    stream, transcript, virtual_memory,
};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;
/// `CU_GET_PROC_ADDRESS_SUCCESS`.
const FOUND: c_int = 0;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const UNKNOWN_SYMBOL: c_int = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`.
const TOO_OLD: c_int = 2;

/// A function: its exported name, the first version of CUDA that has it, and its address.
type Entry = (&'static str, c_int, *const ());

macro_rules! functions {
    ($(in $module:ident { $($name:ident $version:literal,)* })* not supported { $($other:ident $since:literal,)* }) => {
        $(
            // a C function may be called with arguments that it does not read
            #[unsafe(no_mangle)]
            pub extern "C" fn $other() -> CuResult {
                answer(stringify!($other), |_| Err(NOT_SUPPORTED))
            }
        )*

        fn entries() -> &'static [Entry] {
            &[
                $($((stringify!($name), $version, $module::$name as *const ()),)*)*
                $((stringify!($other), $since, $other as *const ()),)*
            ]
        }
    };
}

functions! {
    in array {
        cuArrayCreate 2000, cuArray3DCreate 2000, cuArrayCreate_v2 3020, cuArray3DCreate_v2 3020, cuArrayDestroy 2000,
        cuMipmappedArrayCreate 5000, cuMipmappedArrayDestroy 5000,
    }
    in context {
        cuCtxCreate_v2 3020, cuCtxDestroy_v2 4000, cuCtxSetCurrent 4000, cuCtxGetCurrent 4000, cuCtxGetDevice 2000,
        cuCtxGetApiVersion 3020, cuDevicePrimaryCtxRetain 7000, cuDevicePrimaryCtxRelease_v2 11000,
        cuDevicePrimaryCtxGetState 7000, cuDevicePrimaryCtxReset_v2 11000,
    }
    in copy {
        cuMemcpy 4000, cuMemcpy_ptds 7000, cuMemcpyAsync 4000, cuMemcpyAsync_ptsz 7000, cuMemcpyDtoD_v2 3020,
        cuMemcpyDtoD_v2_ptds 7000, cuMemcpyDtoDAsync_v2 3020, cuMemcpyDtoDAsync_v2_ptsz 7000, cuMemcpyDtoH_v2 3020,
        cuMemcpyDtoH_v2_ptds 7000, cuMemcpyDtoHAsync_v2 3020, cuMemcpyDtoHAsync_v2_ptsz 7000, cuMemcpyHtoD_v2 3020,
        cuMemcpyHtoD_v2_ptds 7000, cuMemcpyHtoDAsync_v2 3020, cuMemcpyHtoDAsync_v2_ptsz 7000, cuMemsetD8_v2 3020,
        cuMemsetD8_v2_ptds 7000, cuMemsetD8Async 3020, cuMemsetD8Async_ptsz 7000, cuMemsetD32_v2 3020,
        cuMemsetD32_v2_ptds 7000, cuMemsetD32Async 3020, cuMemsetD32Async_ptsz 7000,
    }
    in device {
        cuInit 2000, cuDriverGetVersion 2020, cuDeviceGet 2000, cuDeviceGetCount 2000, cuDeviceGetName 2000,
        cuDeviceTotalMem 2000, cuDeviceTotalMem_v2 3020, cuDeviceGetAttribute 2000, cuDeviceGetUuid 9020,
        cuDeviceGetUuid_v2 11040,
    }
    in export {
        cuGetExportTable 3000,
    }
    in graph {
        cuStreamBeginCapture_v2 10010, cuStreamEndCapture 10000, cuStreamIsCapturing 10000,
        cuStreamIsCapturing_ptsz 10000, cuThreadExchangeStreamCaptureMode 10010, cuGraphInstantiateWithFlags 11040,
        cuGraphLaunch 10000, cuGraphLaunch_ptsz 10000, cuDeviceGetGraphMemAttribute 11040, cuDeviceGraphMemTrim 11040,
        cuDeviceSetGraphMemAttribute 11040, cuGraphAddEmptyNode 10000, cuGraphAddMemAllocNode 11040,
        cuGraphAddMemFreeNode 11040, cuGraphAddNode 12020, cuGraphAddNode_v2 12030, cuGraphCreate 10000,
        cuGraphDestroy 10000, cuGraphExecDestroy 10000, cuGraphGetNodes 10000, cuGraphInstantiate 10000,
        cuGraphInstantiate_v2 11000, cuGraphInstantiateWithParams 12000, cuGraphInstantiateWithParams_ptsz 12000,
        cuGraphMemAllocNodeGetParams 11040, cuGraphMemFreeNodeGetParams 11040, cuGraphNodeGetType 10000,
        cuGraphUpload 11010, cuGraphUpload_ptsz 11010,
    }
    in import {
        cuDestroyExternalMemory 10000, cuExternalMemoryGetMappedBuffer 10000, cuImportExternalMemory 10000,
        cuIpcCloseMemHandle 4010, cuIpcGetMemHandle 4010, cuIpcOpenMemHandle 4010, cuIpcOpenMemHandle_v2 11000,
    }
    in launch {
        cuModuleLoadData 2000, cuModuleGetFunction 2000, cuLaunchKernel 4000, cuLaunchKernel_ptsz 7000,
        cuLaunchKernelEx 11060, cuLaunchKernelEx_ptsz 11060, cuLaunchCooperativeKernel 9000,
        cuLaunchCooperativeKernel_ptsz 9000,
    }
    in memory {
        cuMemAlloc 2000, cuMemAlloc_v2 3020, cuMemAllocManaged 6000, cuMemAllocPitch_v2 3020, cuMemFree 2000,
        cuMemFree_v2 3020, cuMemGetInfo 2000, cuMemGetInfo_v2 3020, cuMemGetAddressRange_v2 3020,
        cuPointerGetAttribute 4000,
    }
    in pool {
        cuMemAllocAsync 11020, cuMemAllocAsync_ptsz 11020, cuMemAllocFromPoolAsync 11020,
        cuMemAllocFromPoolAsync_ptsz 11020, cuMemFreeAsync 11020, cuMemFreeAsync_ptsz 11020,
        cuDeviceGetDefaultMemPool 11020, cuDeviceGetMemPool 11020, cuMemPoolCreate 11020, cuMemPoolDestroy 11020,
        cuMemPoolTrimTo 11020, cuMemPoolGetAttribute 11020, cuMemPoolSetAttribute 11020,
    }
    in self {
        cuGetProcAddress 11030, cuGetProcAddress_v2 12000,
    }
    in stream {
        cuCtxSynchronize 2000, cuStreamCreate 2000, cuStreamDestroy_v2 4000, cuStreamSynchronize 2000,
        cuStreamSynchronize_ptsz 7000, cuEventCreate 2000, cuEventDestroy_v2 4000, cuEventRecord 2000,
        cuEventRecord_ptsz 7000, cuEventQuery 2000, cuEventSynchronize 2000, cuEventElapsedTime 2000,
    }
    in virtual_memory {
        cuMemGetAllocationGranularity 10020, cuMemCreate 10020, cuMemRelease 10020, cuMemAddressReserve 10020,
        cuMemAddressFree 10020, cuMemMap 10020, cuMemUnmap 10020, cuMemSetAccess 10020,
        cuMemRetainAllocationHandle 11000, cuMemExportToShareableHandle 10020,
    }
    not supported {
        cuArray3DGetDescriptor_v2 3020, cuArrayGetDescriptor_v2 3020, cuArrayGetMemoryRequirements 11060,
        cuArrayGetPlane 11020, cuArrayGetSparseProperties 11010, cuCtxDetach 2000, cuCtxDisablePeerAccess 4000,
        cuCtxEnablePeerAccess 4000, cuCtxFromGreenCtx 12040, cuCtxGetCacheConfig 3020, cuCtxGetDevResource 12040,
        cuCtxGetDevice_v2 13000, cuCtxGetFlags 7000, cuCtxGetId 12000, cuCtxGetLimit 3010, cuCtxGetSharedMemConfig 4020,
        cuCtxGetStreamPriorityRange 5050, cuCtxPopCurrent_v2 4000, cuCtxPushCurrent_v2 4000, cuCtxRecordEvent 12050,
        cuCtxResetPersistingL2Cache 11000, cuCtxSetCacheConfig 3020, cuCtxSetLimit 3010, cuCtxSetSharedMemConfig 4020,
        cuCtxSynchronize_v2 13000, cuCtxWaitEvent 12050, cuDestroyExternalSemaphore 10000,
        cuDevResourceGenerateDesc 12040, cuDevSmResourceSplitByCount 12040, cuDeviceCanAccessPeer 4000,
        cuDeviceGetByPCIBusId 4010, cuDeviceGetDevResource 12040, cuDeviceGetHostAtomicCapabilities 13000,
        cuDeviceGetNvSciSyncAttributes 10020, cuDeviceGetP2PAtomicCapabilities 13000, cuDeviceGetP2PAttribute 8000,
        cuDeviceGetPCIBusId 4010, cuDeviceGetTexture1DLinearMaxWidth 11010, cuDevicePrimaryCtxRelease 7000,
        cuDevicePrimaryCtxReset 7000, cuDevicePrimaryCtxSetFlags_v2 11000, cuDeviceRegisterAsyncNotification 12040,
        cuDeviceSetMemPool 11020, cuDeviceUnregisterAsyncNotification 12040, cuEGLStreamConsumerAcquireFrame 7000,
        cuEGLStreamConsumerConnect 7000, cuEGLStreamConsumerConnectWithFlags 8000, cuEGLStreamConsumerDisconnect 7000,
        cuEGLStreamConsumerReleaseFrame 7000, cuEGLStreamProducerConnect 7000, cuEGLStreamProducerDisconnect 7000,
        cuEGLStreamProducerPresentFrame 7000, cuEGLStreamProducerReturnFrame 7000, cuEventElapsedTime_v2 12080,
        cuEventRecordWithFlags 11010, cuEventRecordWithFlags_ptsz 11010, cuExternalMemoryGetMappedMipmappedArray 10000,
        cuFlushGPUDirectRDMAWrites 11030, cuFuncGetAttribute 2020, cuFuncGetName 12030, cuFuncGetParamInfo 12040,
        cuFuncSetAttribute 9000, cuFuncSetCacheConfig 3000, cuFuncSetSharedMemConfig 4020, cuGLCtxCreate_v2 3020,
        cuGLGetDevices 4010, cuGLInit 2000, cuGLMapBufferObject_v2 3020, cuGLMapBufferObject_v2_ptds 7000,
        cuGLMapBufferObjectAsync_v2 3020, cuGLMapBufferObjectAsync_v2_ptsz 7000, cuGLRegisterBufferObject 2000,
        cuGLSetBufferObjectMapFlags 2030, cuGLUnmapBufferObject 2000, cuGLUnmapBufferObjectAsync 2030,
        cuGLUnregisterBufferObject 2000, cuGetErrorName 6000, cuGetErrorString 6000, cuGraphAddChildGraphNode 10000,
        cuGraphAddDependencies 10000, cuGraphAddDependencies_v2 12030, cuGraphAddEventRecordNode 11010,
        cuGraphAddEventWaitNode 11010, cuGraphAddExternalSemaphoresSignalNode 11020,
        cuGraphAddExternalSemaphoresWaitNode 11020, cuGraphAddHostNode 10000, cuGraphAddKernelNode 10000,
        cuGraphAddKernelNode_v2 12000, cuGraphAddMemcpyNode 10000, cuGraphAddMemsetNode 10000,
        cuGraphChildGraphNodeGetGraph 10000, cuGraphClone 10000, cuGraphConditionalHandleCreate 12030,
        cuGraphDebugDotPrint 11030, cuGraphDestroyNode 10000, cuGraphEventRecordNodeGetEvent 11010,
        cuGraphEventRecordNodeSetEvent 11010, cuGraphEventWaitNodeGetEvent 11010, cuGraphEventWaitNodeSetEvent 11010,
        cuGraphExecChildGraphNodeSetParams 11010, cuGraphExecEventRecordNodeSetEvent 11010,
        cuGraphExecEventWaitNodeSetEvent 11010, cuGraphExecExternalSemaphoresSignalNodeSetParams 11020,
        cuGraphExecExternalSemaphoresWaitNodeSetParams 11020, cuGraphExecGetFlags 12000,
        cuGraphExecHostNodeSetParams 10020, cuGraphExecKernelNodeSetParams 10010,
        cuGraphExecKernelNodeSetParams_v2 12000, cuGraphExecMemcpyNodeSetParams 10020,
        cuGraphExecMemsetNodeSetParams 10020, cuGraphExecNodeSetParams 12020, cuGraphExecUpdate 10020,
        cuGraphExecUpdate_v2 12000, cuGraphExternalSemaphoresSignalNodeGetParams 11020,
        cuGraphExternalSemaphoresSignalNodeSetParams 11020, cuGraphExternalSemaphoresWaitNodeGetParams 11020,
        cuGraphExternalSemaphoresWaitNodeSetParams 11020, cuGraphGetEdges 10000, cuGraphGetEdges_v2 12030,
        cuGraphGetRootNodes 10000, cuGraphHostNodeGetParams 10000, cuGraphHostNodeSetParams 10000,
        cuGraphKernelNodeCopyAttributes 11000, cuGraphKernelNodeGetAttribute 11000, cuGraphKernelNodeGetParams 10000,
        cuGraphKernelNodeGetParams_v2 12000, cuGraphKernelNodeSetAttribute 11000, cuGraphKernelNodeSetParams 10000,
        cuGraphKernelNodeSetParams_v2 12000, cuGraphMemcpyNodeGetParams 10000, cuGraphMemcpyNodeSetParams 10000,
        cuGraphMemsetNodeGetParams 10000, cuGraphMemsetNodeSetParams 10000, cuGraphNodeFindInClone 10000,
        cuGraphNodeGetDependencies 10000, cuGraphNodeGetDependencies_v2 12030, cuGraphNodeGetDependentNodes 10000,
        cuGraphNodeGetDependentNodes_v2 12030, cuGraphNodeGetEnabled 11060, cuGraphNodeSetEnabled 11060,
        cuGraphNodeSetParams 12020, cuGraphReleaseUserObject 11030, cuGraphRemoveDependencies 10000,
        cuGraphRemoveDependencies_v2 12030, cuGraphRetainUserObject 11030, cuGraphicsEGLRegisterImage 7000,
        cuGraphicsGLRegisterBuffer 3000, cuGraphicsGLRegisterImage 3000, cuGraphicsMapResources 3000,
        cuGraphicsMapResources_ptsz 7000, cuGraphicsResourceGetMappedEglFrame 7000,
        cuGraphicsResourceGetMappedMipmappedArray 5000, cuGraphicsResourceGetMappedPointer_v2 3020,
        cuGraphicsResourceSetMapFlags_v2 6050, cuGraphicsSubResourceGetMappedArray 3000, cuGraphicsUnmapResources 3000,
        cuGraphicsUnmapResources_ptsz 7000, cuGraphicsUnregisterResource 3000,
        cuGraphicsVDPAURegisterOutputSurface 3010, cuGraphicsVDPAURegisterVideoSurface 3010, cuGreenCtxCreate 12040,
        cuGreenCtxDestroy 12040, cuGreenCtxGetDevResource 12040, cuGreenCtxGetId 12090, cuGreenCtxRecordEvent 12040,
        cuGreenCtxStreamCreate 12050, cuGreenCtxWaitEvent 12040, cuImportExternalSemaphore 10000,
        cuIpcGetEventHandle 4010, cuIpcOpenEventHandle 4010, cuKernelGetAttribute 12000, cuKernelGetFunction 12000,
        cuKernelGetName 12030, cuKernelGetParamInfo 12040, cuKernelSetAttribute 12000, cuKernelSetCacheConfig 12000,
        cuLaunchCooperativeKernelMultiDevice 9000, cuLaunchHostFunc 10000, cuLaunchHostFunc_ptsz 10000,
        cuLibraryEnumerateKernels 12040, cuLibraryGetGlobal 12000, cuLibraryGetKernel 12000,
        cuLibraryGetKernelCount 12040, cuLibraryGetManaged 12000, cuLibraryGetModule 12000,
        cuLibraryGetUnifiedFunction 12000, cuLibraryLoadData 12000, cuLibraryLoadFromFile 12000, cuLibraryUnload 12000,
        cuLinkAddData 5050, cuLinkAddFile 5050, cuLinkComplete 5050, cuLinkCreate 5050, cuLinkDestroy 5050,
        cuLogsCurrent 12090, cuLogsDumpToFile 12090, cuLogsDumpToMemory 12090, cuLogsRegisterCallback 12090,
        cuLogsUnregisterCallback 12090, cuMemAdvise 8000, cuMemAdvise_v2 12020, cuMemDiscardAndPrefetchBatchAsync 13000,
        cuMemDiscardAndPrefetchBatchAsync_ptsz 13000, cuMemDiscardBatchAsync 13000, cuMemDiscardBatchAsync_ptsz 13000,
        cuMemFreeHost 2000, cuMemGetDefaultMemPool 13000, cuMemGetMemPool 13000, cuMemHostAlloc 2020,
        cuMemHostGetDevicePointer_v2 3020, cuMemHostGetFlags 2030, cuMemHostRegister_v2 6050, cuMemHostUnregister 4000,
        cuMemPoolExportPointer 11020, cuMemPoolExportToShareableHandle 11020, cuMemPoolGetAccess 11020,
        cuMemPoolImportFromShareableHandle 11020, cuMemPoolImportPointer 11020, cuMemPoolSetAccess 11020,
        cuMemPrefetchAsync 8000, cuMemPrefetchAsync_ptsz 8000, cuMemPrefetchAsync_v2 12020,
        cuMemPrefetchAsync_v2_ptsz 12020, cuMemPrefetchBatchAsync 13000, cuMemPrefetchBatchAsync_ptsz 13000,
        cuMemRangeGetAttribute 8000, cuMemRangeGetAttributes 8000, cuMemSetMemPool 13000, cuMemcpy2DAsync_v2 3020,
        cuMemcpy2DAsync_v2_ptsz 7000, cuMemcpy2DUnaligned_v2 3020, cuMemcpy2DUnaligned_v2_ptds 7000, cuMemcpy3D_v2 3020,
        cuMemcpy3D_v2_ptds 7000, cuMemcpy3DAsync_v2 3020, cuMemcpy3DAsync_v2_ptsz 7000, cuMemcpy3DBatchAsync 12080,
        cuMemcpy3DBatchAsync_ptsz 12080, cuMemcpy3DBatchAsync_v2 13000, cuMemcpy3DBatchAsync_v2_ptsz 13000,
        cuMemcpy3DPeer 4000, cuMemcpy3DPeer_ptds 7000, cuMemcpy3DPeerAsync 4000, cuMemcpy3DPeerAsync_ptsz 7000,
        cuMemcpyBatchAsync 12080, cuMemcpyBatchAsync_ptsz 12080, cuMemcpyBatchAsync_v2 13000,
        cuMemcpyBatchAsync_v2_ptsz 13000, cuMemcpyPeer 4000, cuMemcpyPeer_ptds 7000, cuMemcpyPeerAsync 4000,
        cuMemcpyPeerAsync_ptsz 7000, cuMemsetD2D8_v2 3020, cuMemsetD2D8_v2_ptds 7000, cuMemsetD2D8Async 3020,
        cuMemsetD2D8Async_ptsz 7000, cuMipmappedArrayGetLevel 5000, cuMipmappedArrayGetMemoryRequirements 11060,
        cuMipmappedArrayGetSparseProperties 11010, cuModuleGetGlobal_v2 3020, cuModuleGetLoadingMode 11070,
        cuModuleGetSurfRef 3000, cuModuleGetTexRef 2000, cuModuleLoad 2000, cuModuleLoadFatBinary 2000,
        cuModuleUnload 2000, cuOccupancyAvailableDynamicSMemPerBlock 10020,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000, cuOccupancyMaxActiveClusters 11070,
        cuOccupancyMaxPotentialClusterSize 11070, cuPointerGetAttributes 7000, cuProfilerInitialize 4000,
        cuProfilerStart 4000, cuProfilerStop 4000, cuSignalExternalSemaphoresAsync 10000,
        cuSignalExternalSemaphoresAsync_ptsz 10000, cuStreamAddCallback 5000, cuStreamAddCallback_ptsz 7000,
        cuStreamAttachMemAsync 6000, cuStreamAttachMemAsync_ptsz 7000, cuStreamBatchMemOp 8000,
        cuStreamBatchMemOp_ptsz 8000, cuStreamBeginCapture 10000, cuStreamBeginCapture_ptsz 10000,
        cuStreamBeginCapture_v2_ptsz 10010, cuStreamBeginCaptureToGraph 12030, cuStreamBeginCaptureToGraph_ptsz 12030,
        cuStreamCopyAttributes 11000, cuStreamCopyAttributes_ptsz 11000, cuStreamCreateWithPriority 5050,
        cuStreamEndCapture_ptsz 10000, cuStreamGetAttribute 11000, cuStreamGetAttribute_ptsz 11000,
        cuStreamGetCaptureInfo 10010, cuStreamGetCaptureInfo_ptsz 10010, cuStreamGetCaptureInfo_v2 11030,
        cuStreamGetCaptureInfo_v2_ptsz 11030, cuStreamGetCaptureInfo_v3 12030, cuStreamGetCaptureInfo_v3_ptsz 12030,
        cuStreamGetCtx 9020, cuStreamGetCtx_v2 12050, cuStreamGetCtx_v2_ptsz 12050, cuStreamGetDevice 12080,
        cuStreamGetDevice_ptsz 12080, cuStreamGetFlags 5050, cuStreamGetFlags_ptsz 7000, cuStreamGetId 12000,
        cuStreamGetId_ptsz 12000, cuStreamGetPriority 5050, cuStreamGetPriority_ptsz 7000, cuStreamQuery 2000,
        cuStreamQuery_ptsz 7000, cuStreamSetAttribute 11000, cuStreamSetAttribute_ptsz 11000,
        cuStreamUpdateCaptureDependencies 11030, cuStreamUpdateCaptureDependencies_ptsz 11030,
        cuStreamUpdateCaptureDependencies_v2 12030, cuStreamUpdateCaptureDependencies_v2_ptsz 12030,
        cuStreamWaitEvent 3020, cuStreamWaitEvent_ptsz 7000, cuStreamWaitValue32 8000, cuStreamWaitValue32_ptsz 8000,
        cuStreamWaitValue64 9000, cuStreamWaitValue64_ptsz 9000, cuStreamWriteValue32 8000,
        cuStreamWriteValue32_ptsz 8000, cuStreamWriteValue64 9000, cuStreamWriteValue64_ptsz 9000,
        cuSurfObjectCreate 5000, cuSurfObjectDestroy 5000, cuSurfObjectGetResourceDesc 5000, cuSurfRefSetArray 3000,
        cuTexObjectCreate 5000, cuTexObjectDestroy 5000, cuTexObjectGetResourceDesc 5000,
        cuTexObjectGetResourceViewDesc 5000, cuTexObjectGetTextureDesc 5000, cuTexRefCreate 2000, cuTexRefDestroy 2000,
        cuTexRefGetBorderColor 8000, cuTexRefSetAddress_v2 3020, cuTexRefSetAddress2D_v3 4010,
        cuTexRefSetAddressMode 2000, cuTexRefSetArray 2000, cuTexRefSetBorderColor 8000, cuTexRefSetFilterMode 2000,
        cuTexRefSetFlags 2000, cuTexRefSetFormat 2000, cuTexRefSetMaxAnisotropy 5000, cuTexRefSetMipmapFilterMode 5000,
        cuTexRefSetMipmapLevelBias 5000, cuTexRefSetMipmapLevelClamp 5000, cuTexRefSetMipmappedArray 5000,
        cuUserObjectCreate 11030, cuUserObjectRelease 11030, cuUserObjectRetain 11030, cuVDPAUCtxCreate_v2 3020,
        cuVDPAUGetDevice 3010, cuWaitExternalSemaphoresAsync 10000, cuWaitExternalSemaphoresAsync_ptsz 10000,
    }
}

/// The name by which programs ask for a function, and whether it uses the stream of the calling thread.
fn form(exported: &str) -> (&str, bool) {
    let thread = exported.strip_suffix("_ptsz").or_else(|| exported.strip_suffix("_ptds"));
    let name = thread.unwrap_or(exported);
    (["_v2", "_v3"].iter().find_map(|version| name.strip_suffix(version)).unwrap_or(name), thread.is_some())
}

/// The newest form that the caller's version has; with per-thread streams that form, where there is one.
fn find(name: &str, version: c_int, flags: u64) -> Result<*const (), c_int> {
    let wanted = flags & PER_THREAD != 0;
    let forms = entries().iter().map(|(exported, since, function)| (form(exported), *since, *function));
    let named: Vec<_> = forms.filter(|((base, _), ..)| *base == name).collect();
    let known = named.iter().filter(|(_, since, _)| *since <= version);
    match known.max_by_key(|((_, per_thread), since, _)| (*per_thread == wanted, *since)) {
        Some((.., function)) => Ok(*function),
        None if named.is_empty() => Err(UNKNOWN_SYMBOL),
        None => Err(TOO_OLD),
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
