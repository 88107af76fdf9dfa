//! `GpuProfile`: a named GPU shape that tenants can request.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{ComputeMode, Interval, Isolation, MemoryText, ResizePolicy, SharingMode};

/// Most pods that share one GPU without evidence or a reason: NVIDIA's guides start with 2 to 4, and use 8 for development.
pub const DEFAULT_MAX_REPLICAS: i32 = 8;

/// A named GPU shape that tenants can request: a whole GPU, a MIG instance or a share, with isolation and contract.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[kube(
    group = "gputenancy.io",
    version = "v1alpha1",
    kind = "GpuProfile",
    shortname = "gpuprof",
    category = "gputenancy",
    status = "GpuProfileStatus",
    derive = "PartialEq",
    doc = "GpuProfile is a product of the platform: a named GPU shape that tenants can request, with isolation, price and support contract.",
    printcolumn(name = "Resource", type_ = "string", json_path = ".status.resourceName"),
    printcolumn(name = "Isolation", type_ = "string", json_path = ".status.isolation"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.capacity.allocated"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.capacity.total"),
    printcolumn(name = "Tenants", type_ = "integer", json_path = ".status.tenants"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Expected", type_ = "string", json_path = ".spec.support.expected", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 40").message("metadata.name: use at most 40 characters, the name becomes part of resource names"),
)]
#[x_kube(
    validation = Rule::new("!has(self.trust) || self.trust != 'Untrusted' || has(self.device.whole) || has(self.device.mig)").message("spec.trust: a shared device cannot be offered to Untrusted tenants; write trust: Internal or Trusted, or use device.mig"),
    validation = Rule::new("!has(self.resourceName) || has(self.device.whole) || has(self.device.mig) || (self.resourceName != 'nvidia.com/gpu' && (!self.resourceName.startsWith('nvidia.com/mig-') || self.resourceName.endsWith('.shared')))").message("spec.resourceName: a shared profile may not use the name of an exclusive device; leave it out or write gputenancy.io/<name>"),
    validation = Rule::new("!has(self.resourceName) || !self.resourceName.startsWith('gputenancy.io/canary_')").message("spec.resourceName: names that begin with gputenancy.io/canary_ are for the operator's canary pods; choose another"),
    validation = Rule::new("!has(self.resourceName) || self.resourceName.split('/')[1].size() <= 63").message("spec.resourceName: Kubernetes permits 63 characters after the slash; choose a shorter name"),
    validation = Rule::new("!has(self.resourceName) || (!self.resourceName.startsWith('requests.') && !self.resourceName.split('/')[0].endsWith('kubernetes.io'))").message("spec.resourceName: Kubernetes has no extended resources in kubernetes.io, nor any that begin with requests.; write gputenancy.io/<name>"),
    validation = Rule::new("!has(self.resourceName) || self.resourceName == 'nvidia.com/gpu' || self.resourceName.startsWith('nvidia.com/gpu.') || self.resourceName.startsWith('nvidia.com/mig-') || self.resourceName.startsWith('gputenancy.io/')").message("spec.resourceName: policies and quotas know GPUs by their names; write gputenancy.io/<name>, nvidia.com/gpu, nvidia.com/gpu.<name> or nvidia.com/mig-<name>"),
    validation = Rule::new("!has(self.maxPerPod) || has(self.device.whole) || has(self.device.mig) || self.maxPerPod == 1").message("spec.maxPerPod: a pod gets one share of a shared device; write maxPerPod: 1 or leave it out"),
    validation = Rule::new("!has(self.sharing) || has(self.device.timeSlice) || has(self.device.mps)").message("spec.sharing: it is about the pods that share device.timeSlice and device.mps; leave it out for other devices"),
    validation = Rule::new("(has(self.device.timeSlice) ? self.device.timeSlice.replicas : has(self.device.mps) && has(self.device.mps.replicas) ? self.device.mps.replicas : 0) <= (has(self.sharing) && has(self.sharing.maxReplicas) ? self.sharing.maxReplicas : 8)").message("spec.device: replicas are more than spec.sharing.maxReplicas (default 8); write fewer replicas, or raise spec.sharing.maxReplicas with spec.sharing.evidence or spec.sharing.reason"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuProfileSpec {
    /// Hardware of the profile. Exactly one of the five fields.
    pub device: Device,
    /// Boards that may offer it, by NVML's product name with dashes, such as `NVIDIA-A100-SXM4-80GB`. Default: any board that can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub products: Vec<String>,
    /// Extended resource that pods request: gputenancy.io/NAME, nvidia.com/gpu, nvidia.com/gpu.NAME or nvidia.com/mig-NAME, by which policies and quotas know GPUs. A MIG instance may have nvidia.com/gpu in a pool with `strategy: Single`. Default: the name of NVIDIA's device plugin (`nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`, and with `.shared` at the end for time-slices); for other shares and MIG by size `gputenancy.io/<name of the profile>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 100),
        regex(
            pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
        )
    )]
    pub resource_name: Option<String>,
    /// Most devices that one pod may request; never more than the tenant's guarantee. Default: the guarantee, and 1 for shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub max_per_pod: Option<i32>,
    /// Least trust that a tenant needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    /// Behaviour that a user must accept as normal, and behaviour that counts as an incident.
    pub support: Support,
    /// Price of one device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// Limit of the replicas of `device.timeSlice` and `device.mps`, and what justifies a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingLimit>,
}

