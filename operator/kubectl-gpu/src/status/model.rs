//! The report as data, written by `-o json` and `-o yaml`.

use std::ops::AddAssign;

use gputenancy_crds::{DeviceProcesses, OtherLimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::inside::Inside;

/// Status of the GPUs of a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FleetStatus {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `FleetStatus`.
    pub kind: String,
    /// When the cluster was read, in RFC 3339; absent when a file does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<String>,
    /// Number of nodes.
    pub node_count: usize,
    /// Nodes whose agent does not report.
    pub silent_agents: usize,
    /// Number of GPUs.
    pub gpu_count: usize,
    /// Devices of managed GPUs.
    pub devices: DeviceCounts,
    /// The same by pool, in order of names.
    pub pools: Vec<PoolStatus>,
    /// The nodes, in order of names.
    pub nodes: Vec<NodeStatus>,
    /// What needs work, in sentences with object, state and remedy.
    pub attention: Vec<String>,
    /// What the user may not read, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_visible: Vec<String>,
}

/// Numbers of devices. A device of a GPU that the platform does not manage is not counted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCounts {
    /// Devices that exist.
    pub total: usize,
    /// Devices that pods own.
    pub used: usize,
    /// Devices that a new pod can get now.
    pub free: usize,
    /// Devices that no pod owns and no new pod can get.
    pub withdrawn: usize,
}

/// A pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Its name.
    pub pool: String,
    /// Its nodes.
    pub nodes: usize,
    /// Its nodes whose agent does not report.
    pub silent_agents: usize,
    /// Its GPUs.
    pub gpus: usize,
    /// Its devices.
    pub devices: DeviceCounts,
    /// Memory slices of its GPUs that no profile of the pool can use in the present layout.
    pub stranded_slices: usize,
}

/// A node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Its pool; absent if no pool or several pools select it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Its agent.
    pub agent: AgentStatus,
    /// The GPUs are simulated.
    #[serde(default)]
    pub simulated: bool,
    /// Its GPUs, by index.
    pub gpus: Vec<GpuStatus>,
    /// Limits that another product, such as `HAMi`, gives to pods of the node, as their pods state them; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_limits: Vec<OtherLimit>,
}

/// Whether the agent of a node reports.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The Node is Ready, and the agent reports.
    pub reports: bool,
    /// What is observed of an agent that does not report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Since when it does not report, in RFC 3339; absent if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// A GPU.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// NVML's index on the node.
    pub gpu: i32,
    /// NVML's UUID.
    pub uuid: String,
    /// Product name with dashes; empty if the agent has not reported it.
    pub product: String,
    /// The spec of the `GpuNode` lists it. A GPU that is not managed is neither changed nor advertised.
    pub managed: bool,
    /// `Healthy`, `Unhealthy` or `Lost`.
    pub health: String,
    /// Phase of the change in progress, or of the last failed one, such as `Evicting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// Its devices: MIG instances, the whole GPU, or shares.
    pub devices: Vec<DeviceStatus>,
    /// Parts of it that no device has.
    pub unallocated: Vec<Unallocated>,
    /// Its slices to scale, with devices and without.
    pub slices: SliceBar,
}

/// The slices of a GPU to scale.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SliceBar {
    /// Memory slices of the GPU, on which instances are placed; 1 without MIG support. If the board does not list an instance, so that
    /// its place is not known: compute slices.
    pub total: i32,
    /// Parts from the first slice on, whose slices add up to `total`. A whole or shared GPU is one part.
    pub parts: Vec<SlicePart>,
    /// Compute slices that no device has and that no profile of the pool can use with the free memory slices. `parts` does not show them.
    pub stranded_compute_slices: i32,
}

/// A part of a GPU: a device, its shares, or slices that no device has.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SlicePart {
    /// NVIDIA's profile of an instance, such as `1g.10gb`, or `whole GPU`, `time-slices`, `MPS shares`, `fractions` or `shares`; absent if no
    /// device has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its length in slices.
    pub slices: i32,
    /// States of its devices, each once; one state unless it is shared.
    pub states: Vec<StateWeight>,
}

/// A state that some devices of a part have.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StateWeight {
    /// The state.
    pub state: SliceState,
    /// Its share of the part, relative to the other states: time-slices, or percent of the GPU's compute for other shares.
    pub weight: i32,
}

/// What can be had of slices.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SliceState {
    /// A pod owns the device.
    Used,
    /// A new pod can get the device now, or no device has the slices and a profile of the pool fits.
    Free,
    /// No pod owns the device or slices, and no new pod can get them.
    Withdrawn,
    /// No device has the slices, and no profile of the pool can use them in the present layout.
    Stranded,
    /// The platform does not manage the GPU.
    Unmanaged,
}

impl From<DeviceState> for SliceState {
    fn from(state: DeviceState) -> Self {
        match state {
            DeviceState::Used => Self::Used,
            DeviceState::Free => Self::Free,
            DeviceState::Withdrawn => Self::Withdrawn,
            DeviceState::Unmanaged => Self::Unmanaged,
        }
    }
}

/// A device.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// In words, such as `1g.10gb at 0`, `whole GPU` or `time-slice 2 of 4`.
    pub device: String,
    /// First memory slice of an instance, number of a share, 0 for a whole GPU.
    pub start: i32,
    /// Extended resource that pods request.
    pub resource: String,
    /// The profile with this resource; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Whether a pod owns it, or a new pod can get it.
    pub state: DeviceState,
    /// The pod that owns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodReference>,
    /// The tenant of the pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Processes that NVML lists on it.
    pub processes: i32,
    /// The same by container, at most 16 containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<DeviceProcesses>,
    /// Containers that `containers` does not list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_containers: i32,
    /// Why it is withdrawn, or what else its state does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// What can be had of a device.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// A pod owns it.
    Used,
    /// A new pod can get it now.
    Free,
    /// No pod owns it, and no new pod can get it.
    Withdrawn,
    /// The platform does not manage its GPU.
    Unmanaged,
}

/// A container of a pod.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodReference {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Name of the container.
    pub container: String,
    /// The pod inside the tenant's virtual cluster; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
}

/// A part of a GPU that no device has.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Unallocated {
    /// In words, such as `memory slices 4-6` or `rest: 21508Mi, 40 %`.
    pub part: String,
    /// Memory slices, on a GPU with MIG.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_slices: Vec<i32>,
    /// Memory in MiB, on a shared GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// Compute in percent of the GPU, on a shared GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_percent: Option<i32>,
    /// No profile of the pool can use it in the present layout.
    pub stranded: bool,
}

impl DeviceCounts {
    /// Counts one more device.
    pub(super) fn count(&mut self, state: DeviceState) {
        let number = match state {
            DeviceState::Used => &mut self.used,
            DeviceState::Free => &mut self.free,
            DeviceState::Withdrawn => &mut self.withdrawn,
            DeviceState::Unmanaged => return,
        };
        *number += 1;
        self.total += 1;
    }
}

impl AddAssign for DeviceCounts {
    fn add_assign(&mut self, more: Self) {
        self.total += more.total;
        self.used += more.used;
        self.free += more.free;
        self.withdrawn += more.withdrawn;
    }
}
