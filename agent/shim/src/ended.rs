//! Memory that the driver frees by itself: with its context, or when a stream reaches the call that frees it.

use std::{
    ffi::{c_int, c_uint},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::{
    abi::{CuResult, INVALID_VALUE, Pointer, SUCCESS},
    held::{self, Taken},
    real::driver,
    share::Share,
};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_int = 2;
/// An allocation that is of no pool was given to a stream to be freed.
static WAITING: AtomicBool = AtomicBool::new(false);

/// Frees an allocation when the work of a stream is done. It may be none of a pool; then it counts until the driver does not know it any more, or gives
/// its address again.
pub fn free_on_stream(pointer: Pointer, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code != SUCCESS {
        return code;
    }
    match (held::take_pointer_if(pointer, is_gone), Share::of_container()) {
        (Taken::Gone(bytes), Some(share)) => share.release(bytes),
        (Taken::Stays, _) => WAITING.store(true, Relaxed),
        _ => {}
    }
    code
}

/// Gives back what streams have freed meanwhile; costs nothing if nothing was freed so.
pub fn collect(share: &Share) {
    if WAITING.load(Relaxed) {
        share.release(held::take_pointers(is_gone));
    }
}

/// The driver does not know a pointer any more.
pub fn is_gone(pointer: Pointer) -> bool {
    let mut kind: c_uint = 0;
    driver!(cuPointerGetAttribute(&raw mut kind => *mut c_uint, MEMORY_TYPE => c_int, pointer => Pointer))
        == INVALID_VALUE
}
