//! Validation of `GpuTenant.spec.virtualCluster.backend` by the API server: fields that an adopted vCluster has not, and changes.

use e2e::{
    World,
    actor::{Actor, Verb},
};
use serde_json::{Value, json};

const PATH: &str = "/apis/gputenancy.io/v1alpha1/gputenants";

/// A tenant with a virtual cluster.
fn tenant(name: &str, cluster: Value) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": name},
        "spec": {"namespaces": [{"name": name}], "virtualCluster": cluster},
    })
}

#[tokio::test]
async fn crds_refuse_fields_that_would_change_an_adopted_virtual_cluster() {
    let world = World::enter().await.unwrap();
    let values = Some("spec.virtualCluster.values: with backend External");
    let suspend = Some("spec.virtualCluster.suspend: with backend External");
    let resources = Some("spec.virtualCluster.resources: with backend External");
    let storage = Some("spec.virtualCluster.storage: with backend External");
    let cases: [(&str, Value, Option<&str>); 8] = [
        ("by-default", json!({"values": {"a": 1}, "suspend": true}), None),
        ("flux", json!({"backend": "FluxHelmRelease", "values": {"a": 1}, "suspend": true}), None),
        ("adopted", json!({"backend": "External"}), None),
        ("adopted-with-values", json!({"backend": "External", "values": {"a": 1}}), values),
        ("adopted-with-resources", json!({"backend": "External", "resources": {"requests": {"cpu": "1"}}}), resources),
        ("adopted-with-storage", json!({"backend": "External", "storage": {"reclaim": "Retain"}}), storage),
        ("adopted-and-suspended", json!({"backend": "External", "suspend": true}), suspend),
        ("unknown", json!({"backend": "Capi"}), Some("Unsupported value: \"Capi\"")),
    ];
    for (name, mut cluster, refusal) in cases {
        cluster["version"] = json!("0.36.1");
        Actor::Admin.check(&world.client, Verb::Create, PATH, &tenant(name, cluster), refusal).await.unwrap();
    }
}

#[tokio::test]
async fn crds_refuse_another_backend_and_removal_under_protection() {
    let world = World::enter().await.unwrap();
    let other = Some(
        "spec.virtualCluster.backend: another backend would install a second vCluster; remove spec.virtualCluster first",
    );
    let protected = Some("spec.virtualCluster: removing it deletes the virtual cluster and its data");
    let removed = json!({"spec": {"virtualCluster": null}});
    let backend = |name: &str| json!({"spec": {"virtualCluster": {"backend": name}}});
    let cases: [(&str, Value, Value, Option<&str>); 6] = [
        ("helm", json!({"version": "0.36.1"}), backend("Helm"), None),
        ("helm", json!({"version": "0.36.1"}), backend("FluxHelmRelease"), other),
        ("helm", json!({"version": "0.36.1"}), removed.clone(), protected),
        ("argo", json!({"version": "0.36.1", "backend": "ArgoApplication"}), backend("External"), other),
        ("adopted", json!({"version": "0.36.1", "backend": "External"}), backend("Helm"), other),
        // nothing is lost
        ("adopted", json!({"version": "0.36.1", "backend": "External"}), removed, None),
    ];
    for (name, before, change, refusal) in cases {
        world.set(&[tenant(name, before)]).await.unwrap();
        let path = format!("{PATH}/{name}");
        Actor::Admin.check(&world.client, Verb::Merge, &path, &change, refusal).await.unwrap();
    }
}
