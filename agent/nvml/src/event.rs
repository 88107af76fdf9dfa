//! Faults that the driver reports as events.

use std::{mem::zeroed, ptr::null_mut};

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use crate::{
    FaultKind, Gpu, Nvml, NvmlFailure, code,
    library::{call, output},
};

const DOUBLE_BIT_ECC: u64 = 1 << 1;
const XID: u64 = 1 << 3;
/// Codes of one GPU alone: the others report their faults.
const LEFT_OUT: [u32; 3] = [code::NOT_SUPPORTED, code::FUNCTION_NOT_FOUND, code::GPU_IS_LOST];

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// UUID of the GPU, unless it does not answer any more.
    pub uuid: Option<String>,
    /// Id of the GPU instance, if the fault is of one.
    pub instance: Option<u32>,
    /// Its kind.
    pub kind: FaultKind,
}

/// A subscription to the faults of some GPUs.
pub struct EventSet<'n> {
    nvml: &'n Nvml,
    set: nvmlEventSet_t,
}

impl<'n> EventSet<'n> {
    /// Subscribes to the faults of these GPUs; one that supports no fault events, or that is lost, is left out.
    pub fn new(nvml: &'n Nvml, gpus: &[Gpu<'n>]) -> Result<Self, NvmlFailure> {
        let set = output(null_mut(), |set| call!(nvml, nvmlEventSetCreate(set)))?;
        let this = Self { nvml, set };
        for gpu in gpus {
            let supported = output(0, |types| call!(nvml, nvmlDeviceGetSupportedEventTypes(gpu.handle, types)));
            let wanted = NvmlFailure::none_for(&LEFT_OUT, supported)?.unwrap_or(0) & (DOUBLE_BIT_ECC | XID);
            if wanted != 0 {
                NvmlFailure::none_for(&LEFT_OUT, call!(nvml, nvmlDeviceRegisterEvents(gpu.handle, wanted, set)))?;
            }
        }
        Ok(this)
    }

    /// The next fault, waiting at most so many milliseconds.
    pub fn next(&self, timeout_ms: u32) -> Result<Option<FaultEvent>, NvmlFailure> {
        // SAFETY: a struct of integers and a handle; zero is a value of each.
        let empty: nvmlEventData_t = unsafe { zeroed() };
        let data = output(empty, |data| call!(self.nvml, nvmlEventSetWait_v2(self.set, data, timeout_ms)));
        let Some(data) = NvmlFailure::none_for(&[code::TIMEOUT], data)? else { return Ok(None) };
        let device = Gpu { nvml: self.nvml, handle: data.device };
        let kind = if data.eventType == XID { FaultKind::Xid(data.eventData) } else { FaultKind::UncorrectableEcc };
        // 0xFFFFFFFF without one, by NVML's documentation
        let instance = Some(data.gpuInstanceId).filter(|gi| *gi != u32::MAX);
        Ok(Some(FaultEvent { instance, uuid: if data.device.is_null() { None } else { device.uuid().ok() }, kind }))
    }
}

impl Drop for EventSet<'_> {
    fn drop(&mut self) {
        // fails only if the driver is gone, and the set with it
        let _ = call!(self.nvml, nvmlEventSetFree(self.set));
    }
}
