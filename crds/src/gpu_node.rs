//! `GpuNode`, the agreement: what the GPUs of one node shall be (operator), and what NVML shows (agent).

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Advertiser, MemoryText, MigManagerRun, Partitioner};

/// The layout that the GPUs of one node shall have. Written by the operator only.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "gputenancy.io",
    version = "v1alpha1",
    kind = "GpuNode",
    shortname = "gpun",
    category = "gputenancy",
    status = "GpuNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "GpuNode is the agreement about one node: the operator writes the layout that its GPUs shall have, the node's agent writes what NVML really shows.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".metadata.labels.gputenancy\\.io/pool"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpuCount"),
    printcolumn(name = "Devices", type_ = "string", json_path = ".status.devices"),
    printcolumn(name = "Driver", type_ = "string", json_path = ".status.driverVersion"),
    printcolumn(name = "Simulated", type_ = "boolean", json_path = ".status.simulated"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Product", type_ = "string", json_path = ".status.boards[0].product", priority = 1),
    printcolumn(name = "Layout", type_ = "string", json_path = ".status.layout", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuNodeSpec {
    /// GPUs that are the platform's to lay out and advertise. A GPU that is not listed is neither changed nor advertised.
    // Written also when empty: an apply that leaves the list out would turn `spec` into null, which the schema refuses.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    pub gpus: Vec<GpuSpec>,
    /// Who creates and destroys MIG instances on this node: by anybody but `Agent` the agent reads and never carves.
    #[serde(default, skip_serializing_if = "Partitioner::is_agent")]
    pub partitioner: Partitioner,
    /// The operator's journal of what NVIDIA's MIG manager is asked for, with `partitioner: MigManager`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_manager: Option<MigManagerRun>,
    /// Who offers the devices to kubelet: by `NvidiaDevicePlugin` the agent registers nothing and leaves allocatable alone.
    #[serde(default, skip_serializing_if = "Advertiser::is_agent")]
    pub advertiser: Advertiser,
}

/// What one GPU shall be. `mig` and `instances` together are the whole truth: the agent creates what is missing and destroys
/// what is too much, and never destroys what has a client.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("self.mig || !has(self.instances) || self.instances.size() == 0").message("spec.gpus: instances exist only with MIG on; write mig: true, or leave instances out"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuSpec {
    /// NVML's UUID of the GPU.
    #[schemars(length(min = 5, max = 64))]
    pub uuid: String,
    /// MIG mode on; with no instances: on, nothing carved.
    #[serde(default)]
    pub mig: bool,
    /// The instances that must exist, by exact placement. Empty without MIG: the GPU is one whole device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["start".into()]))]
    pub instances: Vec<InstanceSpec>,
    /// Resource under which a whole GPU is advertised. Default `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub resource: Option<String>,
    /// Devices withdrawn from the scheduler, by start (a whole GPU is start 0). A held device is not offered to new pods; what runs on it runs on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub hold: Vec<i32>,
    /// New devices that only the operator's canary pods can get, by start: each is offered as `gputenancy.io/canary_<index of the GPU>_<start>`
    /// and not under its own resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub trial: Vec<i32>,
    /// The operator's journal of the change under way on this GPU, or of the last one that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// One MIG instance: a GPU instance with one compute instance over all of it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceSpec {
    /// First memory slice.
    #[schemars(range(min = 0, max = 15))]
    pub start: i32,
    /// NVIDIA's name of the profile as the board lists it, such as `1g.10gb`.
    #[schemars(length(min = 1, max = 32))]
    pub profile: String,
    /// Resource under which it is advertised. Default `nvidia.com/mig-<profile>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub resource: Option<String>,
}

/// A layout of one GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Layout {
    /// MIG mode on.
    #[serde(default)]
    pub mig: bool,
    /// Instances by placement, sorted by start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub instances: Vec<InstanceSpec>,
    /// Resource of the whole GPU, without MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub resource: Option<String>,
}

