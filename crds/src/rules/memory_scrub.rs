//! Whether a pod can find in GPU memory what the pod before it has left there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::tolerant::Extensible;

/// Whether the driver overwrites GPU memory that a process frees, before another process gets it.
///
/// NVIDIA's Linux driver does so from Turing on (`bScrubOnFreeEnabled` of the open kernel modules), also for MIG instances, unless the
/// registry key `RMDisableScrubOnFree` switches it off.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum MemoryScrub {
    /// The driver overwrites freed memory.
    On,
    /// The driver is configured to leave freed memory as it is.
    Off,
    /// The configuration of the driver cannot be read, or the hypervisor has it.
    #[default]
    Unknown,
}

impl Extensible for MemoryScrub {
    const UNKNOWN: Self = Self::Unknown;
}

/// Treatment of nodes whose driver leaves freed GPU memory as it is.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum UnscrubbedMemory {
    /// Their devices go to no new pod.
    #[default]
    Refuse,
    /// They are used like others.
    Accept,
}

impl UnscrubbedMemory {
    /// Is a node in this state used?
    pub fn admits(self, scrub: MemoryScrub) -> bool {
        self == Self::Accept || scrub != MemoryScrub::Off
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_refuse(&self) -> bool {
        *self == Self::Refuse
    }
}

impl Extensible for UnscrubbedMemory {
    const UNKNOWN: Self = Self::Refuse;
}
