//! `GpuPool`: nodes, the profiles that they offer, and rules for changes.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    DurationText, Enforcement, GpuPoolStatus, MigManagerRules, NodeHealth, Rollout, schema::tolerant::Extensible,
};

/// GPU nodes, the profiles that they offer, and the rules for changes.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[kube(
    group = "gputenancy.io",
    version = "v1alpha1",
    kind = "GpuPool",
    shortname = "gpup",
    category = "gputenancy",
    status = "GpuPoolStatus",
    derive = "PartialEq",
    doc = "GpuPool is the supply: GPU nodes, the profiles that they offer, the component that partitions them, and the rules for changes.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpus"),
    printcolumn(name = "Devices", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Unmet", type_ = "integer", json_path = ".status.unmet"),
    printcolumn(name = "Changing", type_ = "integer", json_path = ".status.changing"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Window", type_ = "string", json_path = ".status.nextWindow.start", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    ),
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name: use at most 63 characters, the name becomes the value of the nodes' label gputenancy.io/pool; create the pool with a shorter name"),
)]
#[x_kube(
    validation = Rule::new("!has(self.layout.spare.profile) || self.layout.spare.profile in self.profiles").message("spec.layout.spare.profile: this profile is not one of the pool's; add it to spec.profiles"),
    validation = Rule::new("!has(self.verify) || !has(self.verify.canary) || !has(self.advertiser) || self.advertiser == 'Agent'").message("spec.verify.canary: NVIDIA's device plugin cannot keep a new device for a canary pod alone; write advertiser: Agent, or leave the canary out"),
    validation = Rule::new("!has(self.allocation) || !has(self.advertiser) || self.advertiser == 'Agent'").message("spec.allocation: NVIDIA's device plugin chooses devices by its own rules; write advertiser: Agent, or leave allocation out"),
    validation = Rule::new("!has(self.strategy) || self.strategy != 'Single' || self.profiles.size() == 1").message("spec.profiles: with strategy: Single every device of the pool is of one MIG profile; list that profile alone, or write strategy: Mixed"),
    validation = Rule::new("!has(self.strategy) || self.strategy != 'Single' || ((!has(self.layout.mode) || self.layout.mode == 'Demand') && (!has(self.layout.spare.policy) || self.layout.spare.policy == 'Keep'))").message("spec.layout: with strategy: Single every GPU of the pool has as many instances of the profile as fit; leave layout out, or write strategy: Mixed"),
    validation = Rule::new("!has(self.strategy) || self.strategy != 'Single' || ((!has(self.advertiser) || self.advertiser == 'Agent') && (!has(self.partitioner) || self.partitioner == 'Agent'))").message("spec.strategy: Single needs advertiser: Agent and partitioner: Agent; for NVIDIA's device plugin set its own flag --mig-strategy, and write strategy: Mixed here"),
    validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.minimum) || self.enforcement.minimum == 'None' || !has(self.advertiser) || self.advertiser == 'Agent'").message("spec.enforcement.minimum: NVIDIA's device plugin serves shares without a limit; write advertiser: Agent, or minimum: None"),
    validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.onBypassByTrusted) || self.enforcement.onBypassByTrusted == 'Warn' || !has(self.advertiser) || self.advertiser == 'Agent'").message("spec.enforcement.onBypassByTrusted: nothing limits the memory of shares of NVIDIA's device plugin, so no pod is found to bypass a limit; write advertiser: Agent, or leave onBypassByTrusted out"),
    validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.onBypass) || self.enforcement.onBypass == 'Warn' || !has(self.advertiser) || self.advertiser == 'Agent'").message("spec.enforcement.onBypass: nothing limits the memory of shares of NVIDIA's device plugin, so no pod is found to bypass a limit; write advertiser: Agent, or leave onBypass out"),
    validation = Rule::new("!has(self.layout.fixed) || self.layout.fixed.all(f, f.profiles.all(p, p.name in self.profiles))").message("spec.layout.fixed: every profile named here must be one of the pool's; add it to spec.profiles"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuPoolSpec {
    /// Nodes of the pool. A node belongs to at most one pool; with an overlap neither pool acts on the node, and both have a condition.
    #[x_kube(validation = Rule::new("(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)").message("spec.nodeSelector: write at least one label; an empty selector would take every node"))]
    pub node_selector: LabelSelector,
    /// Names of the GpuProfiles that the nodes may offer.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub profiles: Vec<String>,
    /// Source of the layout.
    #[serde(default)]
    pub layout: LayoutPolicy,
    /// Component that creates and destroys MIG instances. Agent: the node agent. MigManager: NVIDIA's MIG manager, through the node label
    /// nvidia.com/mig.config. None: no component, the pool is read-only.
    #[serde(default)]
    pub partitioner: Partitioner,
    /// Rules for NVIDIA's MIG manager, with `partitioner: MigManager`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_manager: Option<MigManagerRules>,
    /// Component that advertises devices to kubelet. Agent: the node agent. NvidiaDevicePlugin: NVIDIA's device plugin; the node is cordoned
    /// during a change.
    #[serde(default)]
    pub advertiser: Advertiser,
    /// Names of MIG instances. Mixed: each under the resource of its profile. Single: the pool has one MIG profile, whose `resourceName` is
    /// nvidia.com/gpu, and every GPU has as many instances of it as fit; pods that request nvidia.com/gpu run there unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Which GPU of a node a pod gets devices of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationPolicy>,
    /// Taint on the pool's nodes, which keeps pods without a GPU away; pods of tenants with a GPU tolerate it. It is removed when the
    /// node leaves the pool. Other taints are not changed. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<PoolTaint>,
    /// Rules for changing GPUs in use.
    #[serde(default)]
    pub disruption: Disruption,
    /// New profiles and layouts on a few nodes first. Default: on all nodes, as fast as `disruption` permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Tests of a new layout before tenants can use it, in addition to the agreement of NVML, kubelet and the Node's allocatable.
    #[serde(default, skip_serializing_if = "Verify::is_default")]
    pub verify: Verify,
    /// Demands on the limits of shares, and the consequence when a pod bypasses them. Default: no demand, events and metrics.
    #[serde(default, skip_serializing_if = "Enforcement::is_default")]
    pub enforcement: Enforcement,
    /// Which verdicts of others on a node count: cordons, taints and conditions. Default: all that are known.
    #[serde(default, skip_serializing_if = "NodeHealth::is_default")]
    pub health: NodeHealth,
    /// Queues in which jobs wait for the pool's devices, and from which teams borrow what others leave idle. Default: none; quotas alone admit pods.
    #[serde(default, skip_serializing_if = "Queueing::is_default")]
    pub queueing: Queueing,
}

/// Queues for the devices of a pool.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(validation = Rule::new("self.system != 'None' || !has(self.topology)").message("spec.queueing.topology: it is of a queueing system; write system: Kueue, or leave topology out"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Queueing {
    /// None: quotas admit pods, and nothing is lent. Kueue: the Kueue that is installed in the cluster admits jobs; the operator writes its queues
    /// (needs `queueing.kueue.enabled` in the chart's values).
    #[serde(default)]
    pub system: QueueingSystem,
    /// Labels of nodes, from the widest level to the narrowest, by which pods of a job are placed near each other, such as
    /// `topology.kubernetes.io/zone`. The host name is added as the last level. Default: no placement by topology.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 15), inner(length(min = 1, max = 316)))]
    #[x_kube(validation = Rule::new("self.all(l, l != 'kubernetes.io/hostname')").message("spec.queueing.topology: the host name is always the last level; leave kubernetes.io/hostname out"))]
    pub topology: Vec<String>,
}