/// A change of one GPU from one layout to another: everything a new leader needs to go on.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// Where the change stands.
    pub phase: ChangePhase,
    /// The layout before, restored when the change fails.
    pub from: Layout,
    /// The layout after.
    pub to: Layout,
    /// When the change began.
    pub started_at: Time,
    /// When the present phase began.
    pub phase_since: Time,
    /// When owners may be evicted at the earliest; set by the notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict_after: Option<Time>,
    /// Digest of the profiles, pools and tenants that the change follows from. While it is the same, a plan that differs only
    /// because pods have left does not take the change back once owners are being evicted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub intent: String,
    /// How often the layout `to` has failed before; each failure doubles the time until it is tried again.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 1000))]
    pub failures: i32,
    /// Why the GPU is changed, or why the change failed, in a sentence.
    #[schemars(length(max = 2000))]
    pub reason: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Phases of a change, in order; `RolledBack` and `Stuck` are where a failed one ends.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum ChangePhase {
    /// Owners have been told; nothing is withdrawn that is in use.
    Noticed,
    /// Free devices that must go are withdrawn.
    Held,
    /// Owners of devices that must go are being evicted.
    Evicting,
    /// No pod owns a device that must go; NVML has yet to say that no process uses it.
    Idle,
    /// The agent destroys and creates instances.
    Partitioning,
    /// NVML shows the new layout; canary pods have yet to prove its new devices, which nobody else can get.
    Trying,
    /// NVML shows the new layout; kubelet and the node's allocatable have yet to agree.
    Verifying,
    /// The change failed; the old layout is being restored.
    RollingBack,
    /// The change failed and the old layout is back; it is tried again when the plan changes.
    RolledBack,
    /// Neither layout can be reached without help; the reason says why.
    Stuck,
}

/// What the node's agent sees.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// Generation of the spec that this status speaks of; -1 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, NvmlReady, PluginReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Version of NVIDIA's driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// CUDA version that the driver supports, such as `13.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
    /// The kernel's boot id: instances of an earlier boot are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The GPUs are simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<bool>,
    /// Kinds of board on this node, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boards: Vec<Board>,
    /// The GPUs, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    pub gpus: Vec<GpuState>,
    /// Number of GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<i32>,
    /// Devices that pods own, of all that exist, for `kubectl get`, such as `5/14`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<String>,
    /// Layout in one line for `kubectl get`, such as `0: 3g.40gb@4 1g.10gb@0; 1: whole`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
}

/// A kind of board as NVML describes it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Board {
    /// Product name with dashes, as NVIDIA's labels write it: `NVIDIA-A100-SXM4-80GB`.
    pub product: String,
    /// Memory of the whole GPU.
    pub memory: MemoryText,
    /// Memory that the driver keeps for itself, of `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<MemoryText>,
    /// Compute slices of the whole GPU; 0: the board has no MIG.
    pub slices: i32,
    /// Memory slices: the length of the axis on which placements lie; 0: the board has no MIG.
    pub memory_slices: i32,
    /// A change of MIG mode needs a reset of the GPU (Ampere).
    #[serde(default)]
    pub mode_needs_reset: bool,
    /// MIG profiles that the board offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<BoardProfile>,
}

/// A MIG profile of a board.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BoardProfile {
    /// The device's profile id, which creation takes (not NVML's enum).
    pub id: i32,
    /// NVIDIA's name, such as `1g.10gb`.
    pub name: String,
    /// Compute slices.
    pub slices: i32,
    /// Memory of one instance.
    pub memory: MemoryText,
    /// Memory slices that one instance covers.
    pub size: i32,
    /// Memory slices at which an instance may start.
    pub starts: Vec<i32>,
    /// Most instances of this profile on one GPU.
    pub max: i32,
    /// Media and copy engines of one instance, in the order copy, decoder, encoder, JPEG, OFA: their sums may not exceed the full profile's.
    pub engines: Vec<i32>,
}

