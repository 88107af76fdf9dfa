//! What limits the memory of containers with a share of a GPU, as the agent of a node reports it.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{Isolation, SharingMode};

/// What limits the memory of containers that start now with a share, by kind of share. The agent knows it before the first share exists.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeEnforcement {
    /// For time-slices.
    #[serde(deserialize_with = "crate::tolerant::value")]
    pub time_slice: Isolation,
    /// For MPS shares.
    #[serde(deserialize_with = "crate::tolerant::value")]
    pub mps: Isolation,
    /// For fractions.
    #[serde(deserialize_with = "crate::tolerant::value")]
    pub fraction: Isolation,
    /// Why time-slices and fractions have no limit, and what to do about it. Absent where they have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl NodeEnforcement {
    /// The means for shares of this mode.
    pub fn of(&self, mode: SharingMode) -> Isolation {
        match mode {
            SharingMode::TimeSlice => self.time_slice,
            SharingMode::Mps => self.mps,
            SharingMode::Fraction => self.fraction,
        }
    }
}
