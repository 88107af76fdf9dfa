//! Types and codes of `cuda.h` that the shim uses.

use std::ffi::{c_int, c_uint, c_void};

/// `CUresult`.
pub type CuResult = c_int;
/// `CUdevice`.
pub type Device = c_int;
/// `CUdeviceptr`.
pub type Pointer = u64;
/// `CUstream`, `CUmemoryPool`, `CUarray`.
pub type Handle = *mut c_void;

/// `CUDA_SUCCESS`.
pub const SUCCESS: CuResult = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: CuResult = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: CuResult = 2;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: CuResult = 400;
/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: CuResult = 600;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: CuResult = 801;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayDescriptor {
    /// Elements of a row.
    pub width: usize,
    /// Rows; 0 for one dimension.
    pub height: usize,
    /// `CUarray_format`.
    pub format: c_int,
    /// Channels of an element.
    pub channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3dDescriptor {
    /// Elements of a row.
    pub width: usize,
    /// Rows; 0 for one dimension.
    pub height: usize,
    /// Layers; 0 for two dimensions.
    pub depth: usize,
    /// `CUarray_format`.
    pub format: c_int,
    /// Channels of an element.
    pub channels: c_uint,
    /// `CUDA_ARRAY3D_*`.
    pub flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR` of before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayDescriptor32 {
    /// Elements of a row.
    pub width: c_uint,
    /// Rows; 0 for one dimension.
    pub height: c_uint,
    /// `CUarray_format`.
    pub format: c_int,
    /// Channels of an element.
    pub channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` of before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3dDescriptor32 {
    /// Elements of a row.
    pub width: c_uint,
    /// Rows; 0 for one dimension.
    pub height: c_uint,
    /// Layers; 0 for two dimensions.
    pub depth: c_uint,
    /// `CUarray_format`.
    pub format: c_int,
    /// Channels of an element.
    pub channels: c_uint,
    /// `CUDA_ARRAY3D_*`.
    pub flags: c_uint,
}

/// The first field of `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InstantiateParameters {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`.
    pub flags: u64,
}

/// The first fields of `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    /// Blocks of the grid, and threads of a block, in three dimensions each.
    pub dimensions: [c_uint; 6],
    /// Bytes of shared memory.
    pub shared: c_uint,
    /// The stream.
    pub stream: Handle,
}

/// The first fields of `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProperties {
    /// `CUmemAllocationType`.
    pub kind: c_int,
    /// `CUmemAllocationHandleType`.
    pub handle_types: c_int,
    /// `CUmemLocationType`.
    pub location_type: c_int,
    /// Ordinal of the device, where the location is one.
    pub location: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const ON_DEVICE: c_int = 1;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
pub const POOL_RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
pub const POOL_USED: c_int = 7;