impl Queueing {
    /// Is it the default, which is not written?
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The system that admits jobs to a pool.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
pub enum QueueingSystem {
    /// None: quotas admit pods.
    #[default]
    None,
    /// Kueue.
    Kueue,
}

impl Extensible for QueueingSystem {
    /// Quotas admit no more than what is guaranteed.
    const UNKNOWN: Self = Self::None;
}

/// A taint on every node of a pool.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolTaint {
    /// Key of the taint. It must be the one that pods of tenants tolerate (policies.gpuTaint.key in the chart's values, default
    /// nvidia.com/gpu).
    #[schemars(length(min = 1, max = 317))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')").message("spec.taint.key: write a key as labels have it, such as nvidia.com/gpu"))]
    #[x_kube(validation = Rule::new("!self.startsWith('node.kubernetes.io/') && !self.startsWith('node.cloudprovider.kubernetes.io/') && !self.startsWith('node-role.kubernetes.io/')").message("spec.taint.key: taints of this name tell how a node fares or what it is, and are Kubernetes' own; write a key such as nvidia.com/gpu"))]
    pub key: String,
    /// Value of the taint; pods tolerate every value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')").message("spec.taint.value: write letters, digits, '-', '_' and '.', or leave it out"))]
    pub value: String,
    /// Effect on new pods that do not tolerate it. Running pods are not affected.
    #[serde(default)]
    pub effect: TaintEffect,
}

