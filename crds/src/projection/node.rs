//! Nodes.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{Resource, ResourceExt as _, core::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::{Amounts, SlimCondition, strip_metadata};
use crate::names;

/// Projection of a Node: labels, allocatable resources, readiness.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Node)]
pub struct SlimNode {
    /// Name, labels.
    #[serde(deserialize_with = "crate::metadata::read")]
    pub metadata: ObjectMeta,
    /// Whether it is cordoned, and its taints.
    #[serde(default, skip_serializing_if = "SlimNodeSpec::is_default")]
    pub spec: SlimNodeSpec,
    /// Allocatable and conditions.
    #[serde(default)]
    pub status: SlimNodeStatus,
}

/// Spec of a node.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimNodeSpec {
    /// The scheduler binds no pod to it.
    #[serde(default)]
    pub unschedulable: bool,
    /// All taints; they can only be written together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

impl SlimNodeSpec {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Status of a node.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimNodeStatus {
    /// Resources that pods can request.
    #[serde(default)]
    pub allocatable: Amounts,
    /// All but those by which kubelet reports pressure, which are taints as well.
    #[serde(default)]
    pub conditions: Vec<SlimCondition>,
}

/// Conditions of kubelet's about resources that it runs out of. Kubernetes makes taints of them.
const PRESSURES: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];

/// As [`strip_metadata`]; keeps extended resources, conditions other than those of pressure, and the names without values of annotations by
/// which another owner of the GPUs, or of the cordon, is found.
pub fn project_node(node: &mut SlimNode) {
    let is_sign = |key: &str| [names::HAMI_REGISTER, names::NVSENTINEL_QUARANTINE].contains(&key);
    let signs = node.annotations().iter().filter(|(key, value)| is_sign(key) && !value.is_empty());
    let signs: Vec<String> = signs.map(|(key, _)| key.clone()).collect();
    strip_metadata(node);
    if !signs.is_empty() {
        let kept = node.metadata.annotations.get_or_insert_default();
        kept.extend(signs.into_iter().map(|key| (key, "set".to_owned())));
    }
    node.metadata.owner_references = None;
    node.status.allocatable.retain(|resource, _| resource.contains('/'));
    node.status.conditions.retain(|c| !PRESSURES.contains(&c.type_.as_str()));
    // why a node is Ready, or not, makes no difference
    node.status.conditions.iter_mut().filter(|c| c.type_ == "Ready").for_each(|c| c.reason.clear());
}
