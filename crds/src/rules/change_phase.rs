//! Phases of the change of one GPU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::tolerant::Extensible;

/// Phases of a change, in order; a failed change ends as `RolledBack` or `Stuck`.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum ChangePhase {
    /// Owners are notified; devices in use are not withdrawn.
    Noticed,
    /// Free devices to remove are withdrawn.
    Held,
    /// Owners of devices to remove are being evicted.
    Evicting,
    /// No pod owns a device to remove; waiting until NVML lists no process on it.
    Idle,
    /// The agent destroys and creates instances.
    Partitioning,
    /// NVML shows the new layout; canary pods verify its new devices, which no other pod can get.
    // the earlier name, as a change in progress has it in the moment of the upgrade
    #[serde(alias = "Trying")]
    Canary,
    /// NVML shows the new layout; waiting for kubelet and the Node's allocatable.
    Verifying,
    /// The change failed; the old layout is being restored.
    RollingBack,
    /// The change failed and the old layout is restored; retried later or when the plan changes.
    RolledBack,
    /// Neither layout can be reached without intervention; see the reason.
    Stuck,
}

impl Extensible for ChangePhase {
    /// Nothing is evicted. The change continues when its retry is due.
    const UNKNOWN: Self = Self::Stuck;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_name_of_the_canary_phase_is_read() {
        let phase: ChangePhase = serde_json::from_str("\"Trying\"").unwrap();
        assert_eq!(serde_json::to_string(&phase).unwrap(), "\"Canary\"");
    }
}
