//! The backend `External`: a vCluster that something else installs in the tenant's namespace, such as Flux or Argo CD. No object of its chart is written or
//! deleted; inside, the team's account, the catalog, `RuntimeClasses` and what nodes show are this program's, and go when the field does.

use gputenancy_cluster::error::sentence;
use gputenancy_crds::{GpuTenant, VirtualCluster, reasons};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::{
    decide::{self, report::Report},
    host::{Host, Live},
    inside::{
        account, catalog,
        connect::{self, Admin},
        nodes::{self, Amounts, Requests},
    },
    names,
    render::objects::{self, Replicas},
};

/// How far the adoption is, from the workloads of this name and the Service in front of them. Pure.
pub fn report(tenant: &str, namespace: &str, version: &str, live: &[Live], service: Option<&Service>) -> Report {
    let missing = |what: &str| {
        let message = format!(
            "namespace {namespace} has no vCluster to adopt: {what}; install vCluster's chart there with release name {tenant}, or remove spec.virtualCluster and add it again with backend Helm"
        );
        Report::failed(reasons::VIRTUAL_CLUSTER_NOT_FOUND, message)
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
    let Some(running) = decide::running_version(tenant, live) else {
        return missing(&format!("the label chart of {tenant} is not vcluster-VERSION"));
    };
    if running == version {
        let message = format!("vCluster {running} is adopted; its objects in namespace {namespace} are not changed");
        return Report::done(reasons::VIRTUAL_CLUSTER_ADOPTED, message).version(running);
    }
    let message = format!("vCluster {running} runs, and spec.virtualCluster.version is {version}: write {running}");
    Report::failed(reasons::VERSION_DIFFERS, message).version(running)
}

/// What becomes of the replicas: nothing. A workload without any is stopped. Pure.
pub fn replicas(live: &[Live]) -> Replicas {
    let none =
        |l: &Live| l.kind.is_workload() && l.content.pointer("/spec/replicas").and_then(Value::as_i64) == Some(0);
    if live.iter().any(none) { Replicas::Kept } else { decide::replicas(false, live) }
}

/// Observes the vCluster.
pub async fn observe(
    host: &Host,
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    live: &[Live],
) -> Result<Report, String> {
    let name = tenant.name_any();
    let service = host.service(&name).await.map_err(|error| format!("reading Service {name}: {}", sentence(&error)))?;
    Ok(report(&name, &objects::namespace_of(tenant), &cluster.version, live, service.as_ref()))
}

/// Removes what this program has written inside, as far as the virtual cluster still serves.
pub async fn release(host: &Host, (tenant, namespace): (&str, &str)) -> Result<(), String> {
    let secret = names::admin_secret(tenant);
    let read = host
        .secrets()
        .get_opt(&secret)
        .await
        .map_err(|error| format!("reading Secret {secret}: {}", sentence(&error)))?;
    let Some(admin) = read.as_ref().and_then(Admin::of) else { return Ok(()) };
    let client = connect::client(&admin, &format!("{tenant}.{namespace}")).await?;
    account::remove(&client).await?;
    catalog::remove(&client).await?;
    nodes::show(&client, &nodes::list(&client).await?, &Amounts::new(), &Requests::default()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuTenantSpec, TenantNamespace, VirtualClusterBackend};
    use serde_json::json;

    use super::*;
    use crate::{backend::service, render::objects::KINDS};

    fn workload(chart: &str, replicas: i64) -> Live {
        let kind = *KINDS.iter().find(|k| k.kind == "StatefulSet").unwrap();
        let content = json!({"metadata": {"labels": {"chart": chart}}, "spec": {"replicas": replicas}});
        Live { kind, name: "team-a".into(), version: None, content }
    }

    fn front(kind: &str) -> Service {
        serde_json::from_value(json!({"spec": {"type": kind}})).unwrap()
    }

    fn reported(live: &[Live], service: Option<&Service>) -> Report {
        report("team-a", "ns-a", "0.36.1", live, service)
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
        assert_eq!(replicas(&[workload("vcluster-0.36.1", 0)]), Replicas::Kept);
        assert_eq!(replicas(&[workload("vcluster-0.36.1", 1)]), Replicas::Rendered);
        assert_eq!(replicas(&[]), Replicas::Rendered);
    }

    #[test]
    fn address_is_in_the_certificate_without_further_settings() {
        let mut cluster: VirtualCluster =
            serde_json::from_value(json!({"version": "0.36.1", "backend": "External"})).unwrap();
        let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
        let tenant = GpuTenant::new("team-a", GpuTenantSpec { namespaces, ..GpuTenantSpec::default() });
        assert_eq!(service(&tenant, &cluster), "team-a.ns-a");
        cluster.backend = VirtualClusterBackend::Helm;
        assert_eq!(service(&tenant, &cluster), "team-a.ns-a.svc");
    }
}
