//! Projections: the fields of Kubernetes' kinds that decisions read. Serde skips all others without allocating them.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuTenant, names, quantity::Amount, vcluster};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, Pod, ResourceQuota, ScopeSelector, Taint},
        resource::v1::ResourceSlice,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ManagedFieldsEntry, OwnerReference, Time},
    },
};
use kube::{Resource, ResourceExt as _, core::ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::ownership;

/// Label with the Pod Security Standard that a namespace enforces.
pub const POD_SECURITY_LABEL: &str = "pod-security.kubernetes.io/enforce";

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// Projection of a Node: labels, allocatable resources, readiness.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Node)]
pub struct SlimNode {
    /// Name, labels.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
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
    /// What pods can request.
    #[serde(default)]
    pub allocatable: Amounts,
    /// All but those by which kubelet reports pressure, which are taints as well.
    #[serde(default)]
    pub conditions: Vec<SlimCondition>,
}

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

/// Projection of a Pod that requests extended resources.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Pod)]
pub struct SlimPod {
    /// Name, namespace, uid, owners, our annotations.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
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

/// Requests of a container.
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
    /// When kubelet accepted the pod; kept of pods with extended resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Why a canary pod failed as a pod, such as `Evicted`; absent where its container failed. This and what follows is kept of canary
    /// pods only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `PodScheduled` has the reason if there is no node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<MessageCondition>,
    /// Status of its container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<SlimContainerStatus>,
}

/// Status of a container.
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
    pub waiting: Option<SlimContainerReason>,
    /// It has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminated: Option<SlimContainerReason>,
}

/// Kubelet's reason for a state.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimContainerReason {
    /// Of one that has ended.
    #[serde(default)]
    pub exit_code: i32,
    /// Reason in CamelCase, such as `ImagePullBackOff` or `Error`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message; of a failed container the end of its log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl SlimPod {
    /// Does any container request an extended resource? Requests of a pod never change.
    pub fn requests_devices(&self) -> bool {
        self.containers().any(|c| c.resources.requests.keys().any(|r| r.contains('/')))
    }

    /// Extended resources that the pod requests.
    pub fn resources(&self) -> BTreeSet<String> {
        let requested = self.containers().flat_map(|c| c.resources.requests.keys());
        requested.filter(|r| r.contains('/')).cloned().collect()
    }

    /// Number of devices of a resource that the pod requests, as the scheduler counts: of all containers, or of the largest init container.
    pub fn requested(&self, resource: &str) -> i64 {
        let of = |container: &SlimContainer| {
            let amount = container.resources.requests.get(resource).and_then(Amount::parse).unwrap_or_default();
            i64::try_from(amount.milli() / 1000).unwrap_or(i64::MAX)
        };
        let all = self.spec.containers.iter().map(of).fold(0, i64::saturating_add);
        self.spec.init_containers.iter().map(of).fold(all, i64::max)
    }

    /// Has the pod terminated?
    pub fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    fn containers(&self) -> impl Iterator<Item = &SlimContainer> {
        self.spec.containers.iter().chain(&self.spec.init_containers)
    }
}

/// Projection of a pod of the agent.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Pod)]
pub struct SlimAgentPod {
    /// Name, namespace, times of creation and deletion.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
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
}

