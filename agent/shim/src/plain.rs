//! Plain, pitched and managed allocations: reserved before the driver allocates, released after it has freed.

use std::ffi::c_uint;

use crate::{
    abi::{CuResult, OUT_OF_MEMORY, Pointer, SUCCESS},
    held::{self, HandleKind},
    pool,
    share::Share,
};

/// Largest multiple to which the driver rounds a row (`CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT` and below).
const ROW: usize = 512;

/// From this size on the driver gives an allocation whole blocks.
const LARGE: u64 = 1 << 20;
/// Such a block.
pub const BLOCK: u64 = 2 << 20;

/// Bytes that an allocation takes of the GPU.
pub fn taken(bytes: u64) -> u64 {
    if bytes < LARGE { bytes } else { bytes.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX) }
}

/// An allocation of this size.
pub fn allocate(pointer: *mut Pointer, bytes: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    let bytes = taken(bytes);
    reserved(bytes, real, |share| {
        // SAFETY: the driver has just written to it.
        let address = unsafe { pointer.read() };
        hold(share, address, bytes, bytes);
    })
}

/// An allocation with addresses of 32 bits.
pub fn allocate_32(pointer: *mut c_uint, bytes: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    let bytes = taken(bytes);
    reserved(bytes, real, |share| {
        // SAFETY: the driver has just written to it.
        let address = unsafe { pointer.read() };
        hold(share, address.into(), bytes, bytes);
    })
}

/// An allocation of rows, whose length the driver rounds up.
pub fn allocate_pitch(
    pointer: *mut Pointer,
    pitch: *mut usize,
    width: usize,
    height: usize,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let row = width.checked_next_multiple_of(ROW);
    let expected = row.and_then(|row| row.checked_mul(height)).map_or(u64::MAX, |bytes| taken(bytes as u64));
    reserved(expected, real, |share| {
        // SAFETY: the driver has just written to both.
        let (address, row) = unsafe { (pointer.read(), pitch.read()) };
        hold(share, address, expected, taken(row.saturating_mul(height) as u64));
    })
}

/// Frees an allocation. One that is not known is freed as well: it is of a pool, or from before this library was in its place.
pub fn free(pointer: Pointer, real: impl FnOnce() -> CuResult) -> CuResult {
    // taken first: as soon as the driver has freed it, another thread can get the same address
    let held = held::take(HandleKind::Pointer, pointer);
    let code = real();
    match (held, Share::of_container()) {
        (Some(bytes), Some(share)) if code == SUCCESS => share.release(bytes),
        (Some(bytes), _) => drop(held::remember(HandleKind::Pointer, pointer, bytes)),
        (None, _) => {}
    }
    code
}

/// Calls the driver between a reservation and `after`; a call that fails leaves nothing reserved.
pub fn reserved(bytes: u64, real: impl FnOnce() -> CuResult, after: impl FnOnce(&Share)) -> CuResult {
    let Some(share) = Share::of_current_context() else { return real() };
    if pool::reserve(share, bytes).is_err() {
        return OUT_OF_MEMORY;
    }
    let code = real();
    if code == SUCCESS {
        after(share);
    } else {
        share.release(bytes);
    }
    code
}

/// Remembers an allocation, and corrects its reservation to what the driver really gave.
fn hold(share: &Share, address: Pointer, reserved: u64, actual: u64) {
    if actual > reserved {
        share.charge(actual.saturating_sub(reserved));
    } else {
        share.release(reserved.saturating_sub(actual));
    }
    if let Some(gone) = held::remember(HandleKind::Pointer, address, actual) {
        share.release(gone);
    }
}
