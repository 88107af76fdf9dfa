//! Arrays and mipmapped arrays. The driver pads them, so that the count is a lower bound.

use std::ffi::{c_int, c_uint};

use crate::{
    abi::{Array3dDescriptor, Array3dDescriptor32, ArrayDescriptor, ArrayDescriptor32, CuResult, Handle, SUCCESS},
    context,
    held::{self, HandleKind},
    plain::{reserved, taken},
    share::Share,
};

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: the array gets its memory by `cuMemMapArrayAsync` from what `cuMemCreate` gave.
const WITHOUT_MEMORY: c_uint = 0x40 | 0x80;
/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth is a number of layers, which is the same in all levels.
const LAYERS: c_uint = 0x01 | 0x04;

/// Bytes of a channel of a `CUarray_format`. For block-compressed and video formats, which have other codes, the most.
fn channel_bytes(format: c_int) -> u64 {
    match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 16,
    }
}

/// Bytes of an array; 0 without a descriptor, which the driver refuses.
pub fn bytes(descriptor: *const ArrayDescriptor) -> u64 {
    // SAFETY: CUDA demands a pointer to a descriptor; null is left to the driver.
    let Some(of) = (unsafe { descriptor.as_ref() }) else { return 0 };
    product([of.width, of.height, 1], of.format, of.channels)
}

/// Bytes of an array with this number of levels, each half as wide as the one before.
pub fn bytes_3d(descriptor: *const Array3dDescriptor, levels: c_uint) -> u64 {
    // SAFETY: as above.
    let Some(of) = (unsafe { descriptor.as_ref() }) else { return 0 };
    if of.flags & WITHOUT_MEMORY != 0 {
        return 0;
    }
    let level = |level: u32| {
        let [width, height, depth] = [of.width, of.height, of.depth].map(|side| side.checked_shr(level).unwrap_or(0));
        let depth = if of.flags & LAYERS == 0 { depth } else { of.depth };
        product([width, height, depth], of.format, of.channels)
    };
    (0..levels.min(usize::BITS)).map(level).fold(0, u64::saturating_add)
}

/// Bytes of an array with a descriptor of 32 bits.
pub fn bytes_32(descriptor: *const ArrayDescriptor32) -> u64 {
    // SAFETY: as above.
    let Some(of) = (unsafe { descriptor.as_ref() }) else { return 0 };
    product([of.width as usize, of.height as usize, 1], of.format, of.channels)
}

/// Bytes of an array with a descriptor of 32 bits.
pub fn bytes_3d_32(descriptor: *const Array3dDescriptor32) -> u64 {
    // SAFETY: as above.
    let Some(of) = (unsafe { descriptor.as_ref() }) else { return 0 };
    let [width, height, depth] = [of.width, of.height, of.depth].map(|side| side as usize);
    let wide = Array3dDescriptor { width, height, depth, format: of.format, channels: of.channels, flags: of.flags };
    bytes_3d(&raw const wide, 1)
}

fn product(sides: [usize; 3], format: c_int, channels: c_uint) -> u64 {
    let cell = channel_bytes(format).saturating_mul(channels.into());
    sides.iter().fold(cell, |bytes, side| bytes.saturating_mul((*side).max(1) as u64))
}

/// Creates an array.
pub fn create(array: *mut Handle, bytes: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    let bytes = taken(bytes);
    reserved(bytes, real, |share| {
        // SAFETY: the driver has just written to it.
        let number = unsafe { array.read() }.addr() as u64;
        if let Some(context) = context::current() {
            held::remember(HandleKind::ContextOfArray, number, context);
        }
        if let Some(gone) = held::remember(HandleKind::Array, number, bytes) {
            share.release(gone);
        }
    })
}

/// Destroys an array.
pub fn destroy(array: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    let number = array.addr() as u64;
    let context = held::take(HandleKind::ContextOfArray, number);
    let held = held::take(HandleKind::Array, number);
    let code = real();
    match (held, Share::of_container()) {
        (Some(bytes), Some(share)) if code == SUCCESS => share.release(bytes),
        (Some(bytes), _) => {
            context.map(|context| held::remember(HandleKind::ContextOfArray, number, context));
            held::remember(HandleKind::Array, number, bytes);
        }
        (None, _) => {}
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_halve_and_bits_are_not_bytes() {
        let float = Array3dDescriptor { width: 1024, height: 512, depth: 0, format: 0x20, channels: 4, flags: 0 };
        assert_eq!(bytes_3d(&raw const float, 1), 1024 * 512 * 16);
        assert_eq!(bytes_3d(&raw const float, 2), 1024 * 512 * 16 + 512 * 256 * 16);
        let layered = Array3dDescriptor { flags: 0x01, depth: 6, ..float };
        assert_eq!(bytes_3d(&raw const layered, 2), 6 * (1024 * 512 * 16 + 512 * 256 * 16));
        let sparse = Array3dDescriptor { flags: 0x40, ..float };
        assert_eq!(bytes_3d(&raw const sparse, 1), 0);
        let huge = ArrayDescriptor { width: usize::MAX, height: usize::MAX, format: 0x20, channels: 4 };
        assert_eq!(bytes(&raw const huge), u64::MAX);
    }
}