/// How many pods may share one GPU, why so many, and whether a pilot has shown that it works.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[x_kube(validation = Rule::new("!has(self.production) || !self.production || (has(self.evidence) && has(self.evidence.throughputPercent) && has(self.evidence.failure))").message("spec.sharing.production: a production profile needs the results of a pilot; write spec.sharing.evidence with throughputPercent and failure, or leave production out"))]
#[x_kube(validation = Rule::new("!has(self.maxReplicas) || self.maxReplicas <= 8 || has(self.evidence) || has(self.reason)").message("spec.sharing.maxReplicas: more than 8 needs a measurement or a reason; write spec.sharing.evidence {p99Milliseconds, memoryHeadroomPercent, measuredAt} or spec.sharing.reason"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SharingLimit {
    /// Most replicas of the device. More than 8 need `evidence` or a `reason`.
    #[serde(default = "default_max_replicas")]
    #[schemars(range(min = 2, max = 128))]
    pub max_replicas: i32,
    /// The profile is offered for production: a pilot has shown latency, throughput and what a failure does. The catalog says so. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub production: bool,
    /// Measurement with this number of pods on one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<SharingEvidence>,
    /// Why more replicas are acceptable without a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1000))]
    pub reason: Option<String>,
}

fn default_max_replicas() -> i32 {
    DEFAULT_MAX_REPLICAS
}

/// Measurements with all pods of a shared GPU at work.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SharingEvidence {
    /// 99th percentile of the workload's latency, in milliseconds.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub p99_milliseconds: i32,
    /// Memory of the GPU that stayed free, in percent.
    #[schemars(range(min = 0, max = 100))]
    pub memory_headroom_percent: i32,
    /// Latency by the number of pods at work, to show how it grows: such as 1, 2, 4 and 8 pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pods".into()]))]
    pub latencies: Vec<LatencyWithPods>,
    /// Throughput of all pods together, in percent of that of one pod alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub throughput_percent: Option<i32>,
    /// Effect on the other pods when the program of one pod failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1000))]
    pub failure: Option<String>,
    /// Day of the measurement, a date of RFC 3339 such as `2026-11-24`.
    #[schemars(extend("format" = "date"), regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"))]
    pub measured_at: String,
}

/// Latency with a number of pods at work on one GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LatencyWithPods {
    /// Pods at work.
    #[schemars(range(min = 1, max = 128))]
    pub pods: i32,
    /// 99th percentile of the workload's latency, in milliseconds.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub p99_milliseconds: i32,
}