/// One GPU as NVML shows it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuState {
    /// NVML's UUID.
    pub uuid: String,
    /// NVML's index.
    pub index: i32,
    /// PCI address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pci_bus_id: String,
    /// Index into `boards`.
    pub board: i32,
    /// MIG mode; absent where the board has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigMode>,
    /// Healthy, or why not.
    #[serde(default)]
    pub health: Health,
    /// What made the GPU unfit for new work, such as `Xid 79`, until the agent resets the GPU, the driver is loaded anew or the node restarts. After a reset by hand with the agent stopped, remove it before the agent starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// What the agent is doing with this GPU.
    #[serde(default)]
    pub step: AgentStep,
    /// MIG instances that exist, by start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceState>,
    /// State of the whole GPU as one device; absent while MIG is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<DeviceState>,
    /// Processes on devices of this GPU that do not belong to the pod that has the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// The last NVML call that failed while the present spec was being carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<GpuError>,
}

/// MIG mode of a GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigMode {
    /// The mode in force.
    pub enabled: bool,
    /// The mode after the next reset, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<bool>,
}

/// Health of a GPU.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Health {
    /// Nothing wrong.
    #[default]
    Healthy,
    /// A critical Xid or uncorrectable ECC error was reported: not offered until the GPU is reset.
    Unhealthy,
    /// NVML lost the GPU.
    Lost,
}

/// What the agent is doing with a GPU.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum AgentStep {
    /// Nothing: NVML shows what the spec wants.
    #[default]
    Steady,
    /// The GPU is not in the spec.
    Unmanaged,
    /// An instance that must go has a client; the agent waits.
    WaitingForClients,
    /// Turning MIG mode on or off.
    SettingMode,
    /// The mode is pending until the GPU is reset, and it cannot be reset now.
    WaitingForReset,
    /// Destroying instances.
    Destroying,
    /// Creating instances.
    Creating,
    /// A call failed; `error` says which.
    Failed,
    /// NVML shows another layout than the spec, and the spec leaves carving to somebody else or to nobody.
    LeftAlone,
}

/// A MIG instance that exists.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InstanceState {
    /// First memory slice.
    pub start: i32,
    /// NVIDIA's name of the profile.
    pub profile: String,
    /// GPU instance id.
    pub gi: i32,
    /// Compute instance id; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<i32>,
    /// NVML's UUID of the MIG device; absent while there is no compute instance, and left out where the status would exceed 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// How it is offered and who has it.
    pub device: DeviceState,
}

/// How a device is offered, and who has it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    /// Resource under which it is advertised; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Kubelet's device manager lists it as allocatable.
    #[serde(default)]
    pub allocatable: bool,
    /// The container that kubelet gave it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<DeviceOwner>,
    /// Processes that use it now, by NVML.
    #[serde(default)]
    pub clients: i32,
}

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

/// A process on a device that kubelet has not given to it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Process id on the node.
    pub pid: i64,
    /// Its command.
    pub command: String,
    /// First memory slice of the instance that it uses; absent for the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<i32>,
    /// The container that it runs in; absent for a process of the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<DeviceOwner>,
}

/// A failed NVML call.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuError {
    /// Name of the call, such as `nvmlDeviceCreateGpuInstanceWithPlacement`.
    pub call: String,
    /// NVML's return code, such as 23.
    pub code: i32,
    /// What was being done, and NVML's words.
    pub message: String,
    /// Generation of the spec that was being carried out.
    pub generation: i64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, command, start: _, container } = self;
        write!(f, "process {pid} ({command})")?;
        match container {
            Some(DeviceOwner { namespace, pod, container }) => {
                write!(f, " of container {container} of pod {namespace}/{pod}")
            }
            None => Ok(()),
        }
    }
}

impl Holder {
    /// Why the process may not use its device, and what to do about it.
    pub fn uninvited(&self) -> &'static str {
        match self.container {
            Some(_) => "has not got it from kubelet: end the process, or delete its pod",
            None => "belongs to no pod: end it",
        }
    }
}

impl GpuSpec {
    /// The layout that the spec asks for.
    pub fn layout(&self) -> Layout {
        let mut instances = self.instances.clone();
        instances.sort();
        Layout { mig: self.mig, instances, resource: self.resource.clone() }
    }
}

impl InstanceSpec {
    /// Resource under which the instance is advertised.
    pub fn resource_name(&self) -> String {
        self.resource.clone().unwrap_or_else(|| crate::names::mig_resource(&self.profile))
    }
}
