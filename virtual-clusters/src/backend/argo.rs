//! The backend `ArgoApplication`: an `Application` in the namespace of Argo CD, which installs vCluster.

use gputenancy_crds::reasons;
use kube::Client;
use serde_json::{Value, json};

use super::{
    CHART, Order,
    handed::{self, Handed, Resource, Wanted},
    shortened, text,
};
use crate::{offer::Offer, report::Report};

const APPLICATION: Resource = Resource {
    group: "argoproj.io",
    version: "v1alpha1",
    kind: "Application",
    plural: "applications",
    product: "Argo CD",
};
/// With it Argo CD deletes the installed objects before the Application is gone.
const FINALIZER: &str = "resources-finalizer.argocd.argoproj.io";

/// Name of a tenant's Application: all tenants share the namespace.
fn application_name(tenant: &str) -> String {
    format!("{tenant}-virtual-cluster")
}

/// The Application.
pub fn application(order: &Order<'_>, offer: &Offer) -> Wanted {
    let name = order.name();
    let repository = offer.repository.oci().unwrap_or_else(|| offer.repository.url());
    // the number of replicas of the control plane is not Argo CD's: vcluster pause sets it to zero
    let replicas = ["StatefulSet", "Deployment"]
        .map(|kind| json!({"group": "apps", "kind": kind, "name": name, "jsonPointers": ["/spec/replicas"]}));
    let mut policy = json!({
        "syncOptions": ["CreateNamespace=false", "RespectIgnoreDifferences=true"],
        // without a limit: a quota or a policy that refuses an object may change later
        "retry": {"limit": -1, "backoff": {"duration": "10s", "factor": 2, "maxDuration": "3m"}},
    });
    if let Some(fields) = policy.as_object_mut().filter(|_| !order.stopped) {
        fields.insert("automated".into(), json!({"prune": true, "selfHeal": true}));
    }
    let mut metadata = order.metadata(&offer.argo_namespace, &application_name(&name));
    if let Some(fields) = metadata.as_object_mut() {
        fields.insert("finalizers".into(), json!([FINALIZER]));
    }
    let content = json!({
        "apiVersion": APPLICATION.api_version(),
        "kind": APPLICATION.kind,
        "metadata": metadata,
        "spec": {
            "project": offer.argo_project,
            "source": {
                "repoURL": repository,
                "chart": CHART,
                "targetRevision": order.version,
                "helm": {"releaseName": name, "skipCrds": true, "valuesObject": order.values},
            },
            "destination": {"server": "https://kubernetes.default.svc", "namespace": order.namespace()},
            "ignoreDifferences": replicas,
            "syncPolicy": policy,
        },
    });
    Wanted { resource: APPLICATION, content, exact: "/spec/source/helm/valuesObject", defaults: &[] }
}

/// What Argo CD reports, from the live Application. It has no observed generation: the source that it has compared is in its status. Pure.
pub fn report(application: &Value, order: &Order<'_>) -> Report {
    let place = format!("Application {}", text(application, "/metadata/name"));
    if !text(application, "/metadata/deletionTimestamp").is_empty() {
        return Report::waits(format!("{place} is being deleted"));
    }
    if order.stopped {
        let message = format!("{place} is not synced while the virtual cluster is stopped");
        return Report::done(reasons::OBJECTS_APPLIED, message);
    }
    if let Some((kind, message)) = error(application) {
        return Report::failed(reasons::BACKEND_FAILED, format!("{place}: {kind}: {}", shortened(message)));
    }
    let source = "/status/sync/comparedTo/source";
    let compared = text(application, &format!("{source}/targetRevision")) == order.version
        && application.pointer(&format!("{source}/helm/valuesObject")) == Some(order.values);
    if !compared {
        return Report::waits(format!("waiting for Argo CD: {place} has not been compared with this spec yet"));
    }
    let (sync, health) = (text(application, "/status/sync/status"), text(application, "/status/health/status"));
    let state = format!("{place} is {sync}, its health is {health}");
    match (sync, health) {
        ("Synced", "Degraded" | "Missing") => {
            let detail = shortened(text(application, "/status/health/message"));
            Report::failed(reasons::BACKEND_FAILED, format!("{state} {detail}").trim_end())
        }
        ("Synced", _) => {
            let message = format!("Argo CD has installed vCluster {}: {state}", order.version);
            Report::done(reasons::OBJECTS_APPLIED, message).version(order.version)
        }
        _ if ["Failed", "Error"].contains(&text(application, "/status/operationState/phase")) => {
            let why = shortened(text(application, "/status/operationState/message"));
            Report::failed(reasons::BACKEND_FAILED, format!("{state}; the last sync failed: {why}"))
        }
        _ => Report::waits(format!("waiting for Argo CD: {state}")),
    }
}

/// The first condition that is an error: its type and message.
fn error(application: &Value) -> Option<(&str, &str)> {
    let conditions = application.pointer("/status/conditions")?.as_array()?;
    let mut all = conditions.iter().map(|c| (text(c, "/type"), text(c, "/message")));
    all.find(|(kind, _)| kind.ends_with("Error"))
}

