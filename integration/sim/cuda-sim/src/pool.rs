//! Stream-ordered allocation: a pool keeps what was freed until it is trimmed or the threads are synchronised.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
};

use crate::{
    abi::{Device, Failure, Handle, INVALID_VALUE, Pointer, put},
    pieces::Pieces,
    process::{Allocation, Pool, Process, cuda, current, handle, number},
};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH`.
const RESERVED_HIGH: c_int = 6;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: c_int = 7;

impl Process {
    fn default_pool(&mut self, device: usize) -> usize {
        let known = self.pools.iter().find(|(_, pool)| pool.is_default && pool.device == device);
        if let Some((number, _)) = known {
            return *number;
        }
        self.create_pool(device, true)
    }

    fn create_pool(&mut self, device: usize, is_default: bool) -> usize {
        let number = self.handle();
        let (pieces, places) = (Pieces::default(), BTreeMap::new());
        self.pools.insert(number, Pool { device, pieces, places, high: 0, threshold: 0, is_default });
        number
    }

    fn pool(&mut self, number: usize) -> Result<&mut Pool, Failure> {
        self.pools.get_mut(&number).ok_or(INVALID_VALUE)
    }

    fn allocate_from(&mut self, number: usize, bytes: u64) -> Result<Pointer, Failure> {
        if bytes == 0 || bytes > 1 << 48 {
            return Err(INVALID_VALUE);
        }
        let pool = self.pool(number)?;
        let (device, growth) = (pool.device, pool.pieces.growth(bytes));
        if growth > 0 {
            self.change(device, |state| state.large += growth)?;
        }
        // never one that was freed: tests tell a second free from that of another allocation
        let address = self.address(bytes);
        let pool = self.pool(number)?;
        pool.places.insert(address, pool.pieces.allocate(bytes));
        pool.high = pool.high.max(pool.pieces.reserved());
        self.allocations.insert(address, Allocation { device, bytes, context: current(), pool: Some(number) });
        Ok(address)
    }

    /// Frees an allocation of a pool, which keeps the memory.
    pub fn free_to_pool(&mut self, number: usize, address: Pointer) -> Result<(), Failure> {
        let pool = self.pool(number)?;
        if let Some(place) = pool.places.remove(&address) {
            pool.pieces.free(place);
        }
        Ok(())
    }

    fn trim(&mut self, number: usize, keep: u64) -> Result<(), Failure> {
        let pool = self.pool(number)?;
        let (device, returned) = (pool.device, pool.pieces.trim(keep));
        self.change(device, |state| state.large = state.large.saturating_sub(returned))
    }

    /// What a synchronisation does: pools give back what exceeds their threshold.
    pub fn trim_pools(&mut self) -> Result<(), Failure> {
        let all: Vec<(usize, u64)> = self.pools.iter().map(|(number, pool)| (*number, pool.threshold)).collect();
        all.into_iter().try_for_each(|(number, threshold)| self.trim(number, threshold))
    }
}

macro_rules! streams {
    ($($alloc:ident $from_pool:ident $free:ident)*) => {cuda! {$(
        fn $alloc(process, pointer: *mut Pointer, bytes: usize, stream: Handle) {
            if let Some(captured) = process.capture_allocation(number(stream), bytes as u64) {
                return put(pointer, captured?);
            }
            let device = process.current_device()?;
            let pool = process.default_pool(device);
            let allocated = process.allocate_from(pool, bytes as u64)?;
            put(pointer, allocated)
        }

        fn $from_pool(process, pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) {
            if let Some(captured) = process.capture_allocation(number(stream), bytes as u64) {
                return put(pointer, captured?);
            }
            let allocated = process.allocate_from(number(pool), bytes as u64)?;
            put(pointer, allocated)
        }

        fn $free(process, pointer: Pointer, stream: Handle) {
            if let Some(captured) = process.capture_free(number(stream), pointer) {
                return captured;
            }
            let Some(freed) = process.allocations.remove(&pointer) else {
                return process.graphs.free(pointer).or_else(|_| process.imports.free(pointer));
            };
            process.imports.end_export(pointer);
            match freed.pool {
                Some(pool) => process.free_to_pool(pool, pointer),
                None => process.give_back(freed.device, freed.bytes),
            }
        }
    )*}};
}

streams! {
    cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync
    cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync_ptsz cuMemFreeAsync_ptsz
}

fn ordinal(process: &mut Process, device: Device) -> Result<usize, Failure> {
    process.device(device)?;
    usize::try_from(device).map_err(|_| INVALID_VALUE)
}

cuda! {
    fn cuDeviceGetDefaultMemPool(process, pool: *mut Handle, device: Device) {
        let at = ordinal(process, device)?;
        let number = process.default_pool(at);
        put(pool, handle(number))
    }

    fn cuDeviceGetMemPool(process, pool: *mut Handle, device: Device) {
        let at = ordinal(process, device)?;
        let number = process.default_pool(at);
        put(pool, handle(number))
    }

    fn cuMemPoolCreate(process, pool: *mut Handle, _properties: *const c_void) {
        // of the current device: the location in the properties is not read
        let device = process.current_device()?;
        let number = process.create_pool(device, false);
        put(pool, handle(number))
    }

    fn cuMemPoolDestroy(process, pool: Handle) {
        process.trim(number(pool), 0)?;
        process.pools.remove(&number(pool));
        Ok(())
    }

    fn cuMemPoolTrimTo(process, pool: Handle, keep: usize) {
        process.trim(number(pool), keep as u64)
    }

    fn cuMemPoolGetAttribute(process, pool: Handle, attribute: c_int, value: *mut u64) {
        let pool = process.pool(number(pool))?;
        put(value, match attribute {
            RELEASE_THRESHOLD => pool.threshold,
            RESERVED => pool.pieces.reserved(),
            RESERVED_HIGH => pool.high,
            USED => pool.pieces.used(),
            _ => return Err(INVALID_VALUE),
        })
    }

    fn cuMemPoolSetAttribute(process, pool: Handle, attribute: c_int, value: *mut u64) {
        let new = crate::abi::get(value)?;
        let pool = process.pool(number(pool))?;
        match attribute {
            RELEASE_THRESHOLD => pool.threshold = new,
            // a high watermark can only be reset
            RESERVED_HIGH if new == 0 => pool.high = pool.pieces.reserved(),
            RESERVED_HIGH => return Err(INVALID_VALUE),
            _ => {}
        }
        Ok(())
    }
}
