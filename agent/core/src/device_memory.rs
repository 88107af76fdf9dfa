//! Memory of a device, by what holds it.

use std::collections::BTreeSet;

/// A GPU, or one of its MIG instances.
pub type Place = (String, Option<u32>);

/// All memory of a device by what holds it, in bytes: the sum is the device's total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// Reserved by the driver.
    pub reserved: u64,
    /// Of processes, by NVML.
    pub processes: u64,
    /// In use, and of no process that NVML lists memory of.
    pub unattributed: u64,
    /// Free.
    pub free: u64,
}

/// Memory that no living process explains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ghost {
    /// Processes that NVML lists although they have ended.
    pub pids: BTreeSet<u32>,
    /// The memory of these, and memory in use of no process, in bytes.
    pub bytes: u64,
}
