//! Processes that use a GPU or a MIG device.

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use crate::{Gpu, NvmlFailure, code, library::call};

const NOT_AVAILABLE: u32 = u32::MAX;
/// Retries with a larger buffer.
const TRIES: u32 = 5;

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id in this pid namespace; 0 if it has none here.
    pub pid: u32,
    /// GPU instance that it uses, with MIG.
    pub gi: Option<u32>,
    /// Compute instance that it uses, with MIG.
    pub ci: Option<u32>,
    /// Memory it uses, in MiB, if the driver reports it.
    pub memory_mib: Option<u64>,
}

impl Gpu<'_> {
    /// All processes on this GPU, with all its MIG devices, or on this MIG device: compute, graphics and MPS. Fails if the compute
    /// processes cannot be listed: that is not the same as no process.
    pub fn processes(&self) -> Result<Vec<Process>, NvmlFailure> {
        let handle = self.handle;
        let mut all =
            list(|count, infos| call!(self.nvml, nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos)))?;
        let graphics =
            list(|count, infos| call!(self.nvml, nvmlDeviceGetGraphicsRunningProcesses_v3(handle, count, infos)));
        all.extend(NvmlFailure::optional(graphics)?.unwrap_or_default());
        let shared =
            list(|count, infos| call!(self.nvml, nvmlDeviceGetMPSComputeRunningProcesses_v3(handle, count, infos)));
        all.extend(NvmlFailure::optional(shared)?.unwrap_or_default());
        all.sort_unstable();
        all.dedup_by_key(|process| (process.pid, process.gi, process.ci));
        Ok(all)
    }
}

fn list(
    query: impl Fn(*mut u32, *mut nvmlProcessInfo_t) -> Result<(), NvmlFailure>,
) -> Result<Vec<Process>, NvmlFailure> {
    let mut capacity = 16_u32;
    let mut tries = 0;
    loop {
        let mut infos = vec![
            nvmlProcessInfo_t {
                pid: 0,
                usedGpuMemory: 0,
                gpuInstanceId: NOT_AVAILABLE,
                computeInstanceId: NOT_AVAILABLE
            };
            capacity as usize
        ];
        let mut count = capacity;
        match query(&raw mut count, infos.as_mut_ptr()) {
            Ok(()) => {
                infos.truncate(count as usize);
                return Ok(infos.iter().map(process).collect());
            }
            Err(failure) if failure.code == code::INSUFFICIENT_SIZE && tries < TRIES => {
                tries += 1;
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
        memory_mib: (info.usedGpuMemory != u64::MAX).then_some(info.usedGpuMemory >> 20),
    }
}
