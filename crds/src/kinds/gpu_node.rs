//! `GpuNode`: desired layout of one node's GPUs (spec, by the operator), and what NVML shows (status, by the agent).

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Advertiser, AllocationPolicy, Bypass, ChangePhase, DeviceOwner, DeviceProcesses, FaultRecovery, FaultVerdict,
    GhostMemory, InstanceSpec, Isolation, Layout, MemoryScrub, MemoryText, MigManagerRun, NodeEnforcement, Partitioner,
    Sandbox, ShareMinimum, Sharing, schema::tolerant::Extensible,
};

/// Desired layout of the GPUs of one node. Written by the operator only.
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
    doc = "GpuNode describes the GPUs of one node: the operator writes the desired layout, the node's agent what NVML shows.",
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
#[serde(rename_all = "camelCase")]
pub struct GpuNodeSpec {
    /// GPUs that the agent partitions and advertises. A GPU that is not listed is neither changed nor advertised.
    // Written also when empty: an apply that leaves the list out would turn `spec` into null, which the schema refuses.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    pub gpus: Vec<GpuSpec>,
    /// Component that creates and destroys MIG instances on this node. Unless it is `Agent`, the agent only reads.
    #[serde(
        default,
        deserialize_with = "crate::schema::tolerant::value",
        skip_serializing_if = "Partitioner::is_agent"
    )]
    pub partitioner: Partitioner,
    /// State of the requests to NVIDIA's MIG manager, with `partitioner: MigManager`. Written and read by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_manager: Option<MigManagerRun>,
    /// Component that advertises devices to kubelet. With `NvidiaDevicePlugin` the agent registers nothing and does not write allocatable.
    #[serde(
        default,
        deserialize_with = "crate::schema::tolerant::value",
        skip_serializing_if = "Advertiser::is_agent"
    )]
    pub advertiser: Advertiser,
    /// Which GPU a pod gets devices of, where kubelet can choose.
    #[serde(
        default,
        deserialize_with = "crate::schema::tolerant::value",
        skip_serializing_if = "AllocationPolicy::is_packed"
    )]
    pub allocation: AllocationPolicy,
    /// Demands of the pool on the limits of shares, and on the driver. The agent gives no share to a new pod that it cannot limit so.
    #[serde(default, skip_serializing_if = "ShareMinimum::is_default")]
    pub enforcement: ShareMinimum,
}

impl GpuNodeSpec {
    /// Has a newer release written it, with a value that this release does not know? To write it again would lose the value.
    pub fn is_of_newer_release(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.sharing.as_ref().is_some_and(Sharing::is_unknown))
    }
}

