//! Staged rollout of changed profiles and layouts over the nodes of a pool: its rules, and its state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::DurationText;

/// Rules of a staged rollout. What is new (a profile that no node has served yet, another number of replicas, another fixed layout) is
/// served by a few nodes first; the other nodes follow after the soak time, or never if a change there fails.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// Nodes that serve what is new first. Where others mark such a node meanwhile, another one takes its place; at most so many are added.
    #[serde(default = "one_node")]
    #[schemars(range(min = 1, max = 5000))]
    pub canary_nodes: i32,
    /// How long they serve it, from their last change on, before the other nodes follow. At most 7 days.
    #[serde(default = "half_an_hour")]
    #[x_kube(validation = Rule::new("duration(self) <= duration('168h')").message("spec.rollout.soak: write at most 168h, such as 30m"))]
    pub soak: DurationText,
}

fn one_node() -> i32 {
    1
}

fn half_an_hour() -> DurationText {
    DurationText::constant("30m")
}

/// State of a staged rollout.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Profiles and fixed layouts that were served through a soak time, as they were then: what to go back to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub proven: Vec<ProvenDefinition>,
    /// Names of new profiles and fixed layouts, which the first nodes serve before others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trying: Vec<String>,
    /// Nodes that serve what is new first. Where others mark such a node meanwhile, another one takes its place; at most so many are added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Hash of what these nodes serve that is new; another one begins the soak time again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub definitions: String,
    /// When this stage began, or began again after an edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When the last change on these nodes was complete; the soak time counts from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Time>,
    /// Why the rollout has stopped. It begins again when a profile of the pool or the spec of the pool changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StoppedRollout>,
}

/// A definition that was served through a soak time.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProvenDefinition {
    /// Name of the GpuProfile, or `spec.layout.fixed`.
    pub name: String,
    /// Hash of its definition.
    pub hash: String,
    /// Replicas on each GPU, for profiles that have replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

/// A rollout that has stopped.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StoppedRollout {
    /// Hash of the definitions that were tried, and of the pool's generation.
    pub definitions: String,
    /// Node and cause.
    pub cause: String,
}
