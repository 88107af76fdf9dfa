//! Carving by NVIDIA's MIG manager: a pool's rules for it, and the operator's journal of what it was asked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::DurationText;

/// How NVIDIA's MIG manager is dealt with; read with `partitioner: MigManager` only.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigManagerRules {
    /// How long it may take to answer, or to carve, before it is asked once more, and then again before its silence counts as a
    /// failure. It waits five minutes itself for each part of the GPU Operator to stop.
    #[serde(default = "twenty_minutes")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10s')").message("spec.migManager.timeout: write at least 10s, such as 20m"))]
    pub timeout: DurationText,
    /// How long a new layout in the ConfigMap may take to reach the MIG manager's container; kubelet needs up to 90 seconds. When it is
    /// asked sooner it answers `failed`, and is asked again.
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

/// What NVIDIA's MIG manager of one node is asked for: everything a new leader needs to go on.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigManagerRun {
    /// The layout's name: what the label `nvidia.com/mig.config` is set to. Every layout has two names, because the MIG manager acts
    /// only when the value changes.
    #[schemars(length(max = 63))]
    pub config: String,
    /// How far it is.
    pub step: MigManagerStep,
    /// When the present step began.
    pub since: Time,
    /// When the layout was published in the ConfigMap.
    pub published: Time,
    /// How often the MIG manager was asked and did not answer in time.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub unanswered: i32,
    /// How long its answer is waited for: `spec.migManager.timeout` of the pool, kept for the time after the pool's deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// Why it was given up, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1000))]
    pub reason: String,
}

/// Steps of asking NVIDIA's MIG manager, in order.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum MigManagerStep {
    /// The layout is in the ConfigMap; it may not have reached the MIG manager, or the GPUs are not idle yet.
    Publishing,
    /// The label is set; the MIG manager has not said anything since.
    Asked,
    /// It is at work: its state is `pending` or `rebooting`.
    Working,
    /// Its state is `success`, and NVML has yet to show the layout.
    Checking,
    /// It failed or did not answer; what it left paused is started again.
    GaveUp,
}
