//! Memory limits of cgroups in the driver: read, and set if they differ.

use std::path::{Path, PathBuf};

use gputenancy_nvml::{MemoryLimit, Nvml, NvmlFailure, code};

/// A call about the limits of one cgroup on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCall {
    /// UUID of the GPU.
    pub uuid: String,
    /// Full path of the cgroup in sysfs.
    pub cgroup: PathBuf,
    /// Most bytes from now on, [`gputenancy_nvml::NO_LIMIT`] for no limit; `None` reads only.
    pub hard: Option<u64>,
}

impl LimitCall {
    /// The limits after the call; `None` if the driver has none.
    ///
    /// # Errors
    /// When NVML refuses, or accepts and reports other limits.
    pub(super) fn execute(&self, nvml: &Nvml) -> Result<Option<MemoryLimit>, NvmlFailure> {
        let gpu = nvml.by_uuid(&self.uuid)?;
        let read = |cgroup: &Path| gpu.memory_limit(cgroup);
        let present = read(&self.cgroup)?;
        let (Some(found), Some(hard)) = (present, self.hard) else { return Ok(present) };
        if (found.soft, found.hard) == (0, hard) {
            return Ok(present);
        }
        // no reservation: what one container does not use, the others may
        if gpu.set_memory_limit(&self.cgroup, 0, hard)?.is_none() {
            return Ok(None);
        }
        let after = read(&self.cgroup)?;
        if after.is_some_and(|after| (after.soft, after.hard) != (0, hard)) {
            let message = format!("succeeded, and the limits are {after:?}");
            return Err(NvmlFailure { call: "nvmlDeviceSetMemoryLimits_v1", code: code::UNKNOWN, message });
        }
        Ok(after)
    }
}
