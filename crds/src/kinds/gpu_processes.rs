//! Processes and their memory in `GpuNode.status`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{Isolation, MemoryText};

/// A container of a pod.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
pub struct DeviceOwner {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
}

/// The processes of one container on a device.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceProcesses {
    /// The container; absent for processes of the node itself and for those whose container is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<DeviceOwner>,
    /// The tenant of the pod's namespace; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Number of processes.
    pub count: i32,
    /// Their memory by NVML, in steps of 256 MiB; absent if the driver reports none. It is renewed when it has changed by a step, at most once
    /// a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryText>,
}

/// Memory of a GPU or MIG instance that no living process explains.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GhostMemory {
    /// First memory slice of the MIG instance; absent for the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<i32>,
    /// Processes that NVML lists although they have ended more than 10 seconds ago; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<i64>,
    /// The memory, in steps of 256 MiB: that of these processes, and memory in use that NVML attributes to no process.
    pub memory: MemoryText,
}

/// The sandbox of a pod with a share.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Handler of the pod's `RuntimeClass`, such as runsc.
    pub handler: String,
    /// Means that limits the memory of the pod: Driver or None.
    #[serde(default, deserialize_with = "crate::schema::tolerant::value")]
    pub enforcement: Isolation,
}