/// Hardware of a profile: exactly one of the fields is set.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[x_kube(
    validation = Rule::new("[has(self.whole), has(self.mig), has(self.timeSlice), has(self.mps), has(self.fraction)].filter(x, x).size() == 1").message("spec.device: write exactly one of whole, mig, timeSlice, mps, fraction"),
    validation = Rule::new("has(self.whole) == has(oldSelf.whole) && has(self.mig) == has(oldSelf.mig) && has(self.timeSlice) == has(oldSelf.timeSlice) && has(self.mps) == has(oldSelf.mps) && has(self.fraction) == has(oldSelf.fraction)").message("spec.device: whole, mig, timeSlice, mps and fraction cannot replace each other, because tenants were promised one of them; create a new GpuProfile and move the tenants to it"),
    validation = Rule::new("!has(self.mps) || !has(oldSelf.mps) || self.mps == oldSelf.mps").message("spec.device.mps: the size of a share cannot change, because running pods keep the size that they started with; create a new GpuProfile"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// A whole GPU, nothing shared. Written as `whole: {}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Whole>,
    /// A MIG instance, isolated by hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// Time-slices of a whole GPU or of a MIG instance for several pods, without isolation by hardware between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slice: Option<TimeSlice>,
    /// A share of a whole GPU through NVIDIA's Multi-Process Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<Mps>,
    /// A share of a whole GPU by memory and compute. The size may change: running pods get the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Fraction>,
}

impl Device {
    /// The MIG instance that it is, or a time-slice of.
    pub fn instance(&self) -> Option<&Mig> {
        self.mig.as_ref().or_else(|| Some(&self.time_slice.as_ref()?.of.as_ref()?.mig))
    }

    /// How it is shared; `None` for a whole GPU and for a MIG instance.
    pub fn sharing_mode(&self) -> Option<SharingMode> {
        match self {
            Self { time_slice: Some(_), .. } => Some(SharingMode::TimeSlice),
            Self { mps: Some(_), .. } => Some(SharingMode::Mps),
            Self { fraction: Some(_), .. } => Some(SharingMode::Fraction),
            _ => None,
        }
    }

    /// The isolation of a pod on this device from its neighbours.
    pub fn isolation(&self) -> Isolation {
        match self.sharing_mode() {
            Some(mode) => mode.isolation(),
            None if self.whole.is_some() || self.mig.is_some() => Isolation::Hardware,
            None => Isolation::None,
        }
    }
}

/// A whole GPU; no fields.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Whole {}

/// A MIG instance, by NVIDIA's profile name or by minimum size.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("has(self.profile) ? !has(self.slices) && !has(self.memory) : has(self.slices) || has(self.memory)").message("spec.device.mig: write either profile (such as 1g.10gb) or slices and memory (the smallest profile that satisfies both is taken)"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mig {
    /// NVIDIA's name of the MIG profile, such as `1g.10gb` or `1g.10gb+me`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[1-8]g\.[0-9]{1,4}gb([+-][a-z]+([.][a-z]+)*)?$"))]
    pub profile: Option<String>,
    /// Minimum number of compute slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub slices: Option<i32>,
    /// Minimum memory, a quantity of bytes such as `10Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = MemoryText::POSITIVE, "minimum" = 1))]
    pub memory: Option<MemoryText>,
}

/// Time-slices of a whole GPU, or of a MIG instance.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[x_kube(
    validation = Rule::new("self.replicas >= 2").message("spec.device.timeSlice.replicas: write 2 or more; one replica is an exclusive device, write device: {whole: {}} or {mig: …}"),
    validation = Rule::new("!has(self.of) || self.replicas <= 16").message("spec.device.timeSlice.replicas: at most 16 pods share a MIG instance; write 16 or fewer"),
    validation = Rule::new("!has(self.of) || !has(self.interval) || self.interval == 'Default'").message("spec.device.timeSlice.interval: NVIDIA's driver has no time-slice length for MIG instances; leave interval out"),
    validation = Rule::new("has(self.of) == has(oldSelf.of) && (!has(self.of) || self.of == oldSelf.of)").message("spec.device.timeSlice.of: the shared hardware cannot change, because tenants were promised it; create a new GpuProfile and move the tenants to it"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimeSlice {
    /// Number of pods that share the GPU or the instance.
    #[schemars(range(min = 0, max = 128))]
    pub replicas: i32,
    /// Length of a time-slice of a whole GPU.
    #[serde(default)]
    pub interval: Interval,
    /// The device that is shared. Default: a whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<SlicedDevice>,
}

/// The device that time-slices are parts of, other than a whole GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SlicedDevice {
    /// A MIG instance: isolated from the rest of the GPU by hardware, and shared by the replicas without isolation.
    pub mig: Mig,
}

