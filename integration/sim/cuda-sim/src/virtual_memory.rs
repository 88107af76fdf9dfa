//! Virtual memory management: memory is freed when neither handles nor mappings refer to it.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::{
    abi::{Failure, INVALID_VALUE, NOT_SUPPORTED, Pointer, put},
    process::{BLOCK, Memory, Process, cuda},
};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

/// The first fields of `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    kind: c_int,
    handle_types: c_int,
    location_type: c_int,
    location: c_int,
}

impl Process {
    fn physical(&mut self, handle: u64) -> Result<&mut Memory, Failure> {
        self.virtual_memory.memory.get_mut(&handle).ok_or(INVALID_VALUE)
    }

    fn free_if_unused(&mut self, handle: u64) -> Result<(), Failure> {
        let memory = *self.physical(handle)?;
        if memory.handles + memory.mappings > 0 {
            return Ok(());
        }
        self.virtual_memory.memory.remove(&handle);
        let Some(device) = memory.device else { return Ok(()) };
        self.change(device, |state| state.large = state.large.saturating_sub(memory.bytes))
    }
}

cuda! {
    fn cuMemGetAllocationGranularity(_process, granularity: *mut usize, _properties: *const Properties, _option: c_int) {
        put(granularity, usize::try_from(BLOCK).unwrap_or(usize::MAX))
    }

    fn cuMemCreate(process, handle: *mut u64, bytes: usize, properties: *const Properties, _flags: c_ulonglong) {
        let properties = crate::abi::get(properties)?;
        let bytes = bytes as u64;
        if bytes == 0 || !bytes.is_multiple_of(BLOCK) || bytes > 1 << 48 {
            return Err(INVALID_VALUE);
        }
        let device = if properties.location_type == ON_DEVICE {
            process.device(properties.location)?;
            let device = usize::try_from(properties.location).map_err(|_| INVALID_VALUE)?;
            process.change(device, |state| state.large += bytes)?;
            Some(device)
        } else {
            None
        };
        let number = process.handle() as u64;
        process.virtual_memory.memory.insert(number, Memory { device, bytes, handles: 1, mappings: 0 });
        put(handle, number)
    }

    fn cuMemRelease(process, handle: u64) {
        let memory = process.physical(handle)?;
        memory.handles = memory.handles.checked_sub(1).ok_or(INVALID_VALUE)?;
        process.free_if_unused(handle)
    }

    fn cuMemAddressReserve(
        process, pointer: *mut Pointer, bytes: usize, _alignment: usize, _wanted: Pointer, _flags: c_ulonglong,
    ) {
        let address = process.address(bytes as u64);
        put(pointer, address)
    }

    fn cuMemAddressFree(_process, _pointer: Pointer, _bytes: usize) {
        Ok(())
    }

    fn cuMemMap(process, pointer: Pointer, bytes: usize, _offset: usize, handle: u64, _flags: c_ulonglong) {
        process.physical(handle)?.mappings += 1;
        process.virtual_memory.mappings.insert(pointer, (bytes as u64, handle));
        Ok(())
    }

    fn cuMemUnmap(process, pointer: Pointer, bytes: usize) {
        let end = pointer.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        let inside: Vec<(u64, u64)> =
            process.virtual_memory.mappings.range(pointer..end).map(|(at, (_, handle))| (*at, *handle)).collect();
        for (at, handle) in inside {
            process.virtual_memory.mappings.remove(&at);
            process.physical(handle)?.mappings -= 1;
            process.free_if_unused(handle)?;
        }
        Ok(())
    }

    fn cuMemSetAccess(_process, _pointer: Pointer, _bytes: usize, _access: *const c_void, _count: usize) {
        Ok(())
    }

    fn cuMemRetainAllocationHandle(process, handle: *mut u64, address: *mut c_void) {
        let address = address.addr() as u64;
        let found = process.virtual_memory.mappings.range(..=address).next_back();
        let (_, (_, number)) = found.filter(|(at, (bytes, _))| address < **at + bytes).ok_or(INVALID_VALUE)?;
        let number = *number;
        process.physical(number)?.handles += 1;
        put(handle, number)
    }

    fn cuMemExportToShareableHandle(_process, _shareable: *mut c_void, _handle: u64, _kind: c_uint, _flags: c_ulonglong) {
        Err(NOT_SUPPORTED)
    }
}
