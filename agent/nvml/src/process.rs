//! Processes that use a GPU or a MIG device.

use std::cmp::Reverse;

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use crate::{Gpu, NvmlFailure, Process, code, library::call};

const NOT_AVAILABLE: u32 = u32::MAX;
/// `NVML_VALUE_NOT_AVAILABLE` as an amount of memory.
const MEMORY_NOT_AVAILABLE: u64 = u64::MAX;
/// Retries with a larger buffer.
const RETRIES: u32 = 5;

impl Gpu<'_> {
    /// All processes on this GPU, with all its MIG devices, or on this MIG device: compute, graphics and MPS. Fails if the compute
    /// processes cannot be listed: that is not the same as no process.
    pub fn processes(&self) -> Result<Vec<Process>, NvmlFailure> {
        let (nvml, handle) = (self.nvml, self.handle);
        let mut all = query(|infos, count| call!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos)))?;
        let graphics =
            query(|infos, count| call!(nvml, nvmlDeviceGetGraphicsRunningProcesses_v3(handle, count, infos)));
        let mps = query(|infos, count| call!(nvml, nvmlDeviceGetMPSComputeRunningProcesses_v3(handle, count, infos)));
        for processes in [graphics, mps] {
            all.extend(NvmlFailure::optional(processes)?.unwrap_or_default());
        }
        // of a process that two lists have, the larger memory counts
        all.sort_unstable_by_key(|process| (process.pid, process.gi, process.ci, Reverse(process.memory)));
        all.dedup_by_key(|process| (process.pid, process.gi, process.ci));
        Ok(all)
    }
}

/// Lists processes with a buffer that grows while it is too small.
fn query(
    call: impl Fn(*mut nvmlProcessInfo_t, *mut u32) -> Result<(), NvmlFailure>,
) -> Result<Vec<Process>, NvmlFailure> {
    let (gi, ci) = (NOT_AVAILABLE, NOT_AVAILABLE);
    let empty = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: gi, computeInstanceId: ci };
    let (mut capacity, mut retries) = (16_u32, 0);
    loop {
        let (mut infos, mut count) = (vec![empty; capacity as usize], capacity);
        match call(infos.as_mut_ptr(), &raw mut count) {
            Ok(()) => return Ok(infos.iter().take(count as usize).map(process).collect()),
            Err(failure) if failure.code == code::INSUFFICIENT_SIZE && retries < RETRIES => {
                retries += 1;
                capacity = count.max(capacity).saturating_mul(2).min(1 << 16);
            }
            Err(failure) => return Err(failure),
        }
    }
}

fn process(info: &nvmlProcessInfo_t) -> Process {
    let known = |id: u32| (id != NOT_AVAILABLE).then_some(id);
    Process {
        pid: info.pid,
        gi: known(info.gpuInstanceId),
        ci: known(info.computeInstanceId),
        memory: Some(info.usedGpuMemory).filter(|bytes| *bytes != MEMORY_NOT_AVAILABLE),
    }
}