/// A share through the Multi-Process Service: an equal split, or a given part.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[x_kube(
    validation = Rule::new("has(self.replicas) != (has(self.memory) && has(self.threads)) && has(self.memory) == has(self.threads)").message("spec.device.mps: write either replicas (an equal split) or both memory and threads"),
    validation = Rule::new("!has(self.replicas) || self.replicas >= 2").message("spec.device.mps.replicas: write 2 or more; one replica is a whole GPU, write device: {whole: {}}"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mps {
    /// Equal parts of one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 48))]
    pub replicas: Option<i32>,
    /// Memory of one share, a quantity of bytes such as `10Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = MemoryText::POSITIVE, "minimum" = 1))]
    pub memory: Option<MemoryText>,
    /// Compute of one share, in percent of the GPU's threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub threads: Option<i32>,
}

/// A share of stated memory and compute; the agent limits both in the container.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[x_kube(validation = Rule::new("self.compute < 100 || !has(self.computeMode) || self.computeMode == 'Strict'").message("spec.device.fraction.computeMode: a fraction with compute: 100 has the whole GPU's time already; leave computeMode out, or write a lower compute"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fraction {
    /// Memory of one share, a quantity of bytes such as `10Gi`.
    #[schemars(extend("pattern" = MemoryText::POSITIVE, "minimum" = 1))]
    pub memory: MemoryText,
    /// Part of the GPU's time, in percent: the largest part with computeMode Strict, the part next to busy neighbours with Burst.
    #[schemars(range(min = 1, max = 100))]
    pub compute: i32,
    /// Whether a pod may use GPU time that other pods leave idle. Strict: never more than `compute`. Burst: more while neighbours are idle; they
    /// get their percentage back when they have work. Among pods with Burst, those with the highest PriorityClass get the idle time. Default: Strict.
    #[serde(default, skip_serializing_if = "ComputeMode::is_default")]
    pub compute_mode: ComputeMode,
    /// Effect of a smaller `memory` on running pods that hold more. WhenFree: such a pod keeps its limit until it has freed enough,
    /// and condition Resized names it. Force: the limit falls to what the pod holds, then as the pod frees memory; further
    /// allocations fail. Default: WhenFree.
    #[serde(default, skip_serializing_if = "ResizePolicy::is_default")]
    pub resize: ResizePolicy,
}

/// How far a tenant is trusted, from least to most.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
pub enum Trust {
    /// May run hostile code; hardware isolation only.
    #[default]
    Untrusted,
    /// A team of the organisation; does not attack its neighbours.
    Internal,
    /// The platform team itself.
    Trusted,
}

/// The contract of a profile.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("self.expected.size() > 0 && self.incident.size() > 0").message("spec.support: say in expected what a user must accept, and in incident what is the platform's fault"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Support {
    /// Behaviour that a user must accept as normal.
    #[schemars(length(max = 1000))]
    pub expected: String,
    /// Behaviour that counts as an incident of the platform.
    #[schemars(length(max = 1000))]
    pub incident: String,
}

/// Price of one device for one hour.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Price {
    /// Decimal number as text, such as `"0.51"`.
    #[schemars(length(max = 20), regex(pattern = r"^[0-9]+(\.[0-9]{1,6})?$"))]
    pub per_hour: String,
    /// Currency code of ISO 4217, such as `USD`.
    #[schemars(length(equal = 3), regex(pattern = r"^[A-Z]{3}$"))]
    pub currency: String,
}

impl Price {
    /// Reads a price in a status, where a newer release may have added fields.
    pub(crate) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Known {
            per_hour: String,
            currency: String,
        }
        Ok(Option::<Known>::deserialize(from)?.map(|Known { per_hour, currency }| Self { per_hour, currency }))
    }
}

/// Observed state of a profile.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuProfileStatus {
    /// Generation of the spec that this status refers to; -1 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Extended resource that pods request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
    /// Isolation between tenants.
    #[serde(default, deserialize_with = "crate::schema::tolerant::option", skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Devices of this profile in the whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Tenants that have it in their budget. While there are any, the profile is not deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<i32>,
    /// Pools that list it. While there are any, the profile is not deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<i32>,
}

/// Numbers of devices.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Devices that exist.
    pub total: i32,
    /// Devices that pods own.
    pub allocated: i32,
    /// Devices that a new pod could get now.
    pub free: i32,
    /// Devices that exist and are neither owned nor advertised: withdrawn, unhealthy, or not yet verified.
    pub unschedulable: i32,
}