/// Projection of a Namespace: labels and phase.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Namespace)]
pub struct SlimNamespace {
    /// Name and labels.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
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

/// Projection of a `ResourceQuota`.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = ResourceQuota)]
pub struct SlimQuota {
    /// Name, namespace, labels.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Requested limits.
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
    /// Enforced limits.
    #[serde(default)]
    pub hard: Amounts,
    /// Granted to pods.
    #[serde(default)]
    pub used: Amounts,
}

/// Projection of a `ResourceSlice`: driver and node, without devices.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = ResourceSlice)]
pub struct SlimSlice {
    /// Name.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Driver and node.
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
    /// The node; absent for devices of no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
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

/// As [`strip_metadata`]; keeps the field managers that wrote the guarantees last, for [`demand`](crate::demand).
pub fn project_tenant(tenant: &mut GpuTenant) {
    let mut writers = tenant.metadata.managed_fields.take().unwrap_or_default();
    writers.retain(|entry| entry.fields_v1.is_some());
    let last = writers.iter().filter_map(|entry| entry.time.clone()).max();
    writers.retain(|entry| entry.time == last);
    for ManagedFieldsEntry { api_version, fields_type, fields_v1, operation, .. } in &mut writers {
        (*api_version, *fields_type, *fields_v1, *operation) = (None, None, None, None);
    }
    strip_metadata(tenant);
    tenant.metadata.managed_fields = (!writers.is_empty()).then_some(writers);
}

/// The projection of an object whose type declares only what is read.
pub fn projected<K: Resource>(mut object: K) -> Option<K> {
    strip_metadata(&mut object);
    Some(object)
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

/// Longest annotation of a pod that is kept, in bytes: tenants write annotations.
const LONGEST_ANNOTATION: usize = 4096;
/// Most extended resources of one pod's containers that are kept, of GPUs and of others.
const MOST_RESOURCES: usize = 16;
/// Longest text of a reference to an owner that is kept, in bytes: the API server bounds none. A DNS name with a slash and a label is shorter.
const LONGEST_REFERENCE: usize = 320;

/// Labels with the queue of a pod, of KAI, Run:ai and Kueue; the first one counts. Label values are at most 63 bytes long.
const QUEUES: [&str; 3] = ["kai.scheduler/queue", "runai/queue", "kueue.x-k8s.io/queue-name"];

/// The queue of a batch scheduler that a pod names by label.
pub fn queue(metadata: &ObjectMeta) -> Option<&str> {
    let labels = metadata.labels.as_ref()?;
    QUEUES.iter().find_map(|key| labels.get(*key)).map(String::as_str)
}

/// As [`strip_metadata`]; keeps requests of extended resources, the queue and the label of canary pods, and details of the status only of these.
/// What a tenant can write without limit is not kept without limit.
pub fn project_pod(pod: &mut SlimPod) {
    let identity = virtual_identity(&pod.metadata);
    strip_metadata(pod);
    pod.metadata.finalizers = None;
    if let Some(owners) = &mut pod.metadata.owner_references {
        let texts = |o: &OwnerReference| [o.api_version.len(), o.kind.len(), o.name.len(), o.uid.len()];
        let usual = |o: &OwnerReference| texts(o).into_iter().all(|len| len <= LONGEST_REFERENCE);
        owners.retain(|owner| owner.controller == Some(true) && usual(owner));
    }
    let mut labels = pod.metadata.labels.take().unwrap_or_default();
    if let Some(annotations) = &mut pod.metadata.annotations {
        let read = [names::EVICTION_NOTICE, names::DO_NOT_EVICT, names::CANARY_NODE];
        annotations.retain(|key, value| read.contains(&key.as_str()) && value.len() <= LONGEST_ANNOTATION);
    }
    let canary = labels.remove_entry(names::CANARY_LABEL);
    if canary.is_none() {
        let SlimPodStatus { phase, start_time, .. } = std::mem::take(&mut pod.status);
        pod.status = SlimPodStatus { phase, start_time, ..SlimPodStatus::default() };
    }
    let queues = QUEUES.iter().filter_map(|key| labels.remove_entry(*key));
    let mut kept: BTreeMap<String, String> = canary.into_iter().chain(queues).collect();
    if let Some((labels, annotations)) = identity {
        kept.extend(labels);
        pod.metadata.annotations.get_or_insert_default().extend(annotations);
    }
    pod.metadata.labels = (!kept.is_empty()).then_some(kept);
    let (mut gpus, mut others) = (MOST_RESOURCES, MOST_RESOURCES);
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        let requests = std::mem::take(&mut container.resources.requests);
        let devices = requests.into_iter().filter(|(resource, amount)| resource.contains('/') && amount.0 != "0");
        let fits = |(resource, _): &(String, Quantity)| {
            let left = if names::is_gpu_resource(resource) { &mut gpus } else { &mut others };
            let fits = *left > 0;
            *left = left.saturating_sub(1);
            fits
        };
        container.resources.requests = devices.filter(fits).collect();
    }
    if pod.spec.containers.iter().chain(&pod.spec.init_containers).all(|c| c.resources.requests.is_empty()) {
        pod.status.start_time = None;
    }
}

/// Labels and annotations by which a pod that vCluster has synced, or one of its control plane, is attributed; `None`: another pod.
fn virtual_identity(metadata: &ObjectMeta) -> Option<(BTreeMap<String, String>, BTreeMap<String, String>)> {
    let labels = metadata.labels.as_ref()?;
    let control_plane = labels.get(vcluster::APP).is_some_and(|app| app == vcluster::CONTROL_PLANE_APP);
    if !control_plane && !labels.contains_key(vcluster::MANAGED_BY) {
        return None;
    }
    let of = |all: Option<&BTreeMap<String, String>>, read: &[&str]| -> BTreeMap<String, String> {
        let all = all.into_iter().flatten();
        let found = all.filter(|(key, value)| read.contains(&key.as_str()) && value.len() <= LONGEST_ANNOTATION);
        found.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    Some((of(Some(labels), &vcluster::LABELS), of(metadata.annotations.as_ref(), &vcluster::ANNOTATIONS)))
}

/// As [`strip_metadata`]; without labels, annotations and owners, and of the conditions only `Ready`.
pub fn project_agent_pod(pod: &mut SlimAgentPod) {
    strip_metadata(pod);
    (pod.metadata.labels, pod.metadata.annotations, pod.metadata.owner_references) = (None, None, None);
    pod.status.conditions.retain(|c| c.type_ == "Ready");
}

/// Conditions of kubelet's about resources that it runs out of. Kubernetes makes taints of them.
const PRESSURES: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];

/// As [`strip_metadata`]; keeps extended resources, conditions other than those of pressure, and the names without values of annotations by
/// which another owner of the GPUs, or of the cordon, is found.
pub fn project_node(node: &mut SlimNode) {
    let is_sign = |key: &str| ownership::is_ownership_annotation(key) || key == names::NVSENTINEL_QUARANTINE;
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

/// The tenant of an object by its label.
pub fn tenant_label<K: Resource>(object: &K) -> Option<&str> {
    object.meta().labels.as_ref()?.get(names::TENANT_LABEL).map(String::as_str)
}

/// As [`tenant_label`], owned.
pub fn tenant_of<K: Resource>(object: &K) -> Option<String> {
    tenant_label(object).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn synced_pod_keeps_its_identity_and_other_pods_keep_none() {
        let annotation = "vcluster.loft.sh/object-name";
        let project = |labels: serde_json::Value| {
            let mut pod: SlimPod = serde_json::from_value(json!({
                "metadata": {"name": "p", "labels": labels, "annotations": {annotation: "v", "other": "x"}},
            }))
            .unwrap();
            project_pod(&mut pod);
            (pod.metadata.labels.unwrap_or_default(), pod.metadata.annotations.unwrap_or_default())
        };
        let (labels, annotations) = project(json!({"vcluster.loft.sh/managed-by": "a", "x": "y"}));
        assert_eq!(labels.keys().collect::<Vec<_>>(), ["vcluster.loft.sh/managed-by"]);
        assert_eq!(annotations.keys().collect::<Vec<_>>(), [annotation]);
        let (labels, annotations) = project(json!({"x": "y"}));
        assert!(labels.is_empty() && annotations.is_empty());
        let (labels, _) = project(json!({"x": "y", "kueue.x-k8s.io/queue-name": "b", "kai.scheduler/queue": "a"}));
        assert_eq!(labels.len(), 2, "{labels:?}");
        let metadata = ObjectMeta { labels: Some(labels), ..ObjectMeta::default() };
        assert_eq!(queue(&metadata), Some("a"));
    }

    #[test]
    fn pod_keeps_little_of_what_a_tenant_can_write_without_limit() {
        let many = (0..1000).map(|n| (format!("x{n}.example.com/a"), json!("1"))).collect::<serde_json::Map<_, _>>();
        let mut pod: SlimPod = serde_json::from_value(json!({
            "metadata": {
                "name": "p", "finalizers": ["example.com/f"],
                "annotations": {
                    "gputenancy.io/x": "1", names::DO_NOT_EVICT: "true", names::EVICTION_NOTICE: "n".repeat(100_000),
                },
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "a"},
                    {"apiVersion": "v1", "kind": "B", "name": "b", "uid": "b", "controller": true},
                    {"apiVersion": "v1", "kind": "C", "name": "n".repeat(1_000_000), "uid": "c", "controller": true},
                ],
            },
            "spec": {"containers": [
                {"resources": {"requests": {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "1", "cpu": "1"}}},
                {"resources": {"requests": many}},
            ]},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        project_pod(&mut pod);
        let meta = &pod.metadata;
        assert_eq!(meta.annotations, Some(BTreeMap::from([(names::DO_NOT_EVICT.to_owned(), "true".to_owned())])));
        let owners: Vec<&str> = meta.owner_references.iter().flatten().map(|o| o.kind.as_str()).collect();
        assert_eq!((owners, &meta.finalizers), (vec!["B"], &None));
        let [first, second] = pod.spec.containers.as_slice() else { panic!("two containers") };
        assert_eq!(first.resources.requests.keys().collect::<Vec<_>>(), ["nvidia.com/mig-1g.10gb"]);
        assert_eq!(second.resources.requests.len(), MOST_RESOURCES);
    }
}
