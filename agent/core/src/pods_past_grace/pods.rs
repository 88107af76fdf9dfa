//! Deleted pods with a GPU. Pure.

use std::{collections::BTreeMap, time::Duration};

use gputenancy_crds::{
    names::is_gpu_resource,
    projection::{NodeContainer, NodePod},
};
use k8s_openapi::jiff::Timestamp;

use crate::pod::{PodName, pod_name};

/// Grace period of a deletion without one: the default of Kubernetes.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Longest grace period: an `Instant` cannot have any sum.
const LONGEST_GRACE: Duration = Duration::from_hours(100 * 365 * 24);
/// Annotation of kubelet's own pods: the deletion of their copy in the API ends nothing.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A deleted pod that requests a GPU and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverduePod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// When its grace period ends by the API server's clock: its deletion timestamp.
    pub deadline: Timestamp,
    /// The grace period of its deletion.
    pub grace: Duration,
}

/// The deleted pods with a GPU on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminatingPods(BTreeMap<PodName, OverduePod>);

impl TerminatingPods {
    /// Records a pod; true if something changed.
    pub fn apply(&mut self, pod: &NodePod) -> bool {
        let Some(terminating) = terminating(pod) else { return self.delete(pod) };
        self.0.insert(pod_name(pod), terminating.clone()) != Some(terminating)
    }

    /// Removes a pod; true if it was known.
    pub fn delete(&mut self, pod: &NodePod) -> bool {
        self.0.remove(&pod_name(pod)).is_some()
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &OverduePod> {
        self.0.values()
    }

    /// Whether this pod is still among them.
    pub fn has(&self, uid: &str) -> bool {
        self.0.values().any(|pod| pod.uid == uid)
    }
}

fn terminating(pod: &NodePod) -> Option<OverduePod> {
    let deadline = pod.metadata.deletion_timestamp.as_ref()?.0;
    let mirror = pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR));
    if mirror || pod.is_over() || !pod.containers().any(requests_gpu) {
        return None;
    }
    let (namespace, name) = pod_name(pod);
    let grace = pod.metadata.deletion_grace_period_seconds;
    let grace = grace.map_or(DEFAULT_GRACE, |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    Some(OverduePod { namespace, name, uid: pod.metadata.uid.clone()?, deadline, grace: grace.min(LONGEST_GRACE) })
}

fn requests_gpu(container: &NodeContainer) -> bool {
    container.resources.limits.iter().any(|(resource, amount)| is_gpu_resource(resource) && amount.0 != "0")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, deleted: Option<&str>, resource: &str, more: &Value) -> NodePod {
        let mut metadata = json!({"namespace": "team-a", "name": name, "uid": format!("u-{name}")});
        metadata["deletionTimestamp"] = json!(deleted);
        metadata["deletionGracePeriodSeconds"] = more["grace"].clone();
        metadata["annotations"] = more["annotations"].clone();
        let status = json!({"phase": more["phase"].as_str().unwrap_or("Running")});
        let container = json!({"name": "c", "resources": {"limits": {resource: "1"}}});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [container]}, "status": status}))
            .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    const DEVICE: &str = "nvidia.com/mig-1g.10gb";

    #[test]
    fn deleted_pod_has_the_deadline_and_grace_period_of_its_newest_deletion() {
        let mut pods = TerminatingPods::default();
        let times = |pods: &TerminatingPods| pods.all().map(|pod| (pod.deadline, pod.grace)).collect::<Vec<_>>();
        let first = pod("a", Some("2026-11-27T12:10:00Z"), DEVICE, &json!({"grace": 600}));
        assert!(pods.apply(&first));
        assert_eq!(times(&pods), [(at("2026-11-27T12:10:00Z"), Duration::from_mins(10))]);
        assert!(pods.apply(&pod("a", Some("2026-11-27T12:00:05Z"), DEVICE, &json!({"grace": 5}))));
        assert_eq!(times(&pods), [(at("2026-11-27T12:00:05Z"), Duration::from_secs(5))]);
        assert!(!pods.apply(&pod("a", Some("2026-11-27T12:00:05Z"), DEVICE, &json!({"grace": 5}))), "unchanged");
        pods.apply(&pod("a", Some("2026-11-27T12:00:00Z"), DEVICE, &json!({"grace": i64::MAX})));
        assert_eq!(times(&pods)[0].1, LONGEST_GRACE, "a time after it can be calculated");
    }

    #[test]
    fn pods_that_run_have_ended_or_have_no_gpu_are_left_alone() {
        let late = Some("2026-11-27T12:00:00Z");
        let mirror = json!({"annotations": {MIRROR: "x"}});
        let mut pods = TerminatingPods::default();
        for other in [
            pod("runs", None, DEVICE, &Value::Null),
            pod("ended", late, DEVICE, &json!({"phase": "Failed"})),
            pod("no-gpu", late, "cpu", &Value::Null),
            pod("static", late, DEVICE, &mirror),
        ] {
            assert!(!pods.apply(&other), "{:?}", other.metadata.name);
        }
        assert_eq!(pods, TerminatingPods::default());
        pods.apply(&pod("a", late, DEVICE, &Value::Null));
        assert!(pods.has("u-a"));
        assert!(pods.apply(&pod("a", late, DEVICE, &json!({"phase": "Succeeded"}))), "it ends");
        assert!(!pods.has("u-a"));
    }
}
