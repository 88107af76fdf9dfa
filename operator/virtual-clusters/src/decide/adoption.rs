//! How far the adoption of a vCluster is that something else installs in the tenant's namespace, such as Flux or Argo CD (backend `External`). Pure.
//!
//! No object of its chart is written or deleted; inside, the team's account, the catalog, `RuntimeClasses` and what nodes show are this program's,
//! and go when the field does.

use gputenancy_crds::reasons::{self, Reason};
use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::{replicas, running_version};
use crate::{host::Live, names, render::objects::Replicas};

/// How far the adoption is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// It is adopted.
    pub done: bool,
    /// Reason of `ChartRendered`.
    pub reason: Reason,
    /// Its message.
    pub message: String,
    /// The version that runs, where it is known.
    pub version: Option<String>,
}

/// How far the adoption is, from the workloads of this name and the Service in front of them.
pub fn adoption(tenant: &str, namespace: &str, version: &str, live: &[Live], service: Option<&Service>) -> Adoption {
    let missing = |what: &str| {
        let message = format!(
            "namespace {namespace} has no vCluster to adopt: {what}; install vCluster's chart there with release name {tenant}, or remove spec.virtualCluster and add it again with backend Helm"
        );
        Adoption { done: false, reason: reasons::VIRTUAL_CLUSTER_NOT_FOUND, message, version: None }
    };
    if live.is_empty() {
        let labels = names::control_plane(tenant);
        return missing(&format!("no StatefulSet or Deployment {tenant} with the labels {labels}"));
    }
    let kind = service.map(|s| s.spec.as_ref().and_then(|s| s.type_.as_deref()).unwrap_or("ClusterIP"));
    match kind {
        None => return missing(&format!("no Service {tenant}")),
        // its name could lead to any server
        Some("ExternalName") => return missing(&format!("Service {tenant} is of type ExternalName")),
        Some(_) => {}
    }
    let Some(running) = running_version(tenant, live) else {
        return missing(&format!("the label chart of {tenant} is not vcluster-VERSION"));
    };
    if running == version {
        let message = format!("vCluster {running} is adopted; its objects in namespace {namespace} are not changed");
        return Adoption { done: true, reason: reasons::VIRTUAL_CLUSTER_ADOPTED, message, version: Some(running) };
    }
    let message = format!("vCluster {running} runs, and spec.virtualCluster.version is {version}: write {running}");
    Adoption { done: false, reason: reasons::VERSION_DIFFERS, message, version: Some(running) }
}

/// What becomes of the replicas: nothing. A workload without any is stopped.
pub fn adopted_replicas(live: &[Live]) -> Replicas {
    let none =
        |l: &Live| l.kind.is_workload() && l.content.pointer("/spec/replicas").and_then(Value::as_i64) == Some(0);
    if live.iter().any(none) { Replicas::Kept } else { replicas(false, live) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::render::objects::KINDS;

    fn workload(chart: &str, replicas: i64) -> Live {
        let kind = *KINDS.iter().find(|k| k.kind == "StatefulSet").unwrap();
        let content = json!({"metadata": {"labels": {"chart": chart}}, "spec": {"replicas": replicas}});
        Live { kind, name: "team-a".into(), version: None, content }
    }

    fn front(kind: &str) -> Service {
        serde_json::from_value(json!({"spec": {"type": kind}})).unwrap()
    }

    fn reported(live: &[Live], service: Option<&Service>) -> Adoption {
        adoption("team-a", "ns-a", "0.36.1", live, service)
    }

    #[test]
    fn vcluster_of_the_tenants_name_is_adopted() {
        let report = reported(&[workload("vcluster-0.36.1", 1)], Some(&front("ClusterIP")));
        assert_eq!(
            (report.done, report.reason, report.version.as_deref()),
            (true, reasons::VIRTUAL_CLUSTER_ADOPTED, Some("0.36.1"))
        );
    }

    #[test]
    fn other_version_is_named() {
        let report = reported(&[workload("vcluster-0.35.2", 1)], Some(&front("LoadBalancer")));
        assert_eq!(
            (report.done, report.reason, report.version.as_deref()),
            (false, reasons::VERSION_DIFFERS, Some("0.35.2"))
        );
        assert!(report.message.ends_with("is 0.36.1: write 0.35.2"), "{report:?}");
    }

    #[test]
    fn missing_parts_are_named() {
        let why = |live: &[Live], service: Option<&Service>| {
            let report = reported(live, service);
            assert_eq!(report.reason, reasons::VIRTUAL_CLUSTER_NOT_FOUND);
            report.message
        };
        let runs = [workload("vcluster-0.36.1", 1)];
        assert!(
            why(&[], None).contains("no StatefulSet or Deployment team-a with the labels app=vcluster,release=team-a")
        );
        assert!(why(&runs, None).contains("no Service team-a"));
        assert!(why(&runs, Some(&front("ExternalName"))).contains("is of type ExternalName"));
        assert!(why(&[workload("other", 1)], Some(&front("ClusterIP"))).contains("the label chart"));
    }

    #[test]
    fn workload_without_replicas_is_stopped() {
        assert_eq!(adopted_replicas(&[workload("vcluster-0.36.1", 0)]), Replicas::Kept);
        assert_eq!(adopted_replicas(&[workload("vcluster-0.36.1", 1)]), Replicas::Rendered);
        assert_eq!(adopted_replicas(&[]), Replicas::Rendered);
    }
}
