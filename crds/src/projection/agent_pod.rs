//! Pods of the agent.

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::{SlimCondition, strip_metadata};

/// Projection of a pod of the agent.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Pod)]
pub struct SlimAgentPod {
    /// Name, namespace, times of creation and deletion.
    #[serde(deserialize_with = "crate::metadata::read")]
    pub metadata: ObjectMeta,
    /// Its node.
    #[serde(default)]
    pub spec: SlimAgentPodSpec,
    /// Readiness.
    #[serde(default)]
    pub status: SlimAgentPodStatus,
}

/// Spec of a pod of the agent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimAgentPodSpec {
    /// Node that it is bound to.
    #[serde(default)]
    pub node_name: Option<String>,
}

/// Status of a pod of the agent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimAgentPodStatus {
    /// `Ready` only.
    #[serde(default)]
    pub conditions: Vec<SlimCondition>,
    /// Its address, from which its metrics are read.
    #[serde(default, rename = "podIP")]
    pub pod_ip: Option<String>,
}

/// As [`strip_metadata`]; without labels, annotations and owners, and of the conditions only `Ready`.
pub fn project_agent_pod(pod: &mut SlimAgentPod) {
    strip_metadata(pod);
    (pod.metadata.labels, pod.metadata.annotations, pod.metadata.owner_references) = (None, None, None);
    pod.status.conditions.retain(|c| c.type_ == "Ready");
}
