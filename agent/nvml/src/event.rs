//! Faults that the driver reports.

use std::{mem::zeroed, ptr::null_mut};

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use crate::{Gpu, Nvml, NvmlFailure, code, library::call};

const DOUBLE_BIT_ECC: u64 = 1 << 1;
const XID: u64 = 1 << 3;

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// UUID of the GPU, where it can still be asked.
    pub uuid: Option<String>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An Xid error with this number.
    Xid(u64),
    /// A memory error that ECC could not correct.
    UncorrectableEcc,
}

/// The faults of some GPUs, waited for together.
pub struct EventSet<'n> {
    nvml: &'n Nvml,
    set: nvmlEventSet_t,
}

impl<'n> EventSet<'n> {
    /// Listens to the faults of these GPUs; a GPU that has none to report is left out.
    pub fn new(nvml: &'n Nvml, gpus: &[Gpu<'n>]) -> Result<Self, NvmlFailure> {
        let mut set = null_mut();
        call!(nvml, nvmlEventSetCreate(&raw mut set))?;
        let this = Self { nvml, set };
        for gpu in gpus {
            let mut supported = 0;
            let asked = call!(nvml, nvmlDeviceGetSupportedEventTypes(gpu.handle, &raw mut supported));
            let wanted = supported & (DOUBLE_BIT_ECC | XID);
            if NvmlFailure::optional(asked)?.is_some() && wanted != 0 {
                NvmlFailure::optional(call!(nvml, nvmlDeviceRegisterEvents(gpu.handle, wanted, set)))?;
            }
        }
        Ok(this)
    }

    /// The next fault, waiting at most so many milliseconds.
    pub fn next(&self, timeout_ms: u32) -> Result<Option<Event>, NvmlFailure> {
        // SAFETY: a struct of integers and a handle; zero is a value of each.
        let mut data: nvmlEventData_t = unsafe { zeroed() };
        match call!(self.nvml, nvmlEventSetWait_v2(self.set, &raw mut data, timeout_ms)) {
            Ok(()) => {}
            Err(failure) if failure.code == code::TIMEOUT => return Ok(None),
            Err(failure) => return Err(failure),
        }
        let device = Gpu { nvml: self.nvml, handle: data.device };
        let kind = if data.eventType == XID { EventKind::Xid(data.eventData) } else { EventKind::UncorrectableEcc };
        Ok(Some(Event { uuid: if data.device.is_null() { None } else { device.uuid().ok() }, kind }))
    }
}

impl Drop for EventSet<'_> {
    fn drop(&mut self) {
        // Nothing to be done when even this is refused: the driver is gone, and the set with it.
        let _ = call!(self.nvml, nvmlEventSetFree(self.set));
    }
}
