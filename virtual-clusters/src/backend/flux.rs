//! The backend `FluxHelmRelease`: a `HelmRelease` and its source in the tenant's namespace; Flux installs vCluster.

use gputenancy_crds::reasons;
use kube::Client;
use serde_json::{Value, json};

use super::{
    CHART, Order,
    handed::{self, Handed, Resource, Wanted},
    shortened, text,
};
use crate::{
    offer::{Offer, Repository},
    report::Report,
};

const PRODUCT: &str = "Flux 2.6 or newer (source-controller and helm-controller)";
const RELEASE: Resource = Resource {
    group: "helm.toolkit.fluxcd.io",
    version: "v2",
    kind: "HelmRelease",
    plural: "helmreleases",
    product: PRODUCT,
};
const OCI: Resource = source_resource("OCIRepository", "ocirepositories");
const HELM: Resource = source_resource("HelmRepository", "helmrepositories");

/// Media type of a packed chart in an OCI registry (Helm's specification of charts as OCI artifacts).
const CHART_LAYER: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
/// How often Flux compares the objects.
const INTERVAL: &str = "5m";
/// How often Flux looks for changes of the repository. Versions are fixed, so this only renews its copy of the chart.
const SOURCE_INTERVAL: &str = "1h";
/// How long Flux waits for an upgraded control plane to become ready before it goes back: images are pulled first.
const UPGRADE_TIMEOUT: &str = "10m";
/// Reasons of `Ready=False` with which Flux waits for its source.
const WAITING: [&str; 3] = ["SourceNotReady", "DependencyNotReady", "Progressing"];

const fn source_resource(kind: &'static str, plural: &'static str) -> Resource {
    Resource { group: "source.toolkit.fluxcd.io", version: "v1", kind, plural, product: PRODUCT }
}

/// The source of the chart.
pub fn source(order: &Order<'_>, repository: &Repository) -> Wanted {
    let (resource, spec) = if repository.oci().is_some() {
        let spec = json!({
            "interval": SOURCE_INTERVAL,
            "url": format!("{}/{CHART}", repository.url()),
            "ref": {"tag": order.version},
            "layerSelector": {"mediaType": CHART_LAYER, "operation": "copy"},
        });
        (OCI, spec)
    } else {
        (HELM, json!({"interval": SOURCE_INTERVAL, "url": repository.url()}))
    };
    let content = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": order.metadata(&order.namespace(), &order.name()),
        "spec": spec,
    });
    Wanted { resource, content, exact: "/spec/url", defaults: &["/provider", "/timeout"] }
}

/// The release.
pub fn release(order: &Order<'_>, repository: &Repository) -> Wanted {
    let name = order.name();
    let mut spec = json!({
        "interval": INTERVAL,
        "timeout": UPGRADE_TIMEOUT,
        "releaseName": name,
        "suspend": order.stopped,
        // readiness is a condition of the tenant: a slow pull of images must not end in a deletion
        "install": {"crds": "Skip", "disableWait": true, "remediation": {"retries": -1}},
        "upgrade": {
            "crds": "Skip",
            "cleanupOnFail": true,
            "remediation": {"retries": 2, "remediateLastFailure": true, "strategy": "rollback"},
        },
        "uninstall": {"deletionPropagation": "background"},
        // the number of replicas of the control plane is not Flux's: vcluster pause sets it to zero
        "driftDetection": {
            "mode": "enabled",
            "ignore": [{"paths": ["/spec/replicas"], "target": {"group": "apps", "name": name}}],
        },
        "values": order.values,
    });
    if let Some(fields) = spec.as_object_mut() {
        if repository.oci().is_some() {
            fields.insert("chartRef".into(), json!({"kind": OCI.kind, "name": name}));
        } else {
            let source = json!({"kind": HELM.kind, "name": name});
            let chart = json!({"chart": CHART, "version": order.version, "sourceRef": source});
            fields.insert("chart".into(), json!({"spec": chart}));
        }
    }
    let content = json!({
        "apiVersion": RELEASE.api_version(),
        "kind": RELEASE.kind,
        "metadata": order.metadata(&order.namespace(), &name),
        "spec": spec,
    });
    Wanted { resource: RELEASE, content, exact: "/spec/values", defaults: &["/chart/spec/reconcileStrategy"] }
}

