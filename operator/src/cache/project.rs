//! The part of foreign kinds that this program reads; what is not declared is skipped by serde and never allocated.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use gputenancy_crds::names;
use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, Pod, ResourceQuota, ScopeSelector, Taint},
        resource::v1::ResourceSlice,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use kube::{Resource, ResourceExt as _, api::ObjectMeta};
use serde::{Deserialize, Serialize};

use gputenancy_engine::ownership;

/// Label with the Pod Security Standard that a namespace enforces.
pub const POD_SECURITY_LABEL: &str = "pod-security.kubernetes.io/enforce";

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// A node's labels, what it can give, and whether it lives.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Node)]
pub struct SlimNode {
    /// Name, labels.
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
    /// The scheduler sends nobody there.
    #[serde(default)]
    pub unschedulable: bool,
    /// Ours and others'; they can only be written together.
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
    /// What pods may ask for.
    #[serde(default)]
    pub allocatable: Amounts,
    /// `Ready` only.
    #[serde(default)]
    pub conditions: Vec<SlimCondition>,
}

/// A condition without the time of its last heartbeat.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// A pod that asks for extended resources.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Pod)]
pub struct SlimPod {
    /// Name, namespace, uid, owners, our annotations.
    pub metadata: ObjectMeta,
    /// Node and requests.
    #[serde(default)]
    pub spec: SlimPodSpec,
    /// Phase and whether it is scheduled.
    #[serde(default)]
    pub status: SlimPodStatus,
}

/// Spec of a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimPodSpec {
    /// Node that it is bound to.
    #[serde(default)]
    pub node_name: Option<String>,
    /// Value of its priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Containers.
    #[serde(default)]
    pub containers: Vec<SlimContainer>,
    /// Containers that run first.
    #[serde(default)]
    pub init_containers: Vec<SlimContainer>,
}

/// What a container asks for.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimContainer {
    /// Requests and limits.
    #[serde(default)]
    pub resources: SlimResources,
}

/// Requests of a container; extended resources have equal limits.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimResources {
    /// Requests by resource name.
    #[serde(default)]
    pub requests: Amounts,
}

/// Status of a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimPodStatus {
    /// Pending, Running, Succeeded, Failed.
    #[serde(default)]
    pub phase: String,
    /// Why a canary pod failed as a pod, such as `Evicted`; absent where its container failed. This and what follows is kept of canary
    /// pods only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `PodScheduled` tells why there is no node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<MessageCondition>,
    /// How its container fares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<SlimContainerStatus>,
}

/// How a container fares.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimContainerStatus {
    /// Present state.
    #[serde(default)]
    pub state: SlimContainerState,
}

/// State of a container, unless it runs.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimContainerState {
    /// It has yet to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<SlimContainerWord>,
    /// It has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminated: Option<SlimContainerWord>,
}

/// What kubelet says about a container.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimContainerWord {
    /// Of one that has ended.
    #[serde(default)]
    pub exit_code: i32,
    /// A word, such as `ImagePullBackOff` or `Error`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// In words: of one that has failed the end of its log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl SlimPod {
    /// Does any container ask for an extended resource? Such requests never change, so the answer holds for the pod's life.
    pub fn wants_devices(&self) -> bool {
        self.containers().any(|c| c.resources.requests.keys().any(|r| r.contains('/')))
    }

    /// Extended resources that the pod asks for.
    pub fn resources(&self) -> BTreeSet<String> {
        let requested = self.containers().flat_map(|c| c.resources.requests.keys());
        requested.filter(|r| r.contains('/')).cloned().collect()
    }

    /// Has the pod come to its end?
    pub fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    fn containers(&self) -> impl Iterator<Item = &SlimContainer> {
        self.spec.containers.iter().chain(&self.spec.init_containers)
    }
}

/// A namespace: labels and phase.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Namespace)]
pub struct SlimNamespace {
    /// Name and labels.
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
    /// What the namespace controller says about a deletion.
    #[serde(default)]
    pub conditions: Vec<MessageCondition>,
}