/// Desired state of one GPU. The agent creates missing instances and destroys surplus ones, never one with a client.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("self.mig || !has(self.instances) || self.instances.size() == 0").message("spec.gpus: instances exist only with MIG on; write mig: true, or leave instances out"))]
#[x_kube(validation = Rule::new("!has(self.sharing) || (!self.mig && !has(self.resource))").message("spec.gpus: shares exist only without MIG and each has its own resource; leave out sharing, or mig and resource"))]
#[serde(rename_all = "camelCase")]
pub struct GpuSpec {
    /// NVML's UUID of the GPU.
    #[schemars(length(min = 5, max = 64))]
    pub uuid: String,
    /// MIG mode on. Without instances: on and not partitioned.
    #[serde(default)]
    pub mig: bool,
    /// Instances that must exist, by placement. Empty without MIG: the GPU is one whole device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["start".into()]))]
    pub instances: Vec<InstanceSpec>,
    /// Resource under which a whole GPU is advertised. Default `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub resource: Option<String>,
    /// Shares of the GPU. Absent: it is not shared.
    #[serde(default, deserialize_with = "Sharing::read", skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Devices withdrawn from allocatable, by start (a whole GPU is start 0) or by number of the share. New pods cannot get them; running pods keep them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub hold: Vec<i32>,
    /// New devices under canary verification, by start or by number of the share. Each is advertised as `gputenancy.io/canary_<index of the GPU>_<start>` instead of its
    /// own resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub trial: Vec<i32>,
    /// Why others have withdrawn this GPU alone (annotation `gputenancy.io/withdrawn-gpus` of the Node). The agent withdraws its devices from
    /// allocatable as soon as no pod owns them; running pods keep theirs. Absent: nothing withdraws it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub withdrawn: Option<String>,
    /// Finding of a canary pod or a person about the last faults of the GPU. Absent: nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_verdict: Option<FaultVerdict>,
    /// State of the change in progress on this GPU, or of the last failed one. Written and read by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// A change of one GPU from one layout to another; a new leader continues from it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Phase of the change.
    #[serde(deserialize_with = "crate::schema::tolerant::value")]
    pub phase: ChangePhase,
    /// Layout before the change, restored when it fails.
    pub from: Layout,
    /// Layout after the change.
    pub to: Layout,
    /// When the change began.
    pub started_at: Time,
    /// When the present phase began.
    pub phase_since: Time,
    /// Earliest time of evictions; set by the notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict_after: Option<Time>,
    /// Hash of the profiles, pools and tenants that led to the change. While it is the same, pods that have left do not cancel a change
    /// whose owners are being evicted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub intent: String,
    /// Earlier failures of the layout `to`; each doubles the time until the retry.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 1000))]
    pub failures: i32,
    /// Why the GPU is changed, or why the change failed.
    #[schemars(length(max = 2000))]
    pub reason: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Observed state, written by the node's agent.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// Generation of the spec that this status refers to; -1 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, NvmlReady, PluginReady; where they apply MpsReady, MemoryLimited, MemoryScrubbed, VgpuLicensed. Written by
    /// the agent: after it is killed they keep their last value, and the condition AgentSilent of the GpuPool names the node.
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
    /// Boot id of the kernel; instances do not survive a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The GPUs are simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<bool>,
    /// GPU models of this node, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boards: Vec<Board>,
    /// The GPUs, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    #[schemars(length(max = 16))]
    pub gpus: Vec<GpuState>,
    /// Means that limit the memory of containers with a share, by kind of share, whether or not the node has shares now. Absent until the agent
    /// has found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<NodeEnforcement>,
    /// Whether the driver overwrites freed GPU memory before another process gets it. Absent: the agent does not report it.
    #[serde(default, deserialize_with = "crate::schema::tolerant::option", skip_serializing_if = "Option::is_none")]
    pub memory_scrub: Option<MemoryScrub>,
    /// Number of GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<i32>,
    /// Devices that pods own, of all that exist, for `kubectl get`, such as `5/14`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<String>,
    /// Layout in one line for `kubectl get -o wide`, such as `0: 3g.40gb@4 1g.10gb@0; 1: whole`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
}

/// A GPU model as NVML describes it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Board {
    /// Product name with dashes, as NVIDIA's labels write it: `NVIDIA-A100-SXM4-80GB`.
    pub product: String,
    /// Memory of the whole GPU.
    pub memory: MemoryText,
    /// Part of `memory` that the driver reserves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<MemoryText>,
    /// Compute slices of the whole GPU; 0: the board has no MIG.
    pub slices: i32,
    /// Memory slices of the whole GPU, the unit of placements; 0: the board has no MIG.
    pub memory_slices: i32,
    /// How NVIDIA's vGPU software uses the GPU. Absent on bare metal and for whole GPUs that are passed to a virtual machine.
    #[serde(default, deserialize_with = "crate::schema::tolerant::option", skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<Vgpu>,
    /// Switching MIG mode needs a GPU reset (Ampere).
    #[serde(default)]
    pub mode_needs_reset: bool,
    /// MIG profiles that the board offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<BoardProfile>,
}