/// What Flux reports, from the live release and its live source. Pure.
pub fn report(release: &Value, source: &Value, order: &Order<'_>) -> Report {
    let place = format!("{} {}/{}", RELEASE.kind, order.namespace(), order.name());
    if !text(release, "/metadata/deletionTimestamp").is_empty() {
        return Report::waits(format!("{place} is being deleted"));
    }
    if order.stopped {
        let message = format!("{place} is suspended while the virtual cluster is stopped");
        return Report::done(reasons::OBJECTS_APPLIED, message);
    }
    let ready = ready(release);
    let message = |ready: &Value| shortened(text(ready, "/message")).to_owned();
    match ready.map(|ready| (ready, text(ready, "/status"))) {
        Some((ready, "True")) => {
            let message = format!("Flux has installed vCluster {}: {}", order.version, message(ready));
            Report::done(reasons::OBJECTS_APPLIED, message).version(order.version)
        }
        Some((ready, "False")) if !WAITING.contains(&text(ready, "/reason")) => {
            let reason = text(ready, "/reason");
            Report::failed(reasons::BACKEND_FAILED, format!("{place}: {reason}: {}", message(ready)))
        }
        ready => {
            if let Some(failed) = self::ready(source).filter(|s| text(s, "/status") == "False") {
                let message = format!("Flux cannot fetch the chart: {} {}", text(source, "/kind"), message(failed));
                return Report::failed(reasons::BACKEND_FAILED, message);
            }
            let state = ready.map_or_else(|| "no status of this generation yet".to_owned(), |(r, _)| message(r));
            Report::waits(format!("waiting for Flux: {place}: {state}"))
        }
    }
}

/// The condition `Ready` of this generation.
fn ready(object: &Value) -> Option<&Value> {
    let number = |value: &Value, at: &str| value.pointer(at).and_then(Value::as_i64);
    let generation = number(object, "/metadata/generation")?;
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let ready = conditions.iter().find(|c| text(c, "/type") == "Ready")?;
    let observed = number(ready, "/observedGeneration").or_else(|| number(object, "/status/observedGeneration"));
    (observed? >= generation).then_some(ready)
}

/// Hands the release to Flux.
pub async fn hand_on(client: &Client, offer: &Offer, order: &Order<'_>) -> Result<Report, String> {
    let tenant = order.name();
    let source = match handed::hand_on(client, &source(order, &offer.repository), &tenant).await? {
        Handed::Live(source) => source,
        Handed::Refused(report) => return Ok(report),
    };
    match handed::hand_on(client, &release(order, &offer.repository), &tenant).await? {
        Handed::Live(release) => Ok(report(&release, &source, order)),
        Handed::Refused(report) => Ok(report),
    }
}

