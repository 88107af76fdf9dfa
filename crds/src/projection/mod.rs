//! Projections: of Kubernetes' kinds the fields that are read. Serde skips all others without allocating them.
//!
//! Fields that a tenant can write without limit are not kept without limit.

mod agent_pod;
mod event;
mod namespace;
mod node;
mod node_pod;
mod pod;
mod quota;
mod slice;
mod tenant;

use std::collections::BTreeMap;

pub use agent_pod::{SlimAgentPod, SlimAgentPodSpec, SlimAgentPodStatus, project_agent_pod};
pub use event::{SlimEvent, SlimReference};
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};
use kube::Resource;
pub use namespace::{POD_SECURITY_LABEL, SlimNamespace, SlimNamespaceStatus, project_namespace};
pub use node::{SlimNode, SlimNodeSpec, SlimNodeStatus, project_node};
pub use node_pod::{
    NodeContainer, NodeContainerState, NodeContainerStatus, NodePod, NodePodSpec, NodePodStatus, NodeResources,
    NodeVariable,
};
pub use pod::{
    SlimContainer, SlimContainerReason, SlimContainerState, SlimContainerStatus, SlimPod, SlimPodSpec, SlimPodStatus,
    SlimResources, project_pod, queue,
};
pub use quota::{SlimQuota, SlimQuotaSpec, SlimQuotaStatus};
use serde::{Deserialize, Serialize};
pub use slice::{SlimSlice, SlimSliceSpec};
pub use tenant::project_tenant;

use crate::names;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// A condition without the time of its last heartbeat, and without its message.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in CamelCase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// A condition with its message.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct MessageCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Its message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Removes the metadata that nothing reads.
pub fn strip_metadata<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    meta.self_link = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| key.starts_with("gputenancy.io/"));
    }
}

/// The projection of an object whose type declares only what is read.
pub fn projected<K: Resource>(mut object: K) -> Option<K> {
    strip_metadata(&mut object);
    Some(object)
}

/// The tenant of an object by its label.
pub fn tenant_label<K: Resource>(object: &K) -> Option<&str> {
    object.meta().labels.as_ref()?.get(names::TENANT_LABEL).map(String::as_str)
}

/// As [`tenant_label`], owned.
pub fn tenant_of<K: Resource>(object: &K) -> Option<String> {
    tenant_label(object).map(str::to_owned)
}
