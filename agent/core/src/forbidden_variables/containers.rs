//! Started containers whose manifests have `envFrom`. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    names::is_gpu_resource,
    projection::{NodeContainer, NodePod},
};
use k8s_openapi::{api::core::v1::EnvFromSource, jiff::Timestamp};

use crate::pod::{PodName, pod_name};

/// A started container whose manifest has `envFrom`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFromContainer {
    /// Its id in the container runtime.
    pub id: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Creation time of the pod.
    pub created: Option<Timestamp>,
    /// Name of the container.
    pub name: String,
    /// Some container of the pod requests a GPU.
    pub gpu: bool,
    /// Names in the manifest's `env`: admission has checked them, and they override `envFrom`.
    pub manifest: BTreeSet<String>,
    /// The sources in `envFrom`: `ConfigMap settings`.
    pub sources: Vec<String>,
}

/// The started containers with `envFrom` on a node, by pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvFromContainers(BTreeMap<PodName, Vec<EnvFromContainer>>);

impl EnvFromContainers {
    /// All containers.
    pub fn iter(&self) -> impl Iterator<Item = &EnvFromContainer> {
        self.0.values().flatten()
    }

    /// Records the containers of a pod; true if they changed.
    pub fn apply(&mut self, pod: &NodePod) -> bool {
        let containers = containers(pod);
        if containers.is_empty() {
            return self.delete(pod);
        }
        let changed = self.0.get(&pod_name(pod)) != Some(&containers);
        self.0.insert(pod_name(pod), containers);
        changed
    }

    /// Removes the containers of a pod; true if there were some.
    pub fn delete(&mut self, pod: &NodePod) -> bool {
        self.0.remove(&pod_name(pod)).is_some()
    }
}

fn containers(pod: &NodePod) -> Vec<EnvFromContainer> {
    let status = &pod.status;
    let gpu = pod.containers().any(|container| container.resources.limits.keys().any(|name| is_gpu_resource(name)));
    let statuses = || {
        let first = status.init_container_statuses.iter().chain(&status.container_statuses);
        first.chain(&status.ephemeral_container_statuses)
    };
    let container = |container: &NodeContainer| {
        let NodeContainer { name, env, env_from, .. } = container;
        if env_from.is_empty() {
            return None;
        }
        let status = statuses().find(|status| status.name == *name)?;
        let (_, id) = status.container_id.as_ref()?.split_once("://")?;
        let (namespace, pod_name) = pod_name(pod);
        Some(EnvFromContainer {
            id: id.to_owned(),
            namespace,
            pod: pod_name,
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            name: name.clone(),
            gpu,
            manifest: env.iter().map(|variable| variable.name.clone()).collect(),
            sources: env_from.iter().filter_map(source).collect(),
        })
    };
    pod.containers().chain(&pod.spec.ephemeral_containers).filter_map(container).collect()
}

fn source(source: &EnvFromSource) -> Option<String> {
    let map = source.config_map_ref.as_ref().map(|map| format!("ConfigMap {}", map.name));
    map.or_else(|| source.secret_ref.as_ref().map(|secret| format!("Secret {}", secret.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(containers: &Value, statuses: &Value) -> NodePod {
        let metadata = json!({"namespace": "team-a", "name": "p", "uid": "u"});
        let status = json!({"phase": "Running", "containerStatuses": statuses});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": containers}, "status": status}))
            .unwrap()
    }

    fn from_map() -> Value {
        let sources = json!([{"configMapRef": {"name": "settings"}}, {"prefix": "X_", "secretRef": {"name": "keys", "optional": true}}]);
        json!({"name": "c", "env": [{"name": "LD_PRELOAD", "value": "x"}], "envFrom": sources})
    }

    #[test]
    fn container_is_listed_once_it_has_env_from_and_has_started() {
        let run = json!([{"name": "c", "containerID": "containerd://0123"}]);
        let mut containers = EnvFromContainers::default();
        assert!(!containers.apply(&pod(&json!([from_map()]), &json!([{"name": "c"}]))), "not started");
        assert!(containers.apply(&pod(&json!([from_map(), {"name": "d"}]), &run)));
        let found: Vec<&EnvFromContainer> = containers.iter().collect();
        assert_eq!((found.len(), found[0].id.as_str(), found[0].gpu), (1, "0123", false));
        assert_eq!(found[0].sources, ["ConfigMap settings", "Secret keys"]);
        assert!(found[0].manifest.contains("LD_PRELOAD"));
        assert!(!containers.apply(&pod(&json!([from_map(), {"name": "d"}]), &run)), "unchanged");
        let again = json!([{"name": "c", "containerID": "containerd://4567"}]);
        assert!(containers.apply(&pod(&json!([from_map()]), &again)), "restarted");
        assert!(containers.delete(&pod(&json!([]), &json!([]))));
    }

    #[test]
    fn container_without_env_from_is_not_listed() {
        let plain =
            json!([{"name": "c", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]);
        assert!(
            !EnvFromContainers::default()
                .apply(&pod(&plain, &json!([{"name": "c", "containerID": "containerd://0123"}])))
        );
    }

    #[test]
    fn container_of_a_pod_with_a_gpu_is_marked() {
        let with = json!([from_map(), {"name": "d", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]);
        let mut containers = EnvFromContainers::default();
        containers.apply(&pod(&with, &json!([{"name": "c", "containerID": "cri-o://0123"}])));
        assert!(containers.iter().all(|container| container.gpu && container.id == "0123"));
    }
}
