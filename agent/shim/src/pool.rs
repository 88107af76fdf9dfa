//! Stream-ordered allocation. A pool keeps memory that was freed, so what counts is what it has reserved, as the driver reports it. Memory that a
//! pool gives back at a synchronisation is noticed at the next allocation that would be denied otherwise.
//!
//! Before a pool can grow, whole steps of its growth are reserved ([`step`]). The driver does not say beforehand whether a pool that keeps enough
//! unused has it in one piece. If not, the pool grows all the same: where that is beyond the limit the allocation is freed, and the pool trimmed.

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
    sync::atomic::{
        AtomicU32,
        Ordering::{AcqRel, Acquire},
    },
};

use gputenancy_ledger::Denied;

use crate::{
    abi::{
        AllocationProperties, CuResult, Device, Handle, INVALID_HANDLE, INVALID_VALUE, ON_DEVICE, OUT_OF_MEMORY,
        POOL_RESERVED, POOL_USED, Pointer, SUCCESS,
    },
    ended, graph_memory,
    lock::Lock,
    real::driver,
    share::Share,
    stream::Stream,
};

/// Pools grow by at most 2^25 bytes at a time, or by a multiple of that.
const LARGEST_STEP: u32 = 25;
/// The driver gives out memory in 2^21 bytes.
const SMALLEST_STEP: u32 = 21;
/// Exponent of the step that all sizes of pools so far have had.
static STEP: AtomicU32 = AtomicU32::new(LARGEST_STEP);
/// Most pools of a process that are followed; what others take stays counted until the process ends.
const POOLS: usize = 64;

/// A pool, and the bytes that are counted for it.
#[derive(Clone, Copy)]
struct Counted {
    pool: usize,
    bytes: u64,
}

/// The pools that this process has allocated from.
type Pools = [Counted; POOLS];

const NO_POOLS: Pools = [Counted { pool: 0, bytes: 0 }; POOLS];

static COUNTED: Lock<Pools> = Lock::new(NO_POOLS);

/// Forgets the pools of the parent, in a child process.
pub fn forget() {
    COUNTED.reset(NO_POOLS);
}

/// Reserves memory; before it is denied, graphs and pools give back what they keep unused, as the driver does itself when it has no memory left.
pub fn reserve(share: &Share, bytes: u64) -> Result<(), Denied> {
    share.reserve(bytes).or_else(|_| {
        graph_memory::trim(share);
        reclaim(share);
        share.reserve(bytes)
    })
}

/// Makes all pools give back what they keep unused.
pub fn reclaim(share: &Share) {
    COUNTED.with(|counted| trim_all(counted, share));
}

/// Counts the pools again after a context is gone, and with it perhaps some of them.
pub fn after_context(share: &Share) {
    COUNTED.with(|counted| {
        for known in counted.iter_mut().filter(|known| known.pool != 0) {
            let pool: Handle = std::ptr::with_exposed_provenance_mut(known.pool);
            let (now, left) = match read(pool, POOL_RESERVED) {
                Ok(now) => (now, known.pool),
                Err(INVALID_VALUE | INVALID_HANDLE) => (0, 0),
                Err(_) => continue,
            };
            share.release(known.bytes.saturating_sub(now));
            share.charge(now.saturating_sub(known.bytes));
            *known = Counted { pool: left, bytes: now };
        }
    });
}

/// Allocates from a pool, or from that of the current device. `free` frees it again, if the pool has grown beyond the limit.
pub fn allocate(
    pool: Option<Handle>,
    (pointer, bytes): (*mut Pointer, usize),
    (stream, per_thread): (Handle, bool),
    real: impl Fn() -> CuResult,
    free: impl Fn(Pointer) -> CuResult,
) -> CuResult {
    let Some(share) = pool.map_or_else(Share::of_current_context, of_pool) else { return real() };
    let Some(pool) = pool.or_else(current) else { return real() };
    let bytes = bytes as u64;
    let attempt = |counted: &mut Pools, growth: u64| {
        if share.reserve(growth).is_err() {
            return Attempt::Refused;
        }
        let code = real();
        let beyond = settle(counted, share, pool, growth);
        if code == SUCCESS && beyond && share.is_exceeded() {
            // SAFETY: the driver has just written to it.
            free(unsafe { pointer.read() });
            return Attempt::InPieces;
        }
        Attempt::Answered(code)
    };
    let first = COUNTED.with(|counted| attempt(counted, growth_for(pool, bytes)));
    let in_pieces = match first {
        Attempt::Answered(code) => return code,
        // a graph owns what is allocated while it is captured, and nothing is allocated now
        Attempt::Refused if Stream::new(stream, per_thread).is_capturing() => return real(),
        Attempt::Refused => false,
        Attempt::InPieces => true,
    };
    graph_memory::trim(share);
    COUNTED.with(|counted| {
        trim_all(counted, share);
        let growth = if in_pieces { steps(bytes) } else { growth_for(pool, bytes) };
        match attempt(counted, growth) {
            Attempt::Answered(code) => code,
            Attempt::Refused => OUT_OF_MEMORY,
            Attempt::InPieces => {
                trim_all(counted, share);
                OUT_OF_MEMORY
            }
        }
    })
}

