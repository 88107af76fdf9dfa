//! Events: sets that wait for Xid errors.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};
use silicon::machine::Xid;
use silicon::{Code, Machine};

use crate::call::{context::Context, handle, nvml, out::put};

/// `nvmlEventTypeXidCriticalError`.
const XID: u64 = 0x8;
/// Xid and ECC events.
const SUPPORTED: u64 = XID | 0x1 | 0x2;
/// No instance.
const NONE: u32 = u32::MAX;
/// How often a waiting call polls: one stat of the state file.
const LOOK: Duration = Duration::from_millis(25);

/// The events of a set.
struct Set {
    gpus: Vec<u32>,
    next: u64,
}

struct Sets {
    last: usize,
    open: BTreeMap<usize, Set>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets { last: 0, open: BTreeMap::new() });

/// Calls a function with an open set.
fn with<T>(set: nvmlEventSet_t, f: impl FnOnce(&mut Set) -> T) -> Result<T, Code> {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.open.get_mut(&set.addr()).map(f).ok_or(Code::INVALID_ARGUMENT)
}

/// Takes the next event of a set.
fn take(set: &mut Set, machine: &Machine) -> Option<Xid> {
    let event = machine.events.iter().find(|e| e.number >= set.next && set.gpus.contains(&e.gpu)).copied()?;
    set.next = event.number + 1;
    Some(event)
}

fn wait(ctx: &Context, set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: u32) -> Result<(), Code> {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let machine = ctx.now()?;
        if let Some(event) = with(set, |set| take(set, &machine))? {
            let gpu = machine.gpus.get(event.gpu as usize).ok_or(Code::UNKNOWN)?;
            return put(
                data,
                nvmlEventData_t {
                    device: handle::of_gpu(gpu),
                    eventType: XID,
                    eventData: event.xid,
                    gpuInstanceId: event.instance.unwrap_or(NONE),
                    computeInstanceId: event.instance.map_or(NONE, |_| 0),
                },
            );
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Code::TIMEOUT);
        }
        std::thread::sleep(left.min(LOOK));
    }
}

nvml! {
    fn nvmlEventSetCreate(ctx, set: *mut nvmlEventSet_t) {
        let next = ctx.machine.next_event;
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.last += 1;
        let id = sets.last;
        sets.open.insert(id, Set { gpus: Vec::new(), next });
        put(set, std::ptr::without_provenance_mut(id))
    }

    fn nvmlEventSetFree(_ctx, set: nvmlEventSet_t) {
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.open.remove(&set.addr()).map(drop).ok_or(Code::INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetSupportedEventTypes[device](ctx, device: nvmlDevice_t, types: *mut c_ulonglong) {
        ctx.gpu(device)?;
        put(types, SUPPORTED)
    }

    fn nvmlDeviceRegisterEvents[device](
        ctx, device: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t,
    ) {
        let gpu = ctx.gpu(device)?.index;
        if types & !SUPPORTED != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        with(set, |set| if types & XID != 0 { set.gpus.push(gpu) })
    }

    fn nvmlEventSetWait_v2(ctx, set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint) {
        wait(ctx, set, data, timeout_ms)
    }

    fn nvmlEventSetWait(ctx, set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint) {
        wait(ctx, set, data, timeout_ms)
    }
}
