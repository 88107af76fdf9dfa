//! Contexts take memory of their own, and with their end what was allocated in them is free.

use std::ptr::null_mut;

use crate::{
    abi::{CuResult, Device, Handle, OUT_OF_MEMORY, SUCCESS},
    ended, graph_memory, held,
    pace::has_primary_context,
    pool,
    real::driver,
    share::Share,
};

/// Creates or retains a context. A process counts one for all its contexts.
pub fn create(device: Device, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some(share) = Share::of_device(device) else { return real() };
    let Ok(newly) = share.count_context() else { return OUT_OF_MEMORY };
    let code = real();
    if newly && code != SUCCESS {
        share.discount_context();
    }
    code
}

/// The calling thread's context.
pub fn current() -> Option<u64> {
    let mut context: Handle = null_mut();
    let code = driver!(cuCtxGetCurrent(&raw mut context => *mut Handle));
    (code == SUCCESS && !context.is_null()).then(|| context.addr() as u64)
}

/// Destroys a context.
pub fn destroy(context: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code == SUCCESS {
        free(Some(context.addr() as u64));
    }
    code
}

/// Releases or resets the primary context of a device, which ends it if nothing else has retained it.
pub fn end_primary(device: Device, real: impl FnOnce() -> CuResult) -> CuResult {
    let context = if Share::of_container().is_some() { primary(device) } else { None };
    let code = real();
    if code == SUCCESS && !has_primary_context(device) {
        free(context);
    }
    code
}

/// The primary context, if there is one. Programs get it also by ways that do not pass this library.
fn primary(device: Device) -> Option<u64> {
    if !has_primary_context(device) {
        return None;
    }
    let mut context: Handle = null_mut();
    let code = driver!(cuDevicePrimaryCtxRetain(&raw mut context => *mut Handle, device => Device));
    if code != SUCCESS {
        return None;
    }
    // what it has just retained; a driver of before CUDA 11 has only the older form
    if driver!(cuDevicePrimaryCtxRelease_v2(device => Device)) != SUCCESS {
        driver!(cuDevicePrimaryCtxRelease(device => Device));
    }
    Some(context.addr() as u64)
}

/// Gives back what was allocated in a context that is gone: its arrays, pointers that the driver does not know any more, and pools.
fn free(context: Option<u64>) {
    let Some(share) = Share::of_container() else { return };
    share.release(held::take_pointers(ended::is_gone));
    if let Some(context) = context {
        share.release(held::take_arrays(context));
    }
    pool::after_context(share);
    graph_memory::trimmed(share);
}