/// What became of an allocation.
enum Attempt {
    /// The driver's answer, with as much as was reserved.
    Answered(CuResult),
    /// The growth was refused, and the driver was not called.
    Refused,
    /// The pool has grown beyond the limit, since what it keeps is in pieces; the allocation is freed again.
    InPieces,
}

/// Bytes by which a pool grows at most for an allocation that does not fit into what it keeps.
fn growth_for(pool: Handle, bytes: u64) -> u64 {
    let unused = attribute(pool, POOL_RESERVED).unwrap_or(0).saturating_sub(attribute(pool, POOL_USED).unwrap_or(0));
    if bytes <= unused { 0 } else { steps(bytes) }
}

/// A size as a multiple of the step.
fn steps(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(step()).unwrap_or(u64::MAX)
}

/// Bytes by which pools grow, or a multiple of it.
fn step() -> u64 {
    1_u64.checked_shl(STEP.load(Acquire)).unwrap_or(1)
}

/// A pool has had this size: the driver may grow pools by less than was thought.
fn observe(reserved: u64) {
    if reserved > 0 {
        STEP.fetch_min(reserved.trailing_zeros().max(SMALLEST_STEP), AcqRel);
    }
}

/// The share, if a pool of the program is on its GPU. It is that of its creation, whatever context is current; one that is not known is taken for one
/// of the current context, and without a context for one of the share.
fn of_pool(pool: Handle) -> Option<&'static Share> {
    let share = Share::of_container()?;
    let known = COUNTED.with(|counted| counted.iter().any(|known| known.pool == pool.addr()));
    if known || Share::has_no_context() { Some(share) } else { Share::of_current_context() }
}

/// Creates a pool.
pub fn create(pool: *mut Handle, properties: *const AllocationProperties, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    // SAFETY: CUDA demands a pointer to the properties, whose first fields are those of an allocation; null is left to the driver.
    let of = unsafe { properties.as_ref() };
    let Some(of) = of.filter(|of| code == SUCCESS && of.location_type == ON_DEVICE) else { return code };
    if Share::of_device(of.location).is_some() {
        // SAFETY: the driver has just written to it.
        let created = unsafe { pool.read() };
        COUNTED.with(|counted| {
            let same = counted.iter().position(|known| known.pool == created.addr());
            let free = || counted.iter().position(|known| known.pool == 0);
            if let Some(place) = same.or_else(free).and_then(|at| counted.get_mut(at)) {
                place.pool = created.expose_provenance();
            }
        });
    }
    code
}

/// A call after which a pool may have less.
pub fn after(pool: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if let Some(share) = Share::of_container() {
        COUNTED.with(|counted| {
            if counted.iter().any(|known| known.pool == pool.addr()) {
                settle(counted, share, pool, 0);
            }
        });
    }
    code
}

/// Destroys a pool.
pub fn destroy(pool: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if let (SUCCESS, Some(share)) = (code, Share::of_container()) {
        COUNTED.with(|counted| {
            if let Some(known) = counted.iter_mut().find(|known| known.pool == pool.addr()) {
                share.release(known.bytes);
                *known = Counted { pool: 0, bytes: 0 };
            }
        });
    }
    code
}

/// Counts all pools again.
pub fn refresh(share: &Share) {
    ended::collect(share);
    COUNTED.with(|counted| {
        for pool in known(counted) {
            settle(counted, share, pool, 0);
        }
    });
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

fn attribute(pool: Handle, attribute: c_int) -> Option<u64> {
    read(pool, attribute).ok()
}

fn read(pool: Handle, attribute: c_int) -> Result<u64, CuResult> {
    let mut value: u64 = 0;
    let to: *mut c_void = (&raw mut value).cast();
    match driver!(cuMemPoolGetAttribute(pool => Handle, attribute => c_int, to => *mut c_void)) {
        SUCCESS => Ok(value),
        code => Err(code),
    }
}

/// Makes the ledger agree with what a pool has reserved, where `growth` bytes are counted in addition to what is known of the pool; true if the pool
/// has more than that. They stay counted until the driver answers again, or for ever if there are too many pools. More than that is counted even beyond
/// the limit: the driver has it already.
fn settle(counted: &mut Pools, share: &Share, pool: Handle, growth: u64) -> bool {
    let at = match counted.iter().position(|known| known.pool == pool.addr()) {
        Some(at) => counted.get_mut(at),
        None => counted.iter_mut().find(|known| known.pool == 0),
    };
    let Some(known) = at else { return false };
    let before = known.bytes.saturating_add(growth);
    let Some(now) = attribute(pool, POOL_RESERVED) else {
        *known = Counted { pool: pool.addr(), bytes: before };
        return false;
    };
    observe(now);
    share.correct(before, now);
    *known = Counted { pool: pool.addr(), bytes: now };
    now > before
}

/// Makes all pools give back what they keep unused.
fn trim_all(counted: &mut Pools, share: &Share) {
    ended::collect(share);
    for pool in known(counted) {
        // what is still in use by a stream stays
        let _ = driver!(cuMemPoolTrimTo(pool => Handle, 0 => usize));
        settle(counted, share, pool, 0);
    }
}

/// The pools at this time, without memory of the heap: `cuMemGetInfo` counts them at each call.
fn known(counted: &Pools) -> impl Iterator<Item = Handle> + use<> {
    let pools = (*counted).map(|known| known.pool).into_iter().filter(|pool| *pool != 0);
    pools.map(std::ptr::with_exposed_provenance_mut)
}
