//! The demands of a pool on the limits of shares, and the consequence of a bypass.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Isolation, MemoryText, Trust, UnscrubbedMemory, schema::tolerant};

/// Demands on the limits of shares.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Enforcement {
    /// Weakest means that may limit the memory of shares: Hardware, Driver, Server (MPS), Software or None. Nodes that cannot give it for a
    /// kind of share get no shares of that kind; idle shares that exist are withdrawn, and pods that run keep theirs. With Hardware there
    /// are no shares, only MIG instances and whole GPUs.
    #[serde(default)]
    pub minimum: Isolation,
    /// Consequence when the processes of a pod use more memory of their share than its limit counts, because a program does not use the
    /// library that limits it. Warn: events on the pod and the GpuNode, and a metric. Evict: the pod is evicted as well, through the eviction
    /// API, which respects PodDisruptionBudgets; the annotation gputenancy.io/do-not-evict does not prevent it.
    #[serde(default)]
    pub on_bypass: OnBypass,
    /// The same for pods of tenants with trust: Trusted. Warn keeps the pods of trusted teams running where others are
    /// evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_bypass_by_trusted: Option<OnBypass>,
    /// Policy for nodes whose driver does not overwrite freed GPU memory (registry key RMDisableScrubOnFree). A pod can read data of an earlier
    /// pod there. Refuse: no new pod gets a device; running pods keep theirs. Accept: devices are served; for pools of one team. Default: Refuse.
    #[serde(default, skip_serializing_if = "UnscrubbedMemory::is_refuse")]
    pub unscrubbed_memory: UnscrubbedMemory,
}

impl Enforcement {
    /// Is it the default, which is not written?
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The consequence of a bypass by a pod of a tenant with this trust; `None`: the pod is of no tenant.
    pub fn on_bypass_by(&self, trust: Option<Trust>) -> OnBypass {
        let trusted = self.on_bypass_by_trusted.filter(|_| trust == Some(Trust::Trusted));
        trusted.unwrap_or(self.on_bypass)
    }
}

/// Demands of the pool of a node on the limits of its shares, and on its driver.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ShareMinimum {
    /// Weakest means that may limit the memory of shares.
    #[serde(default, deserialize_with = "strictest")]
    pub minimum: Isolation,
    /// Policy for a driver that does not overwrite freed memory.
    #[serde(
        default,
        deserialize_with = "crate::schema::tolerant::value",
        skip_serializing_if = "UnscrubbedMemory::is_refuse"
    )]
    pub unscrubbed_memory: UnscrubbedMemory,
}

/// Reads the weakest means that is accepted: one that this release does not know demands the strongest.
fn strictest<'de, D: Deserializer<'de>>(from: D) -> Result<Isolation, D::Error> {
    Ok(tolerant::known(&String::deserialize(from)?).unwrap_or(Isolation::Hardware))
}

impl ShareMinimum {
    /// Is it the default, which is not written?
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Consequence when a pod bypasses the memory limit of its share.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBypass {
    /// Events and a metric.
    #[default]
    Warn,
    /// The pod is evicted as well.
    Evict,
}

/// Memory that the owner of a share uses past its limit, as it was when the agent found it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Bypass {
    /// UID of the pod.
    pub uid: String,
    /// Memory of its processes, as NVML lists it.
    pub used: MemoryText,
    /// Of this, memory that the limit counts.
    pub counted: MemoryText,
    /// The limit, with the CUDA context of one process.
    pub limit: MemoryText,
    /// None of its processes has loaded `libcuda.so`: they hold memory of graphics or video, which no limit counts, or a copy of the library
    /// under another name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_cuda: bool,
}

impl Bypass {
    /// Is it more than the limit, and not only memory that the limit does not count?
    pub fn exceeds_limit(&self) -> bool {
        // an amount that cannot be read is taken for too much
        match (self.used.mib(), self.limit.mib()) {
            (Ok(used), Ok(limit)) => used > limit,
            _ => true,
        }
    }
}
