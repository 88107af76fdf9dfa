//! Names of pods.

use gputenancy_crds::projection::NodePod;

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// Namespace and name of a pod.
pub fn pod_name(pod: &NodePod) -> PodName {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}
