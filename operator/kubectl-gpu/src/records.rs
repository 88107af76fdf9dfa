//! Kubernetes objects, cut down to what a plan depends on.

use gputenancy_crds::projection::{SlimContainer, SlimPodStatus};
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{Resource, api::ObjectMeta};
use serde::{Deserialize, Serialize};

/// A pod that requests extended resources: what the operator reads, and what an estimate needs.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = Pod)]
pub struct PodRecord {
    /// Name, namespace, uid, controller, our annotations, labels that budgets select by.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Node, requests, grace.
    #[serde(default)]
    pub spec: PodRecordSpec,
    /// Phase.
    #[serde(default)]
    pub status: SlimPodStatus,
}

/// Spec of a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct PodRecordSpec {
    /// Node of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Grace period in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// Value of its priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<SlimContainer>,
    /// Init containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<SlimContainer>,
}

/// A `PodDisruptionBudget`.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = PodDisruptionBudget)]
pub struct BudgetRecord {
    /// Name and namespace.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Selected pods.
    #[serde(default)]
    pub spec: BudgetSpec,
    /// Allowed disruptions.
    #[serde(default)]
    pub status: BudgetStatus,
}

/// Spec of a budget.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct BudgetSpec {
    /// Selected pods; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Status of a budget.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct BudgetStatus {
    /// Pods that may be evicted now.
    #[serde(default)]
    pub disruptions_allowed: i32,
}
