//! Pods that request extended resources.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{OwnerReference, Time},
    },
};
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::{Amounts, MessageCondition, strip_metadata};
use crate::{names, quantity::Amount, vcluster};

/// Projection of a Pod that requests extended resources.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Pod)]
pub struct SlimPod {
    /// Name, namespace, uid, owners, our annotations.
    #[serde(deserialize_with = "crate::metadata::read")]
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
