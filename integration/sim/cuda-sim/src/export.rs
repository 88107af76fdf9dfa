//! The driver's private tables of functions. NVIDIA documents none of them. Two are simulated, so that tests show what such a function means for
//! what is in front of this library; what CUDA's runtimes ask for is not, so that they end with `cudaErrorSymbolNotFound` when they have
//! resolved their functions.

use std::ffi::{c_int, c_uint, c_void};

use crate::{
    abi::{CuResult, Failure, Handle, NOT_FOUND, Pointer, get, put},
    context::cuCtxCreate_v2,
    memory::cuMemAlloc_v2,
};

/// A table of one function: its size in bytes, and the function.
#[repr(C)]
#[allow(dead_code, reason = "programs read it")]
struct Table<F> {
    bytes: usize,
    function: F,
}

/// A known one, which creates a context: {0CA50B8C-1004-929A-89A7-D0DF10E77286}.
const CREATE_CONTEXT: [u8; 16] =
    [0x0c, 0xa5, 0x0b, 0x8c, 0x10, 0x04, 0x92, 0x9a, 0x89, 0xa7, 0xd0, 0xdf, 0x10, 0xe7, 0x72, 0x86];
static CONTEXTS: Table<unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> CuResult> =
    Table { bytes: 16, function: cuCtxCreate_v2 };

/// One of the simulator alone, which allocates: no table of NVIDIA's is known to have such a function.
const ALLOCATE: [u8; 16] = *b"nvsim allocation";
static ALLOCATIONS: Table<unsafe extern "C" fn(*mut Pointer, usize) -> CuResult> =
    Table { bytes: 16, function: cuMemAlloc_v2 };

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) -> CuResult {
    let found = get(id).and_then(|id| match id {
        CREATE_CONTEXT => Ok((&raw const CONTEXTS).cast::<c_void>()),
        ALLOCATE => Ok((&raw const ALLOCATIONS).cast()),
        _ => Err(NOT_FOUND),
    });
    found.and_then(|found| put(table, found)).map_or_else(|Failure(code)| code, |()| 0)
}