/// Effect of a taint on new pods that do not tolerate it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaintEffect {
    /// Not scheduled to the node.
    #[default]
    NoSchedule,
    /// Scheduled to the node only if no other node fits.
    PreferNoSchedule,
}

impl TaintEffect {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
        }
    }
}

/// Tests of a new layout.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verify {
    /// A pod on one new device of each profile that a change creates, before tenants can get any of them. If it fails or times out, the old
    /// layout is restored. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

impl Verify {
    /// Is it the default, which is not written?
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A test program for a new device. It runs in the operator's namespace as user 65532 without privileges, and passes with exit code 0.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Canary {
    /// Image with the program, such as a CUDA sample (vectorAdd) for the driver of the nodes. It must run without root.
    #[schemars(length(min = 1, max = 500))]
    #[x_kube(validation = Rule::new("self.matches('^[^ ]+$')").message("spec.verify.canary.image: write a name without spaces, such as registry.example.com/vectoradd:1"))]
    pub image: String,
    /// Program and arguments, as a list. Default: the entrypoint of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1000)))]
    pub command: Vec<String>,
    /// Time limit for all canaries of one GPU, from the new layout to the last exit, image pull included. 10s to 1h.
    #[serde(default = "two_minutes")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10s') && duration(self) <= duration('1h')").message("spec.verify.canary.timeout: write at least 10s and at most 1h, such as 2m"))]
    pub timeout: DurationText,
}

fn two_minutes() -> DurationText {
    text("2m")
}

/// Source of the layout of the pool's GPUs.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("(self.mode == 'Fixed') == (has(self.fixed) && self.fixed.size() > 0)").message("spec.layout: mode Fixed needs the list fixed, and only it; write mode: Fixed and fixed: [...], or leave fixed out"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LayoutPolicy {
    /// Demand follows the tenants' guarantees; Fixed uses the list `fixed`.
    #[serde(default)]
    pub mode: LayoutMode,
    /// The layout by GPU index, for mode Fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub fixed: Vec<FixedLayout>,
    /// Use of GPUs and slices that no guarantee needs.
    #[serde(default)]
    pub spare: Spare,
}

/// Source of the layout.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum LayoutMode {
    /// Follow the tenants' guarantees.
    #[default]
    Demand,
    /// As listed in `fixed`.
    Fixed,
}

/// Layout of some GPUs of each node.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FixedLayout {
    /// GPUs by index on their node: `0`, `0-3`, `0,2,4-7` or `*`.
    #[schemars(length(max = 64), regex(pattern = r"^(\*|[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,2}(-[0-9]{1,2})?)*)$"))]
    pub gpus: String,
    /// Devices on each of these GPUs.
    #[schemars(length(max = 16))]
    pub profiles: Vec<FixedProfile>,
}

/// Devices of one profile on one GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FixedProfile {
    /// Name of a GpuProfile of this pool.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How many on each GPU.
    #[schemars(range(min = 1, max = 16))]
    pub count: i32,
}

/// Use of GPUs and slices that no guarantee needs.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("(self.policy == 'Fill') == has(self.profile)").message("spec.layout.spare: policy Fill needs profile, and only it"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spare {
    /// Keep: existing instances stay. Whole: idle GPUs become whole GPUs. Fill: they are partitioned into `profile`.
    #[serde(default)]
    pub policy: SparePolicy,
    /// Profile to fill with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub profile: Option<String>,
}

