//! Status of a `GpuPool`: its devices, changes, and what keeps them waiting.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{ChangePhase, RolloutStatus};

/// Observed state of a pool.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuPoolStatus {
    /// Generation of the spec that this status refers to; -1 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled; DemandMet: every guarantee is served; AgentSilent: agents of nodes do not report; NodesMarked: nodes are cordoned, tainted or marked as unhealthy; DemandFlapping: guarantees change up and down; ForeignPartitioner: another
    /// product owns GPUs; EnforcementMet with spec.enforcement.minimum; RolledOut with spec.rollout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Nodes of the pool that have an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i32>,
    /// GPUs of these nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<i32>,
    /// Devices by profile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub profiles: Vec<PoolProfile>,
    /// Free slices that no profile of the pool can use in the present layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stranded: Option<Stranded>,
    /// Number of GPUs with a change in progress, also of those suspended on nodes whose agent does not report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changing: Option<i32>,
    /// Changes in progress, and the last failed ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<PoolChange>,
    /// The first 32 GPUs, by node, whose change is planned and has not started, with what each waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingChange>,
    /// The open window, or else the next one; absent without windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_window: Option<WindowTimes>,
    /// State of the staged rollout; absent without `spec.rollout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Key of the taint that pods of tenants tolerate, from `policies.gpuTaint.key` of the chart, so that `kubectl gpu plan` does not take it for a mark
    /// of others; absent for `nvidia.com/gpu`, which never is one, and where they tolerate none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerated_taint: Option<String>,
    /// Devices that guarantees for this pool's profiles lack; a profile of several pools counts in each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmet: Option<i32>,
    /// Guarantees that the pool cannot serve, each with a reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsatisfied: Vec<String>,
    /// The first 16 guarantees for the pool's profiles that change up and down, each with the field managers that change it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flapping: Vec<FlappingGuarantee>,
    /// Used and total in one line for `kubectl get`, such as `mig-1g 2/7, mig-3g 1/2`: the first four profiles with devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// Devices of one profile in a pool.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolProfile {
    /// Name of the GpuProfile.
    pub name: String,
    /// Devices that exist.
    pub total: i32,
    /// Devices that pods own.
    pub allocated: i32,
    /// Devices that a new pod could get now.
    pub free: i32,
}

/// Free slices that no profile can use.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Stranded {
    /// Compute slices.
    pub compute: i32,
    /// Memory slices.
    pub memory: i32,
}

/// A GPU that is changing, or whose last change failed.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolChange {
    /// Name of the node.
    pub node: String,
    /// Index of the GPU on its node.
    pub gpu: i32,
    /// Phase of the change.
    #[serde(deserialize_with = "crate::schema::tolerant::value")]
    pub phase: ChangePhase,
    /// Current action, and what it waits for.
    pub message: String,
}

/// A GPU whose change is planned.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PendingChange {
    /// Name of the node.
    pub node: String,
    /// Index of the GPU on its node.
    pub gpu: i32,
    /// The cause of the wait, such as `Pending: nextWindow=2026-11-28T01:00:00Z`.
    pub message: String,
}

/// A guarantee that changes up and down.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FlappingGuarantee {
    /// Name of the GpuTenant.
    pub tenant: String,
    /// Name of the GpuProfile.
    pub profile: String,
    /// Field managers that have written the guarantee, from metadata.managedFields of the GpuTenant; 8 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writers: Vec<String>,
    /// Changes since the guarantee last stayed the same for 5 minutes.
    pub changes: i32,
    /// Devices as the GpuTenant has them now.
    pub wanted: i32,
    /// Devices that are planned.
    pub planned: i32,
    /// When `wanted` is planned if it stays; absent once it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_at: Option<Time>,
}

/// When a window opens and closes.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WindowTimes {
    /// When it opens or opened.
    pub start: Time,
    /// When it closes.
    pub end: Time,
}
