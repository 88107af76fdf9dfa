//! The metric `gputenancy_operator_pod_info`: one series with the value 1 for each pod of a tenant that requests a GPU, to join with usage by
//! pod. A pod of a virtual cluster has the virtual pod's names in addition, checked against forgery; one that fails the check is charged to
//! the tenant all the same, and marked.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use gputenancy_crds::{
    names::is_gpu_resource,
    projection::{SlimPod, queue},
    virtual_pod::{HostPod, Origin, attribute},
};
use kube::ResourceExt as _;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::cache::Caches;

/// Reads the caches at each scrape, once this replica leads: two replicas would report every pod twice.
#[derive(Clone, Default)]
pub struct PodInfo(Arc<OnceLock<Caches>>);

impl PodInfo {
    /// This replica leads.
    pub fn leads(&self, caches: &Caches) {
        drop(self.0.set(caches.clone()));
    }
}

impl fmt::Debug for PodInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PodInfo")
    }
}

impl Collector for PodInfo {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "1 for each pod of a tenant that requests a GPU, with the names of the virtual pod";
        let mut metric = encoder.encode_descriptor("pod_info", help, None, MetricType::Gauge)?;
        let Some(caches) = self.0.get() else { return Ok(()) };
        for tenant in caches.tenants.state() {
            let (name, has_one) = (tenant.name_any(), tenant.spec.virtual_cluster.is_some());
            for namespace in caches.namespaces_of(&name) {
                for pod in caches.pods.in_namespace(&namespace).iter().filter(|pod| requests_gpu(pod)) {
                    let labels = labels(&name, has_one.then_some(&*name), pod);
                    ConstGauge::new(1_i64).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

/// A pod that has not ended and requests a GPU.
pub fn requests_gpu(pod: &SlimPod) -> bool {
    let ended = ["Succeeded", "Failed"].contains(&pod.status.phase.as_str());
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    !ended && containers.flat_map(|c| c.resources.requests.keys()).any(|resource| is_gpu_resource(resource))
}

/// The labels of a pod.
fn labels(tenant: &str, virtual_cluster: Option<&str>, pod: &SlimPod) -> Vec<(&'static str, String)> {
    let attribution = attribute(tenant, virtual_cluster, HostPod::from(&pod.metadata));
    let (origin, namespace, name, uid) = match attribution.origin {
        Origin::Namespace(_) => ("namespace", String::new(), String::new(), String::new()),
        Origin::Virtual { cluster: _, pod } => ("virtual", pod.namespace.into(), pod.name.into(), pod.uid.into()),
        Origin::Suspicious { reason: _ } => ("suspicious", String::new(), String::new(), String::new()),
        Origin::ControlPlane { cluster: _ } => ("control-plane", String::new(), String::new(), String::new()),
        Origin::Unsynced => ("unsynced", String::new(), String::new(), String::new()),
    };
    vec![
        ("namespace", pod.namespace().unwrap_or_default()),
        ("pod", pod.name_any()),
        ("pod_uid", pod.uid().unwrap_or_default()),
        ("node", pod.spec.node_name.clone().unwrap_or_default()),
        ("tenant", tenant.to_owned()),
        ("origin", origin.to_owned()),
        ("virtual_namespace", namespace),
        ("virtual_pod", name),
        ("virtual_uid", uid),
        // Prometheus treats an empty label as none
        ("queue", queue(&pod.metadata).unwrap_or_default().to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, annotated: &str) -> SlimPod {
        let key = |key: &str| format!("vcluster.loft.sh/{key}");
        let mut pod = serde_json::from_value(json!({
            "metadata": {
                "namespace": "team-a", "name": name, "uid": "u-1", "labels": {
                    key("managed-by"): "team-a", key("namespace"): "ml", "x": "y", "kai.scheduler/queue": "batch",
                },
                "annotations": {
                    key("object-name"): annotated, key("object-namespace"): "ml", key("object-uid"): "v-1", key("object-kind"): "/v1, Kind=Pod",
                    key("object-host-name"): name, key("object-host-namespace"): "team-a", "other": "text",
                },
            },
            "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        gputenancy_crds::projection::project_pod(&mut pod);
        pod
    }

    fn of(labels: &[(&'static str, String)], key: &str) -> String {
        labels.iter().find(|(k, _)| *k == key).unwrap().1.clone()
    }

    #[test]
    fn synced_pod_has_the_names_of_the_virtual_one() {
        let pod = pod("train-x-ml-x-team-a", "train");
        assert!(requests_gpu(&pod));
        let labels = labels("team-a", Some("team-a"), &pod);
        assert_eq!((of(&labels, "origin"), of(&labels, "virtual_pod")), ("virtual".into(), "train".into()));
        assert_eq!((of(&labels, "virtual_namespace"), of(&labels, "virtual_uid")), ("ml".into(), "v-1".into()));
        assert_eq!(of(&labels, "queue"), "batch");
    }

    #[test]
    fn forged_name_is_marked_and_charged_to_the_tenant() {
        let labels = labels("team-a", Some("team-a"), &pod("train-x-ml-x-team-a", "other"));
        assert_eq!((of(&labels, "origin"), of(&labels, "virtual_pod")), ("suspicious".into(), String::new()));
        assert_eq!(of(&labels, "tenant"), "team-a");
    }
}