/// How NVIDIA's vGPU software uses a GPU.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum Vgpu {
    /// A vGPU in a virtual machine. It is given to pods whole or in shares; MIG is set up on the hypervisor.
    Guest,
    /// A GPU of a hypervisor with vGPUs: the platform leaves its node alone.
    Host,
}

impl Extensible for Vgpu {
    /// The node is left alone.
    const UNKNOWN: Self = Self::Host;
}

/// A MIG profile of a board.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BoardProfile {
    /// Profile id of the device, as used by the creation call (not NVML's enum).
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
    /// Media and copy engines of one instance: copy, decoder, encoder, JPEG, OFA. Their sums may not exceed those of the full profile.
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
    /// MIG mode; absent without MIG support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigMode>,
    /// Health of the GPU.
    #[serde(default, deserialize_with = "crate::schema::tolerant::value")]
    pub health: Health,
    /// Fault that makes the GPU unusable for new work, such as `Xid 79`. Cleared when the agent resets the GPU, the driver is reloaded or the node restarts, and
    /// as `recovery` says. After a manual reset while the agent is stopped, remove it before the agent starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How the GPU returns after its faults of the last 24 hours. Absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<FaultRecovery>,
    /// Current step of the agent.
    #[serde(default, deserialize_with = "crate::schema::tolerant::value")]
    pub step: AgentStep,
    /// MIG instances that exist, by start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceState>,
    /// State of the whole GPU as one device; absent while MIG is on or the GPU is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<DeviceState>,
    /// Shares of the GPU and of its MIG instances, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub shares: Vec<ShareState>,
    /// Layout that the agent still serves because pods own devices of it that the spec lacks, as after the GpuNode was deleted or restored from a
    /// backup. The operator writes it into the spec. Absent while the spec has the devices of all pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained: Option<Layout>,
    /// Means that limits the memory that programs on the shares allocate: the weakest on this GPU. Absent without shares.
    #[serde(default, deserialize_with = "crate::schema::tolerant::option", skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Isolation>,
    /// Unattributed processes: on a device whose owner they do not belong to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// Unattributed processes that NVML does not list: they have the device file of the GPU open, and are of no container with a device of it.
    /// Monitoring daemons are such processes. No change waits for them. At most 8 are listed; the agent's metric counts all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<Holder>,
    /// Memory of the GPU or of its MIG instances that no living process explains. A device with an owner or a living process stays in use; one
    /// without either is withdrawn (unexplainedMemory).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ghost_memory: Vec<GhostMemory>,
    /// Last failed NVML call for the present spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<GpuError>,
}

/// MIG mode of a GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigMode {
    /// Current mode.
    pub enabled: bool,
    /// Mode after the next reset, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<bool>,
}

/// Health of a GPU.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Health {
    /// No fault.
    #[default]
    Healthy,
    /// A critical Xid or uncorrectable ECC error was reported; not advertised until the GPU is reset or `recovery` says that it is cleared.
    Unhealthy,
    /// NVML lost the GPU.
    Lost,
}

impl Extensible for Health {
    /// The GPU gets no new work.
    const UNKNOWN: Self = Self::Unhealthy;
}

/// Step of the agent on a GPU.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum AgentStep {
    /// NVML shows the desired layout.
    #[default]
    Steady,
    /// The GPU is not in the spec.
    Unmanaged,
    /// An instance to destroy has a client; the agent waits.
    WaitingForClients,
    /// Turning MIG mode on or off.
    SettingMode,
    /// The mode is pending until a GPU reset, which is not possible now.
    WaitingForReset,
    /// Destroying instances.
    Destroying,
    /// Creating instances.
    Creating,
    /// A call failed; see `error`.
    Failed,
    /// NVML shows another layout than the spec, and the agent is not the partitioner.
    LeftAlone,
}

impl Extensible for AgentStep {
    /// The agent is at work, and the GPU has no settled layout.
    const UNKNOWN: Self = Self::Creating;
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
    /// Compute instance id; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<i32>,
    /// NVML's UUID of the MIG device; absent without a compute instance, and when the status would exceed 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Advertised resource and owner; absent while the instance is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceState>,
}

