//! Which containers are worth a look: those whose manifests take variables from elsewhere, once they have run. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::names::is_gpu_resource;
use k8s_openapi::jiff::Timestamp;

use crate::kubelet::bound::{self, BoundContainer, BoundPod, BoundRun, EnvFrom, PodName};

/// A run of a container with variables that nobody has seen yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The runtime's id.
    pub id: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// When the pod was made.
    pub created: Option<Timestamp>,
    /// Name of the container.
    pub container: String,
    /// Whether any container of the pod asks for a GPU.
    pub gpu: bool,
    /// Variables that the manifest names one by one: the API server has judged them, and they win over `envFrom`.
    pub written: BTreeSet<String>,
    /// What `envFrom` names, in words.
    pub sources: Vec<String>,
}

/// The suspects among the pods of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspects(BTreeMap<PodName, Vec<Suspect>>);

impl Suspects {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Suspect> {
        self.0.values().flatten()
    }

    /// Learns what a pod is now; true when that is news.
    pub fn learn(&mut self, pod: &BoundPod) -> bool {
        let found = suspects(pod);
        if found.is_empty() {
            return self.forget(pod);
        }
        let before = self.0.get(&bound::name(pod));
        let news = before != Some(&found);
        if news {
            self.0.insert(bound::name(pod), found);
        }
        news
    }

    /// The pod is no more; true when that is news.
    pub fn forget(&mut self, pod: &BoundPod) -> bool {
        self.0.remove(&bound::name(pod)).is_some()
    }
}

fn suspects(pod: &BoundPod) -> Vec<Suspect> {
    let (spec, status) = (&pod.spec, &pod.status);
    let all = || spec.init_containers.iter().chain(&spec.containers).chain(&spec.ephemeral_containers);
    if all().all(|container| container.env_from.is_empty()) {
        return Vec::new();
    }
    let gpu = all().any(|container| container.resources.limits.keys().any(|resource| is_gpu_resource(resource)));
    let runs = status.init_container_statuses.iter().chain(&status.container_statuses);
    let runs: Vec<&BoundRun> = runs.chain(&status.ephemeral_container_statuses).collect();
    let suspect = |container: &BoundContainer| {
        let run = runs.iter().find(|run| run.name == container.name)?;
        let (_, id) = run.container_id.split_once("://")?;
        let (namespace, name) = bound::name(pod);
        Some(Suspect {
            id: id.to_owned(),
            namespace,
            pod: name,
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            container: container.name.clone(),
            gpu,
            written: container.env.iter().map(|variable| variable.name.clone()).collect(),
            sources: container.env_from.iter().filter_map(words).collect(),
        })
    };
    all().filter(|container| !container.env_from.is_empty()).filter_map(suspect).collect()
}

fn words(source: &EnvFrom) -> Option<String> {
    let EnvFrom { config_map_ref, secret_ref } = source;
    let map = config_map_ref.as_ref().map(|map| format!("ConfigMap {}", map.name));
    map.or_else(|| secret_ref.as_ref().map(|secret| format!("Secret {}", secret.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(containers: &Value, statuses: &Value) -> BoundPod {
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
    fn a_container_is_looked_at_when_it_has_env_from_and_has_run() {
        let run = json!([{"name": "c", "containerID": "containerd://0123"}]);
        let mut suspects = Suspects::default();
        assert!(!suspects.learn(&pod(&json!([from_map()]), &json!([{"name": "c"}]))), "it has not run yet");
        assert!(suspects.learn(&pod(&json!([from_map(), {"name": "d"}]), &run)));
        let found: Vec<&Suspect> = suspects.iter().collect();
        assert_eq!((found.len(), found[0].id.as_str(), found[0].gpu), (1, "0123", false));
        assert_eq!(found[0].sources, ["ConfigMap settings", "Secret keys"]);
        assert!(found[0].written.contains("LD_PRELOAD"));
        assert!(!suspects.learn(&pod(&json!([from_map(), {"name": "d"}]), &run)), "nothing new");
        let again = json!([{"name": "c", "containerID": "containerd://4567"}]);
        assert!(suspects.learn(&pod(&json!([from_map()]), &again)), "started again");
        assert!(suspects.forget(&pod(&json!([]), &json!([]))));
    }

    #[test]
    fn a_container_with_plain_variables_only_is_the_api_servers_to_judge() {
        let plain =
            json!([{"name": "c", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]);
        assert!(!Suspects::default().learn(&pod(&plain, &json!([{"name": "c", "containerID": "containerd://0123"}]))));
    }

    #[test]
    fn a_gpu_anywhere_in_the_pod_counts_for_each_of_its_containers() {
        let with = json!([from_map(), {"name": "d", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]);
        let mut suspects = Suspects::default();
        suspects.learn(&pod(&with, &json!([{"name": "c", "containerID": "cri-o://0123"}])));
        assert!(suspects.iter().all(|suspect| suspect.gpu && suspect.id == "0123"));
    }
}
