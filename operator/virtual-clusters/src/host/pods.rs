//! What is read of a pod. A team chooses the size of its pods: their environment and all else that is not used is skipped.

use std::collections::BTreeMap;

use gputenancy_crds::{names::is_gpu_resource, vcluster};
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateWaiting, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
        ResourceRequirements,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use kube::api::ObjectMeta;
use serde::Deserialize;

/// Label of the template of a `StatefulSet`.
pub const REVISION: &str = "controller-revision-hash";
/// Longest label or annotation that is kept, in bytes: names of Kubernetes are not longer.
const MOST_VALUE: usize = 253;
/// Longest message that is kept, in bytes.
const MOST_TEXT: usize = 1024;
/// Most waiting containers of a pod that are kept.
const MOST_WAITING: usize = 8;

type Texts = BTreeMap<String, String>;

/// See the module.
#[derive(Deserialize)]
pub struct SlimPod {
    metadata: SlimMetadata,
    spec: Option<SlimSpec>,
    status: Option<SlimStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    labels: Option<Texts>,
    annotations: Option<Texts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimSpec {
    node_name: Option<String>,
    termination_grace_period_seconds: Option<i64>,
    containers: Option<Vec<SlimContainer>>,
    init_containers: Option<Vec<SlimContainer>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimContainer {
    restart_policy: Option<String>,
    resources: Option<SlimResources>,
}

#[derive(Deserialize)]
struct SlimResources {
    limits: Option<BTreeMap<String, Quantity>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimStatus {
    phase: Option<String>,
    conditions: Option<Vec<SlimCondition>>,
    container_statuses: Option<Vec<SlimContainerStatus>>,
    init_container_statuses: Option<Vec<SlimContainerStatus>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimCondition {
    r#type: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    last_transition_time: Option<Time>,
}

#[derive(Deserialize)]
struct SlimContainerStatus {
    state: Option<SlimState>,
}

#[derive(Deserialize)]
struct SlimState {
    waiting: Option<SlimWaiting>,
}

#[derive(Deserialize)]
struct SlimWaiting {
    reason: Option<String>,
    message: Option<String>,
}

impl From<SlimPod> for Pod {
    fn from(SlimPod { metadata, spec, status }: SlimPod) -> Self {
        let labels = kept(metadata.labels, |key| key == REVISION || vcluster::LABELS.contains(&key));
        let annotations = kept(metadata.annotations, |key| vcluster::ANNOTATIONS.contains(&key));
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            deletion_timestamp: metadata.deletion_timestamp,
            labels,
            annotations,
            ..ObjectMeta::default()
        };
        Self { metadata, spec: spec.map(PodSpec::from), status: status.map(PodStatus::from) }
    }
}

fn kept(texts: Option<Texts>, used: impl Fn(&str) -> bool) -> Option<Texts> {
    let used = |(key, value): &(String, String)| used(key) && value.len() <= MOST_VALUE;
    texts.map(|texts| texts.into_iter().filter(used).collect())
}

impl From<SlimSpec> for PodSpec {
    fn from(spec: SlimSpec) -> Self {
        Self {
            node_name: spec.node_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            containers: with_gpus(spec.containers),
            init_containers: Some(with_gpus(spec.init_containers)),
            ..Self::default()
        }
    }
}

/// Containers with GPUs, whose number the quota bounds.
fn with_gpus(containers: Option<Vec<SlimContainer>>) -> Vec<Container> {
    let gpus = |container: SlimContainer| {
        let mut limits = container.resources?.limits?;
        limits.retain(|resource, amount| is_gpu_resource(resource) && amount.0 != "0");
        let resources = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
        let any = resources.limits.as_ref().is_some_and(|limits| !limits.is_empty());
        any.then(|| Container {
            restart_policy: container.restart_policy,
            resources: Some(resources),
            ..Container::default()
        })
    };
    containers.into_iter().flatten().filter_map(gpus).collect()
}

impl From<SlimStatus> for PodStatus {
    fn from(status: SlimStatus) -> Self {
        let used = |c: &SlimCondition| matches!(c.r#type.as_str(), "Ready" | "PodScheduled");
        let conditions = status.conditions.into_iter().flatten().filter(used).map(PodCondition::from);
        Self {
            phase: status.phase,
            conditions: Some(conditions.collect()),
            container_statuses: Some(waiting(status.container_statuses)),
            init_container_statuses: Some(waiting(status.init_container_statuses)),
            ..Self::default()
        }
    }
}

impl From<SlimCondition> for PodCondition {
    fn from(condition: SlimCondition) -> Self {
        Self {
            type_: condition.r#type,
            status: condition.status,
            reason: condition.reason.map(cut),
            message: condition.message.map(cut),
            last_transition_time: condition.last_transition_time,
            ..Self::default()
        }
    }
}

fn waiting(statuses: Option<Vec<SlimContainerStatus>>) -> Vec<ContainerStatus> {
    let waiting = |status: SlimContainerStatus| {
        let SlimWaiting { reason, message } = status.state?.waiting?;
        let waiting = ContainerStateWaiting { reason: reason.map(cut), message: message.map(cut) };
        let state = ContainerState { waiting: Some(waiting), ..ContainerState::default() };
        Some(ContainerStatus { state: Some(state), ..ContainerStatus::default() })
    };
    statuses.into_iter().flatten().filter_map(waiting).take(MOST_WAITING).collect()
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MOST_TEXT));
    text.shrink_to_fit();
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(pod: &Value) -> Pod {
        serde_json::from_value::<SlimPod>(pod.clone()).unwrap().into()
    }

    #[test]
    fn large_parts_of_a_pod_are_not_kept() {
        let large = "x".repeat(900 << 10);
        let pod = read(&json!({
            "metadata": {
                "name": "p", "labels": {"a": "b", REVISION: "r", vcluster::MANAGED_BY: "team-a"},
                "annotations": {"a": large, vcluster::OBJECT_NAME: large, vcluster::OBJECT_UID: "u"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:x": large}}],
            },
            "spec": {"containers": [{"name": "c", "env": [{"name": "E", "value": large}], "resources": {"limits": {"cpu": "1"}}}]},
            "status": {
                "message": large, "conditions": [{"type": "PodScheduled", "status": "False", "message": large}],
                "containerStatuses": vec![json!({"name": "c", "state": {"waiting": {"message": large}}}); 100],
            },
        }));
        let size = serde_json::to_string(&pod).unwrap().len();
        assert!(size < 16 << 10, "{size}");
    }

    #[test]
    fn what_is_used_of_a_pod_is_kept() {
        let time = "2026-01-01T00:00:00Z";
        let gpu = json!({"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "2"}}});
        let pod = read(&json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "deletionTimestamp": time,
                "labels": {REVISION: "r", vcluster::MANAGED_BY: "team-a"}, "annotations": {vcluster::OBJECT_UID: "v"},
            },
            "spec": {"nodeName": "node", "terminationGracePeriodSeconds": 60, "containers": [gpu], "initContainers": [gpu]},
            "status": {
                "phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}],
                "initContainerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}],
            },
        }));
        let text = |at: &str| serde_json::to_value(&pod).unwrap().pointer(at).cloned().unwrap_or_default();
        for (at, value) in [
            ("/metadata/name", json!("p")),
            ("/metadata/namespace", json!("n")),
            ("/metadata/uid", json!("u")),
            ("/metadata/resourceVersion", json!("7")),
            ("/metadata/deletionTimestamp", json!(time)),
            ("/metadata/labels/controller-revision-hash", json!("r")),
            ("/metadata/labels/vcluster.loft.sh~1managed-by", json!("team-a")),
            ("/metadata/annotations/vcluster.loft.sh~1object-uid", json!("v")),
            ("/spec/nodeName", json!("node")),
            ("/spec/terminationGracePeriodSeconds", json!(60)),
            ("/spec/containers/0/resources/limits/nvidia.com~1gpu", json!("2")),
            ("/spec/initContainers/0/restartPolicy", json!("Always")),
            ("/status/phase", json!("Running")),
            ("/status/conditions/0/lastTransitionTime", json!(time)),
            ("/status/initContainerStatuses/0/state/waiting/reason", json!("ImagePullBackOff")),
        ] {
            assert_eq!(text(at), value, "{at}");
        }
    }
}
