//! Contexts take memory of their own, and with their end what was allocated in them is free.

use std::ffi::{c_int, c_uint};

use crate::{
    abi::{CuResult, Device, INVALID_VALUE, OUT_OF_MEMORY, Pointer, SUCCESS},
    held,
    real::driver,
    share::Share,
};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_int = 2;

/// Creates or retains a context. A process counts one for all its contexts.
pub fn create(device: Device, real: impl FnOnce() -> CuResult) -> CuResult {
    match Share::of_device(device) {
        Some(share) if share.count_context().is_err() => OUT_OF_MEMORY,
        _ => real(),
    }
}

/// Ends a context. Pointers that the driver does not know any more are of contexts that are gone.
pub fn end(real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if let (SUCCESS, Some(share)) = (code, Share::of_container()) {
        share.release(held::take_pointers(is_gone));
    }
    code
}

fn is_gone(pointer: Pointer) -> bool {
    let mut kind: c_uint = 0;
    driver!(cuPointerGetAttribute(&raw mut kind => *mut c_uint, MEMORY_TYPE => c_int, pointer => Pointer))
        == INVALID_VALUE
}
