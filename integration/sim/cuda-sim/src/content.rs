//! What memory contains.
//!
//! Simulated: the bytes of plain, pitched and managed memory, of pools, of mapped memory of `cuMemCreate`, and of what graphs have left allocated, as
//! `cuMemcpy*` and `cuMemset*` move them ([`crate::copy`]). They are in a sparse file that all processes of the node share ([`silicon::physical`]). An
//! allocation gets physical memory when it is accessed for the first time, the lowest that is free; what it counts does not depend on that. When it is
//! freed or its process ends, the next allocation gets the same bytes: overwritten with zeroes, unless the registry key `RMDisableScrubOnFree` is set.
//! Hardware overwrites when memory is freed; a program cannot tell the difference, except that what a pool keeps is not overwritten there.
//!
//! Not simulated: kernels, graphs and arrays read and write nothing; copies take no time, and are done when the call returns, also on a stream; imported
//! memory has no content (`CUDA_ERROR_NOT_SUPPORTED`); rights to access mappings are not checked; contexts take no physical memory.

use std::{collections::BTreeMap, ops::Range};

use silicon::{Store, physical, physical::Physical, registry};

use crate::abi::{Failure, INVALID_DEVICE, OUT_OF_MEMORY, UNKNOWN};

/// Physical memory is given out in multiples of this, as small allocations are.
const PIECE: u64 = 512;

/// The physical memory of this process's allocations.
#[derive(Debug, Default)]
pub struct Content {
    physical: Option<Physical>,
    /// By the address of an allocation, or by the handle of memory of `cuMemCreate`, which is a smaller number than any address.
    placed: BTreeMap<u64, Vec<Range<u64>>>,
}

impl Content {
    /// The physical memory of the node.
    pub fn physical(&mut self, store: &Store) -> Result<&mut Physical, Failure> {
        Ok(match &mut self.physical {
            Some(known) => known,
            unknown => unknown.insert(Physical::open(store.dir()).map_err(|_| UNKNOWN)?),
        })
    }

    /// Gives physical memory to an allocation that has none yet: by its key, its bytes, and the GPU and instance that it is on.
    pub fn place(
        &mut self,
        store: &Store,
        (gpu, instance): (u32, Option<(u32, u32)>),
        (key, bytes): (u64, u64),
    ) -> Result<&[Range<u64>], Failure> {
        if !self.holds(key) {
            let machine = store.read().map_err(|_| UNKNOWN)?;
            let within = physical::of_device(&machine, gpu, instance).map_err(|_| INVALID_DEVICE)?;
            let physical = self.physical(store)?;
            let taken = physical.take(&within, bytes.next_multiple_of(PIECE)).map_err(|_| UNKNOWN)?;
            let taken = taken.ok_or(OUT_OF_MEMORY)?;
            if registry::scrubs(store.dir()) {
                taken.iter().try_for_each(|range| physical.zero(range)).map_err(|_| UNKNOWN)?;
            }
            self.placed.insert(key, taken);
        }
        self.placed.get(&key).map(Vec::as_slice).ok_or(UNKNOWN)
    }

    /// Has the allocation physical memory?
    pub fn holds(&self, key: u64) -> bool {
        self.placed.contains_key(&key)
    }

    /// Gives back the physical memory of what does not exist any more.
    pub fn keep(&mut self, exists: impl Fn(u64) -> bool) {
        let Some(physical) = &mut self.physical else { return };
        self.placed.retain(|key, ranges| {
            let keep = exists(*key);
            if !keep {
                // a range that stays locked is free when the process ends
                for range in ranges.iter() {
                    drop(physical.give_back(range));
                }
            }
            keep
        });
    }

    /// No allocation was accessed.
    pub fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }
}
