//! Stream-ordered allocation. A pool keeps memory that was freed, so what counts is what it has reserved, as the driver reports it. Memory that a
//! pool gives back at a synchronisation is noticed at the next allocation.

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
    sync::{Mutex, PoisonError},
};

use crate::{
    abi::{CuResult, Device, Handle, OUT_OF_MEMORY, POOL_RESERVED, POOL_USED, SUCCESS},
    real::driver,
    share::Share,
};

/// Multiple in which a pool is expected to grow, on top of what is asked for.
const CHUNK: u64 = 2 << 20;
/// Most pools of a process; others are counted by their allocations' sizes and never given back.
const POOLS: usize = 64;

/// A pool, and the bytes that are counted for it.
#[derive(Clone, Copy)]
struct Counted {
    pool: usize,
    bytes: u64,
}

/// The pools that this process has allocated from.
static COUNTED: Mutex<[Counted; POOLS]> = Mutex::new([Counted { pool: 0, bytes: 0 }; POOLS]);

/// Allocates from a pool, or from that of the current device.
pub fn allocate(pool: Option<Handle>, bytes: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some(share) = Share::of_current_context() else { return real() };
    let Some(pool) = pool.or_else(current) else { return real() };
    let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let unused = attribute(pool, POOL_RESERVED).saturating_sub(attribute(pool, POOL_USED));
    let growth = bytes.saturating_sub(unused).checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX);
    if share.reserve(growth).is_err() {
        // pools may have given memory back since
        recount_all(&mut counted, share);
        if share.reserve(growth).is_err() {
            return OUT_OF_MEMORY;
        }
    }
    let code = real();
    share.release(growth);
    recount(&mut counted, share, pool);
    code
}

/// A call after which a pool may have less.
pub fn after(pool: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if let Some(share) = Share::of_container() {
        let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
        recount(&mut counted, share, pool);
    }
    code
}

/// Destroys a pool.
pub fn destroy(pool: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if let (SUCCESS, Some(share)) = (code, Share::of_container()) {
        let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = counted.iter_mut().find(|known| known.pool == pool.addr()) {
            share.release(known.bytes);
            *known = Counted { pool: 0, bytes: 0 };
        }
    }
    code
}

/// Counts all pools again.
pub fn refresh(share: &Share) {
    let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    recount_all(&mut counted, share);
}

/// The pool from which the current device allocates.
fn current() -> Option<Handle> {
    let (mut device, mut pool): (Device, Handle) = (0, null_mut());
    let code = driver!(cuCtxGetDevice(&raw mut device => *mut Device));
    if code != SUCCESS {
        return None;
    }
    let code = driver!(cuDeviceGetMemPool(&raw mut pool => *mut Handle, device => Device));
    (code == SUCCESS).then_some(pool)
}

fn attribute(pool: Handle, attribute: c_int) -> u64 {
    let mut value: u64 = 0;
    let to: *mut c_void = (&raw mut value).cast();
    let code = driver!(cuMemPoolGetAttribute(pool => Handle, attribute => c_int, to => *mut c_void));
    if code == SUCCESS { value } else { 0 }
}

/// Makes the ledger agree with what a pool has reserved. Its growth is counted even beyond the limit: the driver has it already.
fn recount(counted: &mut [Counted; POOLS], share: &Share, pool: Handle) {
    let free = |known: &&mut Counted| known.pool == 0;
    let at = match counted.iter().position(|known| known.pool == pool.addr()) {
        Some(at) => counted.get_mut(at),
        None => counted.iter_mut().find(free),
    };
    let Some(known) = at else { return };
    let now = attribute(pool, POOL_RESERVED);
    if now > known.bytes {
        share.charge(now.saturating_sub(known.bytes));
    } else {
        share.release(known.bytes.saturating_sub(now));
    }
    *known = Counted { pool: pool.addr(), bytes: now };
}

fn recount_all(counted: &mut [Counted; POOLS], share: &Share) {
    let pools: Vec<usize> = counted.iter().map(|known| known.pool).filter(|pool| *pool != 0).collect();
    for pool in pools {
        recount(counted, share, std::ptr::with_exposed_provenance_mut(pool));
    }
}
