//! Which verdicts of others on a node count: cordons, taints and conditions that people, clouds and health products write.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::DurationText;

/// Verdicts of others on the pool's nodes. A node with one is no supply for new demand: its free devices do not count, no change starts there, and
/// one in progress is suspended. Running pods keep their devices.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeHealth {
    /// Cordons (spec.unschedulable of the Node), set by any author except this operator.
    #[serde(default)]
    pub cordons: Mark,
    /// Taints with the effect NoSchedule or NoExecute that pods of tenants do not tolerate.
    #[serde(default)]
    pub taints: Mark,
    /// Keys of taints that do not count, because the pods of the pool's tenants tolerate them, such as the taint of a node group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set, validation = Rule::new("self.all(key, !key.contains('=') && !key.contains(':'))").message("spec.health.toleratedTaints: write keys of taints alone, such as dedicated, without value and effect"))]
    pub tolerated_taints: Vec<String>,
    /// Products whose node conditions count. Default: all that are known; [] for none.
    #[serde(default = "every_preset")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub presets: Vec<HealthPreset>,
    /// More node conditions that count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<BadCondition>,
    /// How long a verdict still counts after its last cordon, taint or condition is gone, so that one that comes and goes moves no device. At most 24h.
    #[serde(default = "two_minutes")]
    #[x_kube(validation = Rule::new("duration(self) <= duration('24h')").message("spec.health.clearAfter: write at most 24h, such as 2m"))]
    pub clear_after: DurationText,
    /// Part of the pool's GPUs that faults may take at once, as a number or a percentage. Beyond it no pod is evicted for a change in this
    /// pool until there are fewer, or this limit is raised: so many faults at once are more likely one of what reports them.
    #[serde(default = "half")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 : string(self).matches('^([1-9][0-9]?|100)%$')").message("spec.health.maxUnavailable: write a number of GPUs of at least 1, or a percentage from 1% to 100%"))]
    pub max_unavailable: IntOrString,
    /// Changes that restore guarantees lost to a fault of a node begin outside spec.disruption.windows, too; notice, disruption budgets and limits hold.
    /// For maintenance that is planned (condition MaintenancePlanned, a MaintenanceRequest with a start in the future) they wait for a window.
    #[serde(default = "always")]
    pub faults_ignore_windows: bool,
}

/// Whether a kind of verdict counts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// A node with one is no supply for new demand.
    #[default]
    Count,
    /// It makes no difference.
    Ignore,
}

/// A product that writes node conditions about GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthPreset {
    /// Conditions that Kubernetes 1.37 names for maintenance; whoever plans it writes them.
    Kubernetes,
    /// NVIDIA's NVSentinel.
    NVSentinel,
    /// The node monitoring agent of Amazon EKS.
    EKS,
    /// The node problem detector of Azure Kubernetes Service.
    AKS,
    /// Kubernetes' node-problem-detector.
    NodeProblemDetector,
}

/// A node condition that is a verdict.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BadCondition {
    /// Type of the condition, such as GPUMissing.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// Status that is bad: True, False or Unknown.
    pub status: ConditionStatus,
}

/// Status of a condition.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// It is not known.
    Unknown,
}

impl ConditionStatus {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl Default for NodeHealth {
    fn default() -> Self {
        Self {
            cordons: Mark::Count,
            taints: Mark::Count,
            tolerated_taints: Vec::new(),
            presets: every_preset(),
            conditions: Vec::new(),
            clear_after: two_minutes(),
            max_unavailable: half(),
            faults_ignore_windows: always(),
        }
    }
}

impl NodeHealth {
    /// Is it the default, which is not written?
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn every_preset() -> Vec<HealthPreset> {
    use HealthPreset::{AKS, EKS, Kubernetes, NVSentinel, NodeProblemDetector};
    vec![Kubernetes, NVSentinel, EKS, AKS, NodeProblemDetector]
}

fn two_minutes() -> DurationText {
    DurationText::constant("2m")
}

fn always() -> bool {
    true
}

fn half() -> IntOrString {
    IntOrString::String("50%".into())
}