/// A condition with its message.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct MessageCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// In words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One of our quotas.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = ResourceQuota)]
pub struct SlimQuota {
    /// Name, namespace, labels.
    pub metadata: ObjectMeta,
    /// What we asked for.
    #[serde(default)]
    pub spec: SlimQuotaSpec,
    /// What admission compares with, and what is used.
    #[serde(default)]
    pub status: SlimQuotaStatus,
}

/// Spec of a quota.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimQuotaSpec {
    /// Limits by resource.
    #[serde(default)]
    pub hard: Amounts,
    /// Which pods count; `None`: all.
    #[serde(default, rename = "scopeSelector", skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeSelector>,
}

/// Status of a quota.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimQuotaStatus {
    /// Limits in force.
    #[serde(default)]
    pub hard: Amounts,
    /// Granted to pods.
    #[serde(default)]
    pub used: Amounts,
}

/// A node's devices as a DRA driver publishes them; which they are matters to nobody here.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = ResourceSlice)]
pub struct SlimSlice {
    /// Name.
    pub metadata: ObjectMeta,
    /// Whose devices, and where.
    #[serde(default)]
    pub spec: SlimSliceSpec,
}

/// Spec of a slice.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimSliceSpec {
    /// Name of the driver.
    #[serde(default)]
    pub driver: String,
    /// The node; absent for devices that belong to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// Drops the metadata that nothing reads, before an object enters a store.
pub fn lighten<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    meta.self_link = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| key.starts_with("gputenancy.io/"));
    }
}

/// A number that differs when the object's text differs.
pub fn digest(object: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(object).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// Projects an object whose type declares what is read.
pub fn lightened<K: Resource>(mut object: K) -> Option<K> {
    lighten(&mut object);
    Some(object)
}

/// As [`lighten`]; of a namespace's labels only those that the operator sets are read.
pub fn lighten_namespace(namespace: &mut SlimNamespace) {
    lighten(namespace);
    let ours =
        |key: &str| key.starts_with("gputenancy.io/") || [names::MANAGED_BY_LABEL, POD_SECURITY_LABEL].contains(&key);
    if let Some(labels) = &mut namespace.metadata.labels {
        labels.retain(|key, _| ours(key));
    }
}

/// As [`lighten`]; of a pod's labels only the mark of canaries is read here.
pub fn lighten_pod(pod: &mut SlimPod) {
    lighten(pod);
    let canary = pod.metadata.labels.take().and_then(|mut labels| labels.remove_entry(names::CANARY_LABEL));
    if canary.is_none() {
        pod.status = SlimPodStatus { phase: std::mem::take(&mut pod.status.phase), ..SlimPodStatus::default() };
    }
    pod.metadata.labels = canary.map(|label| BTreeMap::from([label]));
    let of_pod = |c: &mut SlimContainer| c.resources.requests.retain(|r, _| r.contains('/'));
    pod.spec.containers.iter_mut().for_each(of_pod);
    pod.spec.init_containers.iter_mut().for_each(of_pod);
}

/// As [`lighten`]; of a node only extended resources and `Ready` matter, and whether an annotation tells of another owner of
/// its GPUs, not what it says.
pub fn lighten_node(node: &mut SlimNode) {
    let signs =
        node.annotations().iter().filter(|(key, value)| ownership::is_ownership_annotation(key) && !value.is_empty());
    let signs: Vec<String> = signs.map(|(key, _)| key.clone()).collect();
    lighten(node);
    if !signs.is_empty() {
        let kept = node.metadata.annotations.get_or_insert_default();
        kept.extend(signs.into_iter().map(|key| (key, "set".to_owned())));
    }
    node.metadata.owner_references = None;
    node.status.allocatable.retain(|resource, _| resource.contains('/'));
    node.status.conditions.retain(|c| c.type_ == "Ready");
}

/// The tenant that an object belongs to by its label.
pub fn tenant_label<K: Resource>(object: &K) -> Option<&str> {
    object.meta().labels.as_ref()?.get(names::TENANT_LABEL).map(String::as_str)
}

/// As [`tenant_label`], owned.
pub fn tenant_of<K: Resource>(object: &K) -> Option<String> {
    tenant_label(object).map(str::to_owned)
}
