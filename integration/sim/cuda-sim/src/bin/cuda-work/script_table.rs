//! Calls of a script through private tables of functions that CUDA's library hands out.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr::{null, null_mut},
};

use libloading::Library;

use crate::{Failed, kernel::Handle};

/// A known table whose first function creates a context: {0CA50B8C-1004-929A-89A7-D0DF10E77286}.
const CREATE_CONTEXT: [u8; 16] =
    [0x0c, 0xa5, 0x0b, 0x8c, 0x10, 0x04, 0x92, 0x9a, 0x89, 0xa7, 0xd0, 0xdf, 0x10, 0xe7, 0x72, 0x86];
/// A table of the simulated driver whose first function allocates.
const ALLOCATE: [u8; 16] = *b"nvsim allocation";

/// Creates a context, which is then the current one.
pub fn create_context(cuda: &Library) -> Result<Handle, Failed> {
    let function = first(cuda, &CREATE_CONTEXT)?;
    // SAFETY: the first function of this table has the type of `cuCtxCreate_v2`.
    let create: unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> c_int = unsafe { std::mem::transmute(function) };
    let mut context: Handle = null_mut();
    // SAFETY: it is called as `cuCtxCreate_v2` is.
    match unsafe { create(&raw mut context, 0, 0) } {
        0 => Ok(context),
        code => Err(Failed("private context", code)),
    }
}

/// Allocates memory.
pub fn allocate(cuda: &Library, bytes: usize) -> Result<u64, Failed> {
    let function = first(cuda, &ALLOCATE)?;
    // SAFETY: the first function of this table has the type of `cuMemAlloc_v2`.
    let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int = unsafe { std::mem::transmute(function) };
    let mut pointer = 0;
    // SAFETY: it is called as `cuMemAlloc_v2` is.
    match unsafe { allocate(&raw mut pointer, bytes) } {
        0 => Ok(pointer),
        code => Err(Failed("private allocation", code)),
    }
}

/// The first function of a table, which follows its size.
fn first(cuda: &Library, id: &[u8; 16]) -> Result<*const c_void, Failed> {
    let mut table: *const [*const c_void; 2] = null();
    let (to, of) = (&raw mut table, &raw const *id);
    cuda!(cuda, cuGetExportTable(to => *mut *const [*const c_void; 2], of => *const [u8; 16]))?;
    // SAFETY: after success it points to the table, which has at least its size and one function.
    let [_, function] = unsafe { table.read() };
    if function.is_null() { Err(Failed("private table", 500)) } else { Ok(function) }
}
