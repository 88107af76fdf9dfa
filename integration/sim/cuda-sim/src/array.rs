//! Arrays and mipmapped arrays.

use std::ffi::{c_int, c_uint};

use crate::{
    abi::{Failure, Handle, INVALID_VALUE, get, put},
    process::{Array, Process, cuda, current, handle, number},
};

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor {
    width: usize,
    height: usize,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor3d {
    width: usize,
    height: usize,
    depth: usize,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR` of before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor32 {
    width: c_uint,
    height: c_uint,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` of before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor3d32 {
    width: c_uint,
    height: c_uint,
    depth: c_uint,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth is a number of layers, which is the same in all levels.
const LAYERS: c_uint = 0x01 | 0x04;

/// Bytes of one channel of a `CUarray_format`.
fn format_bytes(format: c_int) -> Result<u64, Failure> {
    match format {
        0x01 | 0x08 => Ok(1),
        0x02 | 0x09 | 0x10 => Ok(2),
        0x03 | 0x0a | 0x20 => Ok(4),
        _ => Err(INVALID_VALUE),
    }
}

fn product(sides: [usize; 3], format: c_int, channels: c_uint) -> Result<u64, Failure> {
    let cell = format_bytes(format)?.checked_mul(channels.into());
    sides
        .iter()
        .try_fold(cell.ok_or(INVALID_VALUE)?, |bytes, side| bytes.checked_mul((*side).max(1) as u64))
        .ok_or(INVALID_VALUE)
}

impl Process {
    fn create_array(&mut self, bytes: u64) -> Result<Handle, Failure> {
        let device = self.current_device()?;
        self.take(device, bytes)?;
        let created = self.handle();
        self.arrays.insert(created, Array { device, bytes, context: current() });
        Ok(handle(created))
    }

    fn destroy_array(&mut self, array: Handle) -> Result<(), Failure> {
        let Array { device, bytes, .. } = self.arrays.remove(&number(array)).ok_or(INVALID_VALUE)?;
        self.give_back(device, bytes)
    }
}

cuda! {
    fn cuArrayCreate_v2(process, array: *mut Handle, descriptor: *const Descriptor) {
        let Descriptor { width, height, format, channels } = get(descriptor)?;
        let created = process.create_array(product([width, height, 1], format, channels)?)?;
        put(array, created)
    }

    fn cuArray3DCreate_v2(process, array: *mut Handle, descriptor: *const Descriptor3d) {
        let Descriptor3d { width, height, depth, format, channels, .. } = get(descriptor)?;
        let created = process.create_array(product([width, height, depth], format, channels)?)?;
        put(array, created)
    }

    fn cuArrayCreate(process, array: *mut Handle, descriptor: *const Descriptor32) {
        let Descriptor32 { width, height, format, channels } = get(descriptor)?;
        let created = process.create_array(product([width as usize, height as usize, 1], format, channels)?)?;
        put(array, created)
    }

    fn cuArray3DCreate(process, array: *mut Handle, descriptor: *const Descriptor3d32) {
        let Descriptor3d32 { width, height, depth, format, channels, .. } = get(descriptor)?;
        let sides = [width, height, depth].map(|side| side as usize);
        let created = process.create_array(product(sides, format, channels)?)?;
        put(array, created)
    }

    fn cuArrayDestroy(process, array: Handle) {
        process.destroy_array(array)
    }

    fn cuMipmappedArrayCreate(process, array: *mut Handle, descriptor: *const Descriptor3d, levels: c_uint) {
        let Descriptor3d { width, height, depth, format, channels, flags } = get(descriptor)?;
        let half = |side: usize, level: u32| side.checked_shr(level).unwrap_or(0);
        let layers = |level: u32| if flags & LAYERS == 0 { half(depth, level) } else { depth };
        let level = |level: u32| product([half(width, level), half(height, level), layers(level)], format, channels);
        let bytes = (0..levels.min(32)).try_fold(0, |sum, at| Ok(sum + level(at)?))?;
        let created = process.create_array(bytes)?;
        put(array, created)
    }

    fn cuMipmappedArrayDestroy(process, array: Handle) {
        process.destroy_array(array)
    }
}