/// Hands the Application to Argo CD.
pub async fn hand_on(client: &Client, offer: &Offer, order: &Order<'_>) -> Result<Report, String> {
    match handed::hand_on(client, &application(order, offer), &order.name()).await? {
        Handed::Live(application) => Ok(report(&application, order)),
        Handed::Refused(report) => Ok(report),
    }
}

/// Deletes the Application; returns what is left.
pub async fn remove(client: &Client, offer: &Offer, tenant: &str) -> kube::Result<Option<String>> {
    let (namespace, name) = (offer.argo_namespace.as_str(), application_name(tenant));
    if namespace.is_empty() {
        return Ok(Some(format!(
            "Application {name}, in the namespace of Argo CD: set virtualClusters.argo.namespace in the chart's values"
        )));
    }
    let left = handed::delete(client, &APPLICATION, (namespace, &name, tenant), None).await?;
    Ok(left.then(|| format!("Application {namespace}/{name}, whose objects Argo CD deletes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fixtures;

    fn offer(repository: &str) -> Offer {
        let repository = repository.parse().unwrap();
        Offer { repository, flux: false, argo_namespace: "argocd".into(), argo_project: "tenants".into() }
    }

    fn with_order<T>(stopped: bool, test: impl Fn(&Order<'_>) -> T) -> T {
        let (tenant, values) = (fixtures::tenant(), fixtures::values());
        test(&Order { tenant: &tenant, version: "0.36.1", values: &values, stopped })
    }

    #[test]
    fn application_with_a_helm_repository() {
        let wanted = with_order(false, |order| application(order, &offer("https://charts.loft.sh")));
        insta::assert_yaml_snapshot!("application", wanted.content);
        assert_eq!(handed::change(&wanted.content, &wanted), handed::Change::default());
    }

    #[test]
    fn repository_of_a_registry_has_no_scheme() {
        let wanted = with_order(false, |order| application(order, &offer("oci://registry.example/charts")));
        assert_eq!(wanted.content["spec"]["source"]["repoURL"], "registry.example/charts");
    }

    #[test]
    fn stopped_virtual_cluster_is_not_synced() {
        let wanted = with_order(true, |order| application(order, &offer("https://charts.loft.sh")));
        assert_eq!(wanted.content["spec"]["syncPolicy"].get("automated"), None);
        let mut live = wanted.content.clone();
        live["spec"]["syncPolicy"]["automated"] = json!({"prune": true});
        live["spec"]["sources"] = json!([{"repoURL": "https://elsewhere.example"}]);
        let change = handed::change(&live, &wanted);
        assert_eq!(change.remove, Some(json!({"spec": {"syncPolicy": {"automated": null}, "sources": null}})));
        assert!(with_order(true, |order| report(&json!({}), order)).done);
    }

    fn live(sync: &str, health: &str) -> Value {
        json!({"metadata": {"name": "team-a-virtual-cluster"}, "status": {
            "sync": {"status": sync, "comparedTo": {"source": {"targetRevision": "0.36.1", "helm": {"valuesObject": fixtures::values()}}}},
            "health": {"status": health},
        }})
    }

    fn reported(application: &Value) -> (bool, &'static str, String) {
        let report = with_order(false, |order| report(application, order));
        (report.done, report.reason.as_str(), report.message)
    }

    #[test]
    fn synced_application_is_done_while_its_pods_start() {
        let (done, _, message) = reported(&live("Synced", "Progressing"));
        assert!(done && message.ends_with("team-a-virtual-cluster is Synced, its health is Progressing"), "{message}");
        assert_eq!(reported(&live("Synced", "Degraded")).1, "BackendFailed");
        assert_eq!(reported(&live("OutOfSync", "Missing")).1, "Applying");
    }

    #[test]
    fn comparison_with_an_earlier_spec_does_not_count() {
        let mut version = live("Synced", "Healthy");
        version["status"]["sync"]["comparedTo"]["source"]["targetRevision"] = json!("0.36.0");
        let mut values = live("Synced", "Healthy");
        values["status"]["sync"]["comparedTo"]["source"]["helm"]["valuesObject"] = json!({});
        for earlier in [version, values, json!({"metadata": {"name": "x"}})] {
            assert_eq!(reported(&earlier).1, "Applying", "{earlier}");
        }
    }

    #[test]
    fn failures_are_quoted() {
        let mut failed = live("OutOfSync", "Missing");
        failed["status"]["operationState"] = json!({"phase": "Failed", "message": "quota exceeded"});
        let (_, reason, message) = reported(&failed);
        assert!(reason == "BackendFailed" && message.ends_with("the last sync failed: quota exceeded"), "{message}");
        let mut broken = live("Unknown", "Healthy");
        broken["status"]["conditions"] = json!([
            {"type": "OrphanedResourceWarning", "message": "no matter"},
            {"type": "ComparisonError", "message": "chart not found"},
        ]);
        assert_eq!(reported(&broken).2, "Application team-a-virtual-cluster: ComparisonError: chart not found");
    }
}
