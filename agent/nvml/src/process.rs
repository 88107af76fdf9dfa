//! Processes that use a GPU or a MIG device.

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use crate::{Gpu, NvmlFailure, code, library::call};

const NOT_AVAILABLE: u32 = u32::MAX;
/// More processes than fit come and go between two calls only so often.
const TRIES: u32 = 5;

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id in our pid namespace; 0 where it has none there.
    pub pid: u32,
    /// GPU instance that it uses, with MIG.
    pub gi: Option<u32>,
    /// Compute instance that it uses, with MIG.
    pub ci: Option<u32>,
    /// Memory it uses, in MiB, where the driver tells.
    pub memory_mib: Option<u64>,
}

impl Gpu<'_> {
    /// Every process on this GPU or MIG device: compute, graphics and MPS. Of a GPU with MIG this covers all its instances.
    ///
    /// # Errors
    /// When the compute processes cannot be listed: who cannot see them must not say that there are none.
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
    let mut room = 16_u32;
    let mut tries = 0;
    loop {
        let mut infos = vec![
            nvmlProcessInfo_t {
                pid: 0,
                usedGpuMemory: 0,
                gpuInstanceId: NOT_AVAILABLE,
                computeInstanceId: NOT_AVAILABLE
            };
            room as usize
        ];
        let mut count = room;
        match query(&raw mut count, infos.as_mut_ptr()) {
            Ok(()) => {
                infos.truncate(count as usize);
                return Ok(infos.iter().map(process).collect());
            }
            Err(failure) if failure.code == code::INSUFFICIENT_SIZE && tries < TRIES => {
                tries += 1;
                room = count.max(room).saturating_mul(2).min(1 << 16);
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
