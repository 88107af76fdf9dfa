//! Partitioning by NVIDIA's MIG manager: rules of a pool, and the operator's state of its requests.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DurationText, schema::tolerant::Extensible};

/// Rules for NVIDIA's MIG manager; only with `partitioner: MigManager`.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigManagerRules {
    /// Time limit for a response or a partitioning. The request is repeated once, then it has failed. The MIG manager itself waits five
    /// minutes for each component of the GPU Operator to stop. At least 10s.
    #[serde(default = "twenty_minutes")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10s')").message("spec.migManager.timeout: write at least 10s, such as 20m"))]
    pub timeout: DurationText,
    /// Time for a new layout in the ConfigMap to reach the MIG manager's container; kubelet needs up to 90 seconds. A request before that
    /// fails and is repeated.
    #[serde(default = "ninety_seconds")]
    pub config_sync: DurationText,
}

impl Default for MigManagerRules {
    fn default() -> Self {
        Self { timeout: twenty_minutes(), config_sync: ninety_seconds() }
    }
}

fn twenty_minutes() -> DurationText {
    DurationText::constant("20m")
}

fn ninety_seconds() -> DurationText {
    DurationText::constant("90s")
}

/// A request to NVIDIA's MIG manager of one node; a new leader continues from it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MigManagerRun {
    /// Name of the layout, the value of the label `nvidia.com/mig.config`. Every layout has two names, because the MIG manager acts only
    /// on a changed value.
    #[schemars(length(max = 63))]
    pub config: String,
    /// Step of the request.
    #[serde(deserialize_with = "crate::schema::tolerant::value")]
    pub step: MigManagerStep,
    /// When the present step began.
    pub since: Time,
    /// When the layout was published in the ConfigMap.
    pub published: Time,
    /// Requests without a response in time.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub unanswered: i32,
    /// Time limit for the response: `spec.migManager.timeout` of the pool, kept in case the pool is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// Why the request failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1000))]
    pub reason: String,
}

/// Steps of a request to NVIDIA's MIG manager, in order.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum MigManagerStep {
    /// The layout is in the ConfigMap; waiting for kubelet to sync it, and for idle GPUs.
    Publishing,
    /// The label is set; no response yet.
    Asked,
    /// The MIG manager's state is `pending` or `rebooting`.
    Working,
    /// The MIG manager's state is `success`; waiting for NVML to show the layout.
    Checking,
    /// The request failed; paused components are started again.
    GaveUp,
}

impl Extensible for MigManagerStep {
    /// Nothing is requested until a change is retried.
    const UNKNOWN: Self = Self::GaveUp;
}