/// Deletes the release, and the source after it; returns what is left.
pub async fn remove(client: &Client, tenant: &str, namespace: &str) -> kube::Result<Option<String>> {
    let place = (namespace, tenant, tenant);
    // Flux uninstalls nothing of a suspended release
    let resumed = json!({"spec": {"suspend": false}});
    if handed::delete(client, &RELEASE, place, Some(&resumed)).await? {
        return Ok(Some(format!("{} {namespace}/{tenant}, which Flux uninstalls", RELEASE.kind)));
    }
    for source in [OCI, HELM] {
        handed::delete(client, &source, place, None).await?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fixtures;

    fn repository(oci: bool) -> Repository {
        if oci { "oci://registry.example/charts" } else { "https://charts.loft.sh" }.parse().unwrap()
    }

    fn with_order<T>(stopped: bool, test: impl Fn(&Order<'_>) -> T) -> T {
        let (tenant, values) = (fixtures::tenant(), fixtures::values());
        test(&Order { tenant: &tenant, version: "0.36.1", values: &values, stopped })
    }

    fn rendered(oci: bool, stopped: bool) -> [Wanted; 2] {
        with_order(stopped, |order| [source(order, &repository(oci)), release(order, &repository(oci))])
    }

    #[test]
    fn helm_release_with_a_helm_repository() {
        let [source, release] = rendered(false, false);
        insta::assert_yaml_snapshot!("helm-repository", source.content);
        insta::assert_yaml_snapshot!("helm-release", release.content);
    }

    #[test]
    fn helm_release_with_an_oci_repository() {
        let [source, release] = rendered(true, false);
        insta::assert_yaml_snapshot!("oci-repository", source.content);
        assert_eq!(release.content["spec"]["chartRef"], json!({"kind": "OCIRepository", "name": "team-a"}));
        assert_eq!(release.content["spec"].get("chart"), None);
    }

    #[test]
    fn values_are_handed_on_unchanged_and_a_stopped_release_is_suspended() {
        let [_, release] = rendered(false, true);
        assert_eq!(release.content["spec"]["values"], fixtures::values());
        assert_eq!(release.content["spec"]["suspend"], true);
        assert_eq!(release.content["spec"].get("targetNamespace"), None);
    }

    #[test]
    fn release_that_the_api_server_has_completed_is_at_rest() {
        let [source, release] = rendered(false, false);
        let mut live = release.content.clone();
        live["spec"]["chart"]["spec"]["reconcileStrategy"] = json!("ChartVersion");
        assert_eq!(handed::change(&live, &release), handed::Change::default());
        let mut live = source.content.clone();
        live["spec"]["provider"] = json!("generic");
        assert_eq!(handed::change(&live, &source).remove, None);
    }

    fn live(generation: i64, observed: i64, status: &str, reason: &str) -> Value {
        json!({"kind": "HelmRepository", "metadata": {"generation": generation}, "status": {"conditions": [
            {"type": "Released", "status": "True"},
            {"type": "Ready", "status": status, "reason": reason, "message": "as Flux says", "observedGeneration": observed},
        ]}})
    }

    fn reported(release: &Value, source: &Value) -> (bool, &'static str, String) {
        let report = with_order(false, |order| report(release, source, order));
        (report.done, report.reason.as_str(), report.message)
    }

    #[test]
    fn ready_of_this_generation_is_done() {
        let (done, _, message) = reported(&live(2, 2, "True", "InstallSucceeded"), &json!({}));
        assert!(done && message == "Flux has installed vCluster 0.36.1: as Flux says", "{message}");
        let (done, reason, message) = reported(&live(2, 1, "True", "InstallSucceeded"), &json!({}));
        assert_eq!((done, reason), (false, "Applying"), "{message}");
        assert_eq!(reported(&json!({"metadata": {"generation": 1}}), &json!({})).1, "Applying");
    }

    #[test]
    fn failure_of_release_or_source_is_quoted() {
        let (_, reason, message) = reported(&live(2, 2, "False", "UpgradeFailed"), &json!({}));
        assert_eq!(reason, "BackendFailed");
        assert_eq!(message, "HelmRelease ns-a/team-a: UpgradeFailed: as Flux says");
        let waiting = live(2, 2, "False", "SourceNotReady");
        assert_eq!(reported(&waiting, &live(1, 1, "True", "Succeeded")).1, "Applying");
        let (_, reason, message) = reported(&waiting, &live(1, 1, "False", "IndexationFailed"));
        assert_eq!(
            (reason, message.as_str()),
            ("BackendFailed", "Flux cannot fetch the chart: HelmRepository as Flux says")
        );
    }

    #[test]
    fn stopped_release_is_done_and_a_deleted_one_is_not() {
        let stopped = with_order(true, |order| report(&live(3, 2, "True", ""), &json!({}), order));
        assert_eq!((stopped.done, stopped.version), (true, None));
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(reported(&deleted, &json!({})).2.ends_with("is being deleted"));
    }
}
