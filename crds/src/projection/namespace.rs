//! Namespaces.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::{MessageCondition, strip_metadata};
use crate::names;

/// Label with the Pod Security Standard that a namespace enforces.
pub const POD_SECURITY_LABEL: &str = "pod-security.kubernetes.io/enforce";

/// Projection of a Namespace: labels and phase.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Namespace)]
pub struct SlimNamespace {
    /// Name and labels.
    #[serde(deserialize_with = "crate::metadata::read")]
    pub metadata: ObjectMeta,
    /// Phase and what blocks its deletion.
    #[serde(default)]
    pub status: SlimNamespaceStatus,
}

/// Status of a namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimNamespaceStatus {
    /// Active or Terminating.
    #[serde(default)]
    pub phase: String,
    /// Conditions of a deletion by the namespace controller.
    #[serde(default)]
    pub conditions: Vec<MessageCondition>,
}

/// As [`strip_metadata`]; of the labels only those that the operator sets are kept.
pub fn project_namespace(namespace: &mut SlimNamespace) {
    strip_metadata(namespace);
    let ours =
        |key: &str| key.starts_with("gputenancy.io/") || [names::MANAGED_BY_LABEL, POD_SECURITY_LABEL].contains(&key);
    if let Some(labels) = &mut namespace.metadata.labels {
        labels.retain(|key, _| ours(key));
    }
}