/// Advertised resource and owner of a device.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    /// Resource under which it is advertised; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Kubelet's device manager lists it as allocatable.
    #[serde(default)]
    pub allocatable: bool,
    /// Container that kubelet allocated it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<DeviceOwner>,
    /// Container whose processes still use the device although kubelet has forgotten its pod. The device is withdrawn until they end, and
    /// counts against the budget of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_owner: Option<DeviceOwner>,
    /// Memory in use although NVML lists no process on the device. It is withdrawn until the memory is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unexplained_memory: Option<MemoryText>,
    /// Processes that NVML lists on it.
    #[serde(default)]
    pub clients: i32,
    /// The same by container, the owner's first, with tenant and memory; at most 16 containers. Left out when the status would exceed 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<DeviceProcesses>,
    /// Containers with processes on it that `processes` does not list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_containers: i32,
}

/// A share that the agent serves.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ShareState {
    /// Its number. Slice `k` of the MIG instance that starts at memory slice `s` has the number `s + 16 k`.
    pub number: i32,
    /// Advertised resource and owner.
    pub device: DeviceState,
    /// The owner uses memory past the limit of the share; absent while it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bypass: Option<Bypass>,
    /// Memory that programs of the owner may allocate now, of a fraction whose memory the agent limits; absent without an owner. The planner
    /// counts no less for the share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryText>,
    /// A smaller memory that is refused because the owner holds more; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_resize: Option<RefusedResize>,
    /// The owner's pod runs in a sandbox, which does not get the library that limits memory; absent for other pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
}

/// A smaller memory of a fraction that its owner does not get, because it holds more.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RefusedResize {
    /// The memory in the layout.
    pub memory: MemoryText,
    /// Memory that the owner held when the change was refused.
    pub used: MemoryText,
}

/// A process on a device that kubelet did not allocate to its container.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Process id on the node.
    pub pid: i64,
    /// Its command.
    pub command: String,
    /// First memory slice of the instance in use; absent for the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<i32>,
    /// Container of the process; absent for a process of the node itself.
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
    /// Attempted operation, and NVML's message.
    pub message: String,
    /// Generation of the spec at the time of the call.
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
    pub fn remedy(&self) -> &'static str {
        match self.container {
            Some(_) => "has not got it from kubelet: end the process, or delete its pod",
            None => "belongs to no pod: end it",
        }
    }
}

impl GpuSpec {
    /// The desired layout.
    pub fn layout(&self) -> Layout {
        let mut instances = self.instances.clone();
        instances.sort();
        let sharing = self.sharing.clone().map(Sharing::sorted);
        Layout { mig: self.mig, instances, resource: self.resource.clone(), sharing }
    }

    /// The instance at this place, unless it is shared.
    pub fn exclusive(&self, start: i32, profile: &str) -> Option<&InstanceSpec> {
        self.instances.iter().find(|i| i.replicas.is_none() && i.start == start && i.profile == profile)
    }

    /// Resource of a share.
    pub fn share_resource(&self, number: i32) -> Option<String> {
        if self.mig {
            return InstanceSpec::with_slice(&self.instances, number).map(InstanceSpec::resource_name);
        }
        Some(self.sharing.as_ref()?.group_of(number)?.resource.clone())
    }
}

impl GpuState {
    /// All devices that exist: instances, the whole GPU, shares.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceState> {
        let instances = self.instances.iter().filter_map(|i| i.device.as_ref());
        instances.chain(&self.whole).chain(self.shares.iter().map(|s| &s.device))
    }

    /// The same, to change.
    pub fn devices_mut(&mut self) -> impl Iterator<Item = &mut DeviceState> {
        let instances = self.instances.iter_mut().filter_map(|i| i.device.as_mut());
        instances.chain(&mut self.whole).chain(self.shares.iter_mut().map(|s| &mut s.device))
    }
}
