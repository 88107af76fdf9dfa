//! The preview as data, written by `-o json` and `-o yaml`. Fields are only added within this version.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::inside::Inside;

/// What the operator would do.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PlanPreview {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `PlanPreview`.
    pub kind: String,
    /// When the cluster was read, in RFC 3339; absent when a snapshot does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<String>,
    /// The worst that would happen.
    pub outcome: Outcome,
    /// Exit code of `kubectl gpu plan --exit-code`: 0, 2, 3 or 4, according to `outcome`.
    pub exit_code: u8,
    /// What would be applied and deleted.
    pub manifests: Vec<Manifest>,
    /// GPUs that would change, or are changing, in the order in which that happens.
    pub changes: Vec<GpuChange>,
    /// Pods that would be evicted, each once.
    pub evictions: Vec<Eviction>,
    /// Devices by profile, before and after.
    pub profiles: Vec<ProfileCapacity>,
    /// Devices by tenant and profile, before and after.
    pub tenants: Vec<TenantCapacity>,
    /// Rules and leftovers of every pool.
    pub pools: Vec<PoolPreview>,
    /// What would be refused, and guarantees that could not be met.
    pub problems: Vec<Finding>,
    /// Notes without need for action, in sentences.
    pub notes: Vec<String>,
    /// How long it would take.
    pub estimate: Estimate,
}

/// The worst that would happen.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// No GPU changes.
    NothingToDo,
    /// GPUs change, and no pod is evicted.
    Changes,
    /// Pods are evicted.
    Evictions,
    /// Something is refused, or a guarantee cannot be met.
    Unmet,
}

impl Outcome {
    /// Exit code of the program.
    pub fn code(self) -> u8 {
        match self {
            Self::NothingToDo => 0,
            Self::Changes => 2,
            Self::Evictions => 3,
            Self::Unmet => 4,
        }
    }
}

/// An object that would be applied or deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// File and line, such as `tenants.yaml:12`; absent for what is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What applying it does to the object.
    pub action: Action,
    /// Fields of the spec that differ, such as `gpus[mig-3g].count: 2 → 7`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
}

/// What applying a manifest does.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The object is new.
    Create,
    /// Its spec differs.
    Update,
    /// It is as the cluster has it.
    Unchanged,
    /// It is deleted.
    Delete,
}

/// What happens to one GPU.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuChange {
    /// Its node.
    pub node: String,
    /// NVML's index on the node.
    pub gpu: i32,
    /// NVML's UUID.
    pub uuid: String,
    /// Its board.
    pub product: String,
    /// Its pool; absent when no pool has it any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// GPUs of a pool with the same number change at the same time, those of the next number after them. 0: outside the
    /// order, such as a released GPU.
    pub step: u32,
    /// Phase of a change in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The layout that it has, in one line.
    pub from: String,
    /// The layout that it gets, in one line.
    pub to: String,
    /// Instances that are destroyed.
    pub destroy: Vec<Instance>,
    /// Instances that are created.
    pub create: Vec<Instance>,
    /// MIG mode that is set, where it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_mode: Option<MigModeChange>,
    /// Pods that lose a device of this GPU, as `namespace/name`.
    pub evicts: Vec<String>,
    /// What has to end first and is not evicted: processes outside pods, and on a released GPU all its users.
    pub waits_for: Vec<String>,
    /// Why, in sentences.
    pub reasons: Vec<String>,
    /// Seconds that it takes, at most, once it has begun; see `estimate.basis`.
    pub seconds: u64,
}

/// A MIG instance by placement.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// NVIDIA's name of the profile.
    pub profile: String,
    /// First memory slice.
    pub start: i32,
}

/// A change of MIG mode.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MigModeChange {
    /// On, or else off.
    pub enabled: bool,
    /// The GPU is reset for it, so all pods on it are evicted.
    pub reset: bool,
}

/// A pod that is evicted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The pod inside the tenant's virtual cluster; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// Tenant that the namespace belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Controller that replaces it, such as `Deployment/notebook`; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Devices that it loses, such as `1g.10gb at 3 of gpu-1 GPU 0`.
    pub devices: Vec<String>,
    /// Why, in a sentence.
    pub reason: String,
    /// Seconds that it may take to end.
    pub grace_seconds: i64,
    /// What its eviction waits for: a budget that allows none, an annotation, a missing controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// Devices of one profile.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileCapacity {
    /// Name of the `GpuProfile`.
    pub profile: String,
    /// Extended resource that pods ask for.
    pub resource: String,
    /// Devices guaranteed to all tenants.
    pub guaranteed: BeforeAfter,
    /// Devices that exist once changes are done: those under way, and with these manifests.
    pub devices: BeforeAfter,
    /// Devices that pods hold now.
    pub held: u32,
}

/// Devices of one profile for one tenant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantCapacity {
    /// Name of the `GpuTenant`.
    pub tenant: String,
    /// Name of the `GpuProfile`.
    pub profile: String,
    /// Devices that it is guaranteed.
    pub guaranteed: BeforeAfter,
    /// Devices that exist for it.
    pub served: BeforeAfter,
    /// Devices that its pods hold now.
    pub held: u32,
}

/// A number without the manifests and with them.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BeforeAfter {
    /// Without the manifests.
    pub before: u32,
    /// With them.
    pub after: u32,
}

/// Rules of a pool about time, and the slices that its layout cannot use.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolPreview {
    /// Name of the `GpuPool`.
    pub pool: String,
    /// GPUs that may change at once, as written.
    pub max_unavailable: String,
    /// NVIDIA's MIG manager partitions the pool's nodes: they change one after the other, and `maxUnavailable` is not used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_by_node: bool,
    /// Notice to owners before an eviction, as written.
    pub notice: String,
    /// When changes may begin, in words.
    pub window: String,
    /// Changes may begin at `takenAt`; absent when that time is not known, or the windows cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_open: Option<bool>,
    /// The window that is open, or else the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_window: Option<WindowPreview>,
    /// Memory slices that no profile of the pool can use.
    pub stranded_memory: BeforeAfter,
    /// Compute slices that no profile of the pool can use.
    pub stranded_compute: BeforeAfter,
}

/// A maintenance window.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WindowPreview {
    /// When it opens or opened, in RFC 3339.
    pub start: String,
    /// When it closes, in RFC 3339.
    pub end: String,
}

/// A problem to fix.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The reason as conditions write it, such as `Shortage` or `ProfileNotFound`.
    pub reason: String,
    /// The sentence, with the remedy.
    pub message: String,
    /// It exists without these manifests too.
    pub known: bool,
}

/// How long it takes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// Upper bound in seconds from the first change to the last, without waits and windows.
    pub seconds: u64,
    /// The parts of the estimate, in sentences.
    pub basis: Vec<String>,
    /// Waits that the estimate does not include.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_counted: Vec<String>,
}
