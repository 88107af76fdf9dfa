//! Plain, pitched and managed allocations.

use std::ffi::{c_int, c_uint};

use crate::{
    abi::{Failure, INVALID_VALUE, OUT_OF_MEMORY, Pointer, put},
    process::{Allocation, Process, cuda, current},
};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_int = 2;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: c_uint = 2;
/// Bytes between two rows are a multiple of this.
const PITCH: u64 = 512;

impl Process {
    /// Takes memory of a device.
    pub fn take(&mut self, device: usize, bytes: u64) -> Result<(), Failure> {
        // more than any device has, and rounding it up would wrap
        if bytes > 1 << 48 {
            return Err(OUT_OF_MEMORY);
        }
        self.change(device, |state| state.add(bytes))
    }

    /// Gives memory of a device back.
    pub fn give_back(&mut self, device: usize, bytes: u64) -> Result<(), Failure> {
        self.change(device, |state| state.remove(bytes))
    }

    fn allocate(&mut self, bytes: u64) -> Result<Pointer, Failure> {
        let device = self.current_device()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        self.take(device, bytes)?;
        let address = self.address(bytes);
        self.allocations.insert(address, Allocation { device, bytes, context: current(), pool: None });
        Ok(address)
    }

    fn free(&mut self, pointer: Pointer) -> Result<(), Failure> {
        if pointer == 0 {
            return Ok(());
        }
        let Some(Allocation { device, bytes, pool, .. }) = self.allocations.remove(&pointer) else {
            return self.graphs.free(pointer).or_else(|_| self.imports.free(pointer));
        };
        self.imports.end_export(pointer);
        match pool {
            Some(pool) => self.free_to_pool(pool, pointer),
            None => self.give_back(device, bytes),
        }
    }
}

cuda! {
    fn cuMemAlloc_v2(process, pointer: *mut Pointer, bytes: usize) {
        let allocated = process.allocate(bytes as u64)?;
        put(pointer, allocated)
    }

    fn cuMemAlloc(process, pointer: *mut c_uint, _bytes: c_uint) {
        // an address of 32 bits, which no device of today gives out
        process.current_device()?;
        put(pointer, 0)?;
        Err(OUT_OF_MEMORY)
    }

    fn cuMemAllocManaged(process, pointer: *mut Pointer, bytes: usize, _flags: c_uint) {
        let allocated = process.allocate(bytes as u64)?;
        put(pointer, allocated)
    }

    fn cuMemAllocPitch_v2(
        process, pointer: *mut Pointer, pitch: *mut usize, width: usize, height: usize, _element: c_uint,
    ) {
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(INVALID_VALUE)?;
        let bytes = row.checked_mul(height as u64).ok_or(OUT_OF_MEMORY)?;
        let allocated = process.allocate(bytes)?;
        put(pitch, usize::try_from(row).unwrap_or(usize::MAX))?;
        put(pointer, allocated)
    }

    fn cuMemFree_v2(process, pointer: Pointer) {
        process.free(pointer)
    }

    fn cuMemFree(process, pointer: c_uint) {
        process.free(pointer.into())
    }

    fn cuMemGetInfo_v2(process, free: *mut usize, total: *mut usize) {
        let device = process.current_device()?;
        let (all, left) = process.memory(device)?;
        put(free, usize::try_from(left).unwrap_or(usize::MAX))?;
        put(total, usize::try_from(all).unwrap_or(usize::MAX))
    }

    fn cuMemGetInfo(process, free: *mut c_uint, total: *mut c_uint) {
        let device = process.current_device()?;
        let (all, left) = process.memory(device)?;
        put(free, c_uint::try_from(left).unwrap_or(c_uint::MAX))?;
        put(total, c_uint::try_from(all).unwrap_or(c_uint::MAX))
    }

    fn cuMemGetAddressRange_v2(process, base: *mut Pointer, size: *mut usize, pointer: Pointer) {
        let known = process.allocations.range(..=pointer).next_back();
        let (start, allocation) = known.filter(|(start, a)| pointer < **start + a.bytes).ok_or(INVALID_VALUE)?;
        put(base, *start)?;
        put(size, usize::try_from(allocation.bytes).unwrap_or(usize::MAX))
    }

    fn cuPointerGetAttribute(process, value: *mut c_uint, attribute: c_int, pointer: Pointer) {
        let known = process.allocations.range(..=pointer).next_back();
        let known = known.is_some_and(|(start, a)| pointer < *start + a.bytes) || process.graphs.knows(pointer) || process.imports.knows(pointer);
        if !known {
            return Err(INVALID_VALUE);
        }
        if attribute == MEMORY_TYPE { put(value, DEVICE_MEMORY) } else { Err(INVALID_VALUE) }
    }
}
