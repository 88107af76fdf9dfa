//! The means that limit the memory of containers with a share of a GPU, as the agent of a node reports it.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{Isolation, MemoryText, SharingMode};

/// Means that limit the memory of containers that start now with a share, by kind of share. The agent knows it before the first share exists.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeEnforcement {
    /// For time-slices.
    #[serde(deserialize_with = "crate::schema::tolerant::value")]
    pub time_slice: Isolation,
    /// For MPS shares.
    #[serde(deserialize_with = "crate::schema::tolerant::value")]
    pub mps: Isolation,
    /// For fractions.
    #[serde(deserialize_with = "crate::schema::tolerant::value")]
    pub fraction: Isolation,
    /// Why time-slices and fractions have no limit, and what to do about it. Absent where they have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub reason: Option<String>,
    /// Limits that another product gives to pods of this node, such as HAMi, as their pods state them; by namespace and pod, at most 16, and fewer in a large status. Listed
    /// only while the agent finds the product on the node. A user who can write a pod can write these values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_limits: Vec<OtherLimit>,
}

/// A limit that another product gives to a container, as its pod states it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OtherLimit {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container; absent where the product states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// UUID of the GPU; absent where the product states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Number of the GPU in the container, where the limit holds for one of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<i32>,
    /// Memory limit, rounded to MiB; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryText>,
    /// Compute limit in percent of the GPU; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<i32>,
    /// Annotation or variable that states the limit, such as `hami.io/vgpu-devices-allocated`.
    pub source: String,
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
