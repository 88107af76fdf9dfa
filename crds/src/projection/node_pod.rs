//! Pods of one node, as its agent reads them.

use k8s_openapi::{
    api::core::v1::{EnvFromSource, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, de::IgnoredAny};

use super::Amounts;

/// Projection of a Pod for the node that it is bound to: its limits, its variables, and how far its containers have started.
#[derive(Resource, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Pod)]
pub struct NodePod {
    /// All but the managed fields.
    #[serde(deserialize_with = "crate::metadata::read")]
    pub metadata: ObjectMeta,
    /// Containers and their limits.
    #[serde(default)]
    pub spec: NodePodSpec,
    /// How far it has started.
    #[serde(default)]
    pub status: NodePodStatus,
}

/// Spec of a pod of a node.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePodSpec {
    /// Name of its `RuntimeClass`.
    pub runtime_class_name: Option<String>,
    /// Value of its priority class.
    pub priority: Option<i32>,
    /// Containers.
    pub containers: Vec<NodeContainer>,
    /// Containers that run first, and sidecars.
    pub init_containers: Vec<NodeContainer>,
    /// Containers that were added to the running pod.
    pub ephemeral_containers: Vec<NodeContainer>,
}

/// A container of any of the three lists.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeContainer {
    /// Its name in the pod.
    pub name: String,
    /// `Always` of an init container makes it a sidecar.
    pub restart_policy: Option<String>,
    /// Variables of the manifest.
    pub env: Vec<NodeVariable>,
    /// `ConfigMaps` and Secrets with more variables.
    pub env_from: Vec<EnvFromSource>,
    /// Limits.
    pub resources: NodeResources,
}

/// A variable of a manifest.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct NodeVariable {
    /// Its name.
    pub name: String,
    /// Its value; `None` if it comes from another object or field.
    pub value: Option<String>,
}

/// Limits of a container. Extended resources have equal requests.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct NodeResources {
    /// Limits by resource name.
    pub limits: Amounts,
}

/// Status of a pod of a node.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePodStatus {
    /// Pending, Running, Succeeded, Failed.
    pub phase: String,
    /// When kubelet accepted the pod.
    pub start_time: Option<Time>,
    /// Status of its containers.
    pub container_statuses: Vec<NodeContainerStatus>,
    /// Status of its init containers.
    pub init_container_statuses: Vec<NodeContainerStatus>,
    /// Status of its ephemeral containers.
    pub ephemeral_container_statuses: Vec<NodeContainerStatus>,
}

/// Status of a container.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeContainerStatus {
    /// Its name in the pod.
    pub name: String,
    /// Runtime and id, `containerd://…`, once it was created.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// Its startup probe has succeeded.
    pub started: Option<bool>,
    /// Present state.
    pub state: NodeContainerState,
}

/// State of a container.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct NodeContainerState {
    /// Present while it runs.
    pub running: Option<IgnoredAny>,
}

impl NodePod {
    /// It has terminated.
    pub fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Containers and init containers, without ephemeral ones, which have no limits.
    pub fn containers(&self) -> impl Iterator<Item = &NodeContainer> {
        self.spec.init_containers.iter().chain(&self.spec.containers)
    }
}
