//! Shares of one GPU.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::{
    Isolation, MemoryText,
    schema::tolerant::{self, Extensible},
};

/// MiB that the planner keeps free for the CUDA context of each share. The first process of a container has it on top of the limit; each
/// further one counts as much against the limit. An empty context takes 526 MiB on an H200 with driver 580, and less on smaller GPUs;
/// code that a program loads comes on top: see `docs/development/gpu-results.md`.
pub const CONTEXT_MIB: i64 = 640;
/// Most shares of one GPU.
pub const MAX_SHARES: i32 = 128;

/// How the pods on a shared GPU are kept apart. A GPU has one mode.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum SharingMode {
    /// The driver runs the pods in turn; the agent limits their memory.
    #[default]
    TimeSlice,
    /// NVIDIA's Multi-Process Service limits memory and threads of each client.
    Mps,
    /// Each pod has a part of memory and compute.
    Fraction,
}

/// Length of a time-slice, by the names of NVIDIA's driver.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum Interval {
    /// The driver's default.
    #[default]
    Default,
    /// Short time-slices.
    Short,
    /// Medium time-slices.
    Medium,
    /// Long time-slices.
    Long,
}

impl Extensible for Interval {
    const UNKNOWN: Self = Self::Default;
}

impl Interval {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

/// Effect of a smaller memory of a fraction on a running pod that holds more. Memory is never taken from it.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum ResizePolicy {
    /// The pod keeps its memory limit until it holds no more than the new memory: the change is refused for it, and reported.
    #[default]
    WhenFree,
    /// The limit falls to what the pod holds, then as the pod frees memory; further allocations fail.
    Force,
}

impl Extensible for ResizePolicy {
    /// The pod keeps what it has.
    const UNKNOWN: Self = Self::WhenFree;
}

impl ResizePolicy {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether a share may use compute that its neighbours leave idle.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum ComputeMode {
    /// Never more than its part.
    #[default]
    Strict,
    /// More than its part while neighbours are idle.
    Burst,
}

impl Extensible for ComputeMode {
    /// The mode that takes nothing from anyone.
    const UNKNOWN: Self = Self::Strict;
}

impl ComputeMode {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Shares of one GPU without MIG.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Sharing {
    /// How the pods are kept apart.
    pub mode: SharingMode,
    /// Length of a time-slice, with `mode: TimeSlice`.
    #[serde(
        default,
        deserialize_with = "crate::schema::tolerant::value",
        skip_serializing_if = "Interval::is_default"
    )]
    pub interval: Interval,
    /// The shares, in groups of equal ones.
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["resource".into()]))]
    pub shares: Vec<ShareGroup>,
}

/// Equal shares of one GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
pub struct ShareGroup {
    /// Resource under which they are advertised.
    #[schemars(length(min = 1, max = 100))]
    pub resource: String,
    /// Memory of one share. Absent: a share has no memory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryText>,
    /// Compute of one share, in percent of the GPU. Absent: a share has no compute of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub compute: Option<i32>,
    /// Whether a share may use compute that its neighbours leave idle.
    #[serde(
        default,
        deserialize_with = "crate::schema::tolerant::value",
        skip_serializing_if = "ComputeMode::is_default"
    )]
    pub compute_mode: ComputeMode,
    /// Effect of a smaller `memory` on pods that hold more.
    #[serde(
        default,
        deserialize_with = "crate::schema::tolerant::value",
        skip_serializing_if = "ResizePolicy::is_default"
    )]
    pub resize: ResizePolicy,
    /// Their numbers. No number is used twice on a GPU. The id of a share in kubelet is `<UUID of the GPU>::<number>`.
    #[schemars(length(max = 128), inner(range(min = 0, max = 127)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub numbers: Vec<i32>,
}

impl Sharing {
    /// Reads the shares of a GPU. With a mode that this release does not know there are none, because nothing would keep their pods apart as
    /// the mode demands.
    pub(crate) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        let Some(fields) = Option::<Value>::deserialize(from)? else { return Ok(None) };
        let mode = fields.get("mode").and_then(Value::as_str);
        if mode.is_some_and(|mode| tolerant::known::<SharingMode>(mode).is_none()) {
            return Ok(Some(Self::default()));
        }
        serde_json::from_value(fields).map(Some).map_err(D::Error::custom)
    }

    /// Has it a mode that this release does not know? A GPU that is shared has at least one share.
    pub(crate) fn is_unknown(&self) -> bool {
        self.shares.is_empty()
    }

    /// The group that a share belongs to.
    pub fn group_of(&self, number: i32) -> Option<&ShareGroup> {
        self.shares.iter().find(|group| group.numbers.contains(&number))
    }

    /// Numbers of all shares, sorted.
    pub fn numbers(&self) -> Vec<i32> {
        let mut numbers: Vec<i32> = self.shares.iter().flat_map(|group| group.numbers.iter().copied()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The canonical form: groups by resource, each sorted, none empty.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.shares.iter_mut().for_each(|group| group.numbers.sort_unstable());
        self.shares.retain(|group| !group.numbers.is_empty());
        self.shares.sort();
        self
    }
}

impl SharingMode {
    /// The field of `GpuProfile.spec.device` that has this mode.
    pub fn field(self) -> &'static str {
        match self {
            Self::TimeSlice => "timeSlice",
            Self::Mps => "mps",
            Self::Fraction => "fraction",
        }
    }

    /// The isolation of a pod with a share of this mode from its neighbours.
    pub fn isolation(self) -> Isolation {
        match self {
            Self::Mps => Isolation::Server,
            // the memory limits of the agent are in the container, and hold no hostile program
            Self::TimeSlice | Self::Fraction => Isolation::None,
        }
    }

    /// The risk that a tenant accepts with a share of this mode, as a clause. Time-slicing: "no memory or fault-isolation between replicas"
    /// (NVIDIA's GPU Operator documentation, "Time-Slicing GPUs in Kubernetes"). MPS: a fatal fault of one client ends the clients of its
    /// server that use the same GPU (NVIDIA's MPS guide, error containment).
    pub fn accepts(self) -> &'static str {
        match self {
            Self::TimeSlice => {
                "pods take turns on one GPU, a program can bypass its limit of memory, and a fault of one pod can end the others"
            }
            Self::Mps => {
                "pods run side by side on one GPU through an MPS server, and a fatal fault of one pod can end the others"
            }
            Self::Fraction => {
                "pods run on one GPU, a program can bypass its limits of memory and compute, and a fault of one pod can end the others"
            }
        }
    }
}
