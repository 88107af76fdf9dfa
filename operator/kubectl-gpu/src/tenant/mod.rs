//! Status of one tenant: budget, quota by namespace, waiting workloads. [`report`] is pure, from objects to a report; [`gather`] reads.

mod gather;
mod queue;
mod report;
mod waiting;

use gputenancy_crds::{
    GpuGrant, GpuProfile, GpuTenant,
    projection::{SlimEvent, SlimQuota},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::core::DynamicObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::inside::Inside;

pub use gather::{GatherError, gather};
pub use queue::{PendingWorkload, PendingWorkloads, PositionsError};
pub use report::report;
pub(crate) use waiting::QUOTA_EXCEEDED;

/// Objects that a report is made from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Name of the tenant.
    pub name: String,
    /// The tenant, unless it is hidden.
    pub tenant: Option<GpuTenant>,
    /// Its known namespaces.
    pub namespaces: Vec<NamespaceObjects>,
    /// Readable profiles of its budget.
    pub profiles: Vec<GpuProfile>,
    /// What may not be read, in sentences.
    pub hidden: Vec<String>,
    /// Time of the report.
    pub now: Timestamp,
}

/// Objects of one namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceObjects {
    /// Its name.
    pub name: String,
    /// The grant.
    pub grant: Option<GpuGrant>,
    /// The quota.
    pub quota: Option<SlimQuota>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// Events of controllers about refused pods.
    pub events: Vec<SlimEvent>,
    /// Readable controllers by uid, and whether they have fewer pods than desired.
    pub controllers: BTreeMap<String, bool>,
    /// Jobs that wait in its queue, or why they cannot be read; `None`: it has no queue.
    pub pending: Option<Result<PendingWorkloads, PositionsError>>,
    /// Kueue's objects of its jobs.
    pub workloads: Vec<DynamicObject>,
}

/// Status of a tenant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TenantReport {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `TenantReport`.
    pub kind: String,
    /// Name of the tenant.
    pub tenant: String,
    /// How far it is trusted; absent where the tenant is not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<String>,
    /// Its condition `Ready`: True, False or Unknown; absent where the tenant is not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// The GPU budget by profile, in the order of the tenant's spec.
    pub profiles: Vec<ProfileBudget>,
    /// All profiles together against the tenant's cap; absent without one, and where the tenant is not visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivalents: Option<EquivalentBudget>,
    /// Jobs in the tenant's queue; absent without any, and where the tenant is not visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuedJobs>,
    /// The order of the jobs that wait; absent: none waits, or the namespaces have no queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_order: Option<QueueOrder>,
    /// Other limits, by key of a `ResourceQuota`.
    pub resources: Vec<ResourceBudget>,
    /// Pods with devices of a virtual cluster, by namespace and name on the host; empty without one, and where the tenant is not visible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<VirtualPod>,
    /// What waits, the longest first.
    pub waiting: Vec<Waiting>,
    /// Further pods inside the virtual cluster that the quota refuses, which the tenant's status counts and does not name; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_unnamed: Option<i32>,
    /// Unhealthy conditions.
    pub problems: Vec<Problem>,
    /// What the user may not read, in sentences.
    pub not_visible: Vec<String>,
}

/// A profile of the budget.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileBudget {
    /// Name of the `GpuProfile`.
    pub profile: String,
    /// Extended resource that pods ask for; empty: the profile is not in the catalog.
    pub resource_name: String,
    /// Devices that the team is guaranteed.
    pub budget: i32,
    /// Devices granted to its pods.
    pub used: i32,
    /// Devices that exist for it now; absent where the tenant is not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i32>,
    /// Pods and controllers that wait for a device.
    pub waiting: i32,
    /// Devices above the guarantee that the team's jobs use; absent: none, or the tenant is not visible.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub borrowed: i32,
    /// Devices of the guarantee that jobs of other teams use; absent: none, or the tenant is not visible.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lent: i32,
    /// What one device counts against the tenant's cap, as a share of a whole GPU such as `1/8`; absent without a cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Quota by namespace.
    pub namespaces: Vec<Share>,
    /// What its users may rely on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
}

/// All profiles together, in whole GPUs: a device counts as its share of a board's memory slices.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EquivalentBudget {
    /// The cap, such as `3.5`.
    pub budget: String,
    /// In use, such as `2.125`; absent before the first reconciliation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
}

/// Jobs in the tenant's queue, over all its namespaces.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QueuedJobs {
    /// Jobs that wait to be admitted.
    pub waiting: i32,
    /// Jobs that are admitted and have not ended.
    pub admitted: i32,
}

/// The order in which jobs of the tenant are admitted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QueueOrder {
    /// The jobs that wait, in the namespaces that are visible, the next one first.
    pub jobs: Vec<QueuedJob>,
    /// Why positions are not visible, in words; absent: they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_visible: Option<String>,
    /// How long jobs have waited of late; absent: no job that waited was admitted in the last day, or they are not visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<RecentWaits>,
}

/// A job that waits.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QueuedJob {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub job: String,
    /// Its place among the jobs of the tenant, from 1.
    pub position: u32,
    /// Seconds since its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

/// The waits of jobs that were admitted in the last day, without those that were admitted within ten seconds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RecentWaits {
    /// Their median.
    pub median_seconds: i64,
    /// Number of jobs.
    pub jobs: usize,
}

/// Is it the default, which is not written?
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// What users of a profile may rely on.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Contract {
    /// Isolation from other tenants, such as `Hardware`; absent where the profile is not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// How limits are enforced, in words; absent where the profile is not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<String>,
    /// What must be accepted as normal.
    pub expected: String,
    /// What counts as an incident of the platform.
    pub incident: String,
}

/// A limit other than GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceBudget {
    /// Key of a `ResourceQuota`, such as `requests.cpu`.
    pub resource: String,
    /// The budget as a quantity: of the tenant's spec, or else the sum of its quotas; absent where the tenant is not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// Whether the tenant's `spec.resources` has it; else it is a limit of the platform for every tenant, or the tenant is not visible.
    pub written: bool,
    /// In use, as a quantity, in the namespaces that are visible.
    pub used: String,
    /// Quota by namespace.
    pub namespaces: Vec<Share>,
}

/// A namespace's part of a budget.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The namespace.
    pub namespace: String,
    /// What its quota allows, as a quantity: the larger of the quota's spec and its enforced limit.
    pub limit: String,
    /// In use, as a quantity.
    pub used: String,
}

/// A pod that is bound to a node, in the namespace of a virtual cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualPod {
    /// Its namespace on the host.
    pub namespace: String,
    /// Its name on the host.
    pub name: String,
    /// The pod inside; absent if the virtual cluster did not make it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// Its node.
    pub node: String,
    /// Requested profiles.
    pub profiles: Vec<String>,
}

/// A waiting workload.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// The namespace.
    pub namespace: String,
    /// Such as `ReplicaSet/web-7c9f4` or `Pod/train-0`. Of a pod inside a virtual cluster that the quota refuses, which has no pod in the
    /// namespace: the pod inside.
    pub object: String,
    /// `QuotaExceeded`, `Refused`, `Unschedulable`, or what a container waits for, such as `ImagePullBackOff`.
    pub reason: String,
    /// In words.
    pub message: String,
    /// Creation of a pod, last refusal of a controller, or first refusal of a pod inside a virtual cluster, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Seconds since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// Requested profiles.
    pub profiles: Vec<String>,
    /// Of a pod, the pod inside the tenant's virtual cluster; absent without one, and where the tenant is not visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
}

/// An unhealthy condition.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Type of the condition.
    pub condition: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}