/// Use of GPUs and slices that no guarantee needs.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum SparePolicy {
    /// Keep existing instances.
    #[default]
    Keep,
    /// Merge idle GPUs back into whole ones.
    Whole,
    /// Partition them into one profile.
    Fill,
}

/// Component that creates and destroys MIG instances.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Partitioner {
    /// The node agent, instance by instance.
    #[default]
    Agent,
    /// NVIDIA's MIG manager, through the node label `nvidia.com/mig.config`. It pauses the GPU Operator's components on the node during a change.
    MigManager,
    /// None: the pool is read-only.
    None,
}

impl Extensible for Partitioner {
    /// The agent only reads.
    const UNKNOWN: Self = Self::None;
}

impl Partitioner {
    /// Is it the default, which is not written?
    pub fn is_agent(&self) -> bool {
        *self == Self::Agent
    }
}

/// Component that advertises devices to kubelet.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Advertiser {
    /// The node agent, device by device.
    #[default]
    Agent,
    /// NVIDIA's device plugin. It reads the GPUs only when it starts, so the node is cordoned while a layout changes.
    NvidiaDevicePlugin,
}

impl Extensible for Advertiser {
    /// The agent registers nothing with kubelet.
    const UNKNOWN: Self = Self::NvidiaDevicePlugin;
}

impl Advertiser {
    /// Is it the default, which is not written?
    pub fn is_agent(&self) -> bool {
        *self == Self::Agent
    }
}

/// Names of MIG instances, as NVIDIA calls its ways to advertise them.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Strategy {
    /// Each under the resource of its profile.
    #[default]
    Mixed,
    /// All under nvidia.com/gpu.
    Single,
}

/// Which GPU of a node a pod gets instances and shares of.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum AllocationPolicy {
    /// The GPU with the most devices in use, so that other GPUs stay idle for changes.
    #[default]
    Packed,
    /// The GPU with the fewest devices in use, so that neighbours are few.
    Distributed,
}

impl Extensible for AllocationPolicy {
    const UNKNOWN: Self = Self::Packed;
}

impl AllocationPolicy {
    /// Is it the default, which is not written?
    pub fn is_packed(&self) -> bool {
        *self == Self::Packed
    }
}

/// Rules for changing GPUs in use.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
// A text that is no duration is reported by its own rule: `duration()` of it would be an error of this one too.
#[x_kube(validation = Rule::new("!has(self.windows) || self.windows.size() == 0 || !has(self.notice) || !self.notice.matches('^[+]?(0|(([0-9]{1,6}([.][0-9]{0,9})?|[.][0-9]{1,9})(ns|us|µs|μs|ms|s|m|h))+)$') || self.windows.exists(w, !w.duration.matches('^[+]?(0|(([0-9]{1,6}([.][0-9]{0,9})?|[.][0-9]{1,9})(ns|us|µs|μs|ms|s|m|h))+)$') || duration(w.duration) > duration(self.notice))").message("spec.disruption.notice: longer than every window, so that no owner could ever be evicted; shorten the notice or lengthen a window"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disruption {
    /// When changes may start. Default: any time. When a window closes, a change that still has pods to evict is cancelled; one whose
    /// pods are terminating, or that partitions, continues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<MaintenanceWindow>,
    /// Time between the notification of pods and their eviction. With windows, the notice starts and ends within one.
    #[serde(default = "no_notice")]
    pub notice: DurationText,
    /// GPUs of the pool that may change at the same time: a number or a percentage, at least one. Changes on a node whose agent has not
    /// reported for 5 minutes do not count.
    #[serde(default = "one")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 : string(self).matches('^([1-9][0-9]?|100)%$')").message("spec.disruption.maxUnavailable: write a number of GPUs of at least 1, or a percentage from 1% to 100%"))]
    pub max_unavailable: IntOrString,
    /// How long a change waits for pods to terminate, after the notice.
    #[serde(default = "half_an_hour")]
    pub drain_timeout: DurationText,
    /// Action after drainTimeout. Rollback: cancel the change. Wait: keep waiting, with a condition.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// Treatment of pods without a controller that replaces them. Wait: a change waits until they are gone, and lists them. Evict: they are
    /// evicted like other pods.
    #[serde(default)]
    pub unmanaged_pods: UnmanagedPods,
    /// Effect of the annotation `gputenancy.io/do-not-evict: "true"`, which any team may write on its pods. Honor: a change waits for such pods
    /// during doNotEvictFor, and lists them. Ignore: they are evicted like other pods.
    #[serde(default)]
    pub do_not_evict: DoNotEvict,
    /// How long the annotation holds after the creation of a pod. Later the pod is evicted like others, so that no team can keep a
    /// guarantee of another one unmet without end.
    #[serde(default = "one_week")]
    pub do_not_evict_for: DurationText,
    /// Permit a change that removes the last device of a profile while pods use that profile. Otherwise such a change is refused with
    /// the reason OutageRefused.
    #[serde(default)]
    pub allow_outage: bool,
    /// How long a guarantee that flaps must stay the same before the GPUs follow it. It flaps when it has changed three times within 5 minutes
    /// from growing to shrinking or back; every other change is followed at once. 0s to 5m; 0s: always at once.
    #[serde(default = "half_a_minute")]
    #[x_kube(validation = Rule::new("duration(self) <= duration('5m')").message("spec.disruption.settleTime: write at most 5m, such as 30s, or 0s to follow every change at once"))]
    pub settle_time: DurationText,
}

