//! Virtual memory management: physical memory counts from its creation until neither a handle nor a mapping refers to it.

use crate::{
    abi::{AllocationProperties, CuResult, ON_DEVICE, OUT_OF_MEMORY, Pointer, SUCCESS},
    lock::Lock,
    pool,
    share::Share,
    sorted::Sorted,
};

/// Physical memory of the share's GPU.
#[derive(Clone, Copy)]
struct Memory {
    bytes: u64,
    handles: u32,
    mappings: u32,
    /// Something else may refer to it, which is not followed: it counts until the process ends.
    kept: bool,
}

/// Memory by handle, and handles by the address of their mapping. Programs map large blocks, so that one lock is no burden here.
struct Known {
    memory: Sorted<Memory>,
    mappings: Sorted<u64>,
}

impl Known {
    const NOTHING: Self = Self { memory: Sorted::EMPTY, mappings: Sorted::EMPTY };
}

static KNOWN: Lock<Known> = Lock::new(Known::NOTHING);

/// Forgets the memory of the parent, in a child process.
pub fn forget() {
    KNOWN.reset(Known::NOTHING);
}

/// Creates physical memory.
pub fn create(
    handle: *mut u64,
    bytes: u64,
    properties: *const AllocationProperties,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: CUDA demands a pointer to the properties; null is left to the driver.
    let Some(of) = (unsafe { properties.as_ref() }) else { return real() };
    let share = if of.location_type == ON_DEVICE { Share::of_device(of.location) } else { None };
    let Some(share) = share else { return real() };
    if pool::reserve(share, bytes).is_err() {
        return OUT_OF_MEMORY;
    }
    let code = real();
    if code == SUCCESS {
        // SAFETY: the driver has just written to it.
        let number = unsafe { handle.read() };
        let memory = Memory { bytes, handles: 1, mappings: 0, kept: false };
        // without memory for it, it stays counted until the process ends
        KNOWN.with(|known| known.memory.insert(number, memory));
    } else {
        share.release(bytes);
    }
    code
}

/// Releases a handle.
pub fn release(handle: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    KNOWN.with(|known| {
        let code = real();
        if code == SUCCESS {
            known.change(handle, |memory| memory.handles = memory.handles.saturating_sub(1));
        }
        code
    })
}

/// Maps memory.
pub fn map(pointer: Pointer, handle: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    KNOWN.with(|known| {
        let code = real();
        // a mapping that is not remembered is never taken back: its memory stays counted until the process ends
        if code == SUCCESS && known.memory.get_mut(handle).is_some() {
            known.mappings.insert(pointer, handle);
            known.change(handle, |memory| memory.mappings = memory.mappings.saturating_add(1));
        }
        code
    })
}

/// Unmaps a range, which may have several mappings.
pub fn unmap(pointer: Pointer, bytes: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    KNOWN.with(|known| {
        let code = real();
        if code == SUCCESS {
            let end = pointer.saturating_add(bytes);
            while let Some((_, handle)) = known.mappings.take_first(pointer..end) {
                known.change(handle, |memory| memory.mappings = memory.mappings.saturating_sub(1));
            }
        }
        code
    })
}

/// One more handle of mapped memory.
pub fn retain(handle: *mut u64, real: impl FnOnce() -> CuResult) -> CuResult {
    KNOWN.with(|known| {
        let code = real();
        if code == SUCCESS {
            // SAFETY: the driver has just written to it.
            let number = unsafe { handle.read() };
            known.change(number, |memory| memory.handles = memory.handles.saturating_add(1));
        }
        code
    })
}

/// A call after which something else may refer to this memory, or to any: another process, a multicast object, a sparse array.
pub fn keep(handle: Option<u64>, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code == SUCCESS {
        KNOWN.with(|known| match handle {
            Some(handle) => known.change(handle, |memory| memory.kept = true),
            None => known.memory.values_mut().for_each(|memory| memory.kept = true),
        });
    }
    code
}

impl Known {
    /// Changes the count of references; without any the driver has freed the memory.
    fn change(&mut self, handle: u64, change: impl FnOnce(&mut Memory)) {
        let Some(memory) = self.memory.get_mut(handle) else { return };
        change(memory);
        let Memory { bytes, handles, mappings, kept } = *memory;
        if handles == 0 && mappings == 0 && !kept {
            self.memory.remove(handle);
            if let Some(share) = Share::of_container() {
                share.release(bytes);
            }
        }
    }
}