/// A recurring time in which changes may start.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MaintenanceWindow {
    /// When it opens, as in a CronJob: minute, hour, day of month, month, day of week; `0 2 * * 6` is every Saturday at two.
    #[schemars(length(min = 9, max = 100))]
    #[x_kube(validation = Rule::new("self.matches('^ *[^ ]+( +[^ ]+){4} *$')").message("spec.disruption.windows.schedule: write five fields as in a CronJob, such as 0 2 * * 6 for every Saturday at two"))]
    pub schedule: String,
    /// Length of the window in elapsed time, independent of daylight saving changes. At least 1m.
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m')").message("spec.disruption.windows.duration: write at least one minute, such as 30m or 4h"))]
    pub duration: DurationText,
    /// Time zone of the schedule by its IANA name, such as `Europe/Berlin`. A start in the hour that daylight saving skips is
    /// right after it; in the repeated hour the first counts.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self == 'UTC' || self.matches('^[A-Za-z]+(/[A-Za-z0-9_+-]+)+$')").message("spec.disruption.windows.timeZone: write UTC or an IANA name such as Europe/Berlin"))]
    pub time_zone: String,
}

fn utc() -> String {
    "UTC".into()
}

/// Treatment of pods without a controller.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum UnmanagedPods {
    /// Wait until they are gone, and list them.
    #[default]
    Wait,
    /// Evict them like other pods.
    Evict,
}

/// Effect of the annotation by which a pod asks not to be evicted.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum DoNotEvict {
    /// A change waits for the pod, for a limited time.
    #[default]
    Honor,
    /// The pod is evicted like others.
    Ignore,
}

impl Default for Disruption {
    fn default() -> Self {
        Self {
            windows: Vec::new(),
            notice: no_notice(),
            max_unavailable: one(),
            drain_timeout: half_an_hour(),
            on_timeout: OnTimeout::default(),
            unmanaged_pods: UnmanagedPods::default(),
            do_not_evict: DoNotEvict::default(),
            do_not_evict_for: one_week(),
            allow_outage: false,
            settle_time: half_a_minute(),
        }
    }
}

fn no_notice() -> DurationText {
    text("0s")
}

fn one_week() -> DurationText {
    text("168h")
}

fn half_an_hour() -> DurationText {
    text("30m")
}

fn half_a_minute() -> DurationText {
    text("30s")
}

fn text(duration: &'static str) -> DurationText {
    DurationText::constant(duration)
}

fn one() -> IntOrString {
    IntOrString::Int(1)
}

/// Action when pods do not terminate in time.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum OnTimeout {
    /// Cancel the change, with a condition.
    #[default]
    Rollback,
    /// Keep waiting, with a condition.
    Wait,
}
