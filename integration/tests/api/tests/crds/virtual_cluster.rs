//! Validation of `GpuTenant.spec.virtualCluster.backend` by the API server: fields that an adopted vCluster has not, and changes. And of the
//! samples for Flux and Argo CD, with their own CRDs.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    objects::ensure,
    product,
    wait::{PATIENCE, eventually},
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
    let world = World::enter_api().await.unwrap();
    let values = Some("spec.virtualCluster.values: with backend External");
    let suspend = Some("spec.virtualCluster.suspend: with backend External");
    let resources = Some("spec.virtualCluster.resources: with backend External");
    let storage = Some("spec.virtualCluster.storage: with backend External");
    let cases: [(&str, Value, Option<&str>); 7] = [
        ("by-default", json!({"values": {"a": 1}, "suspend": true}), None),
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
    let world = World::enter_api().await.unwrap();
    let other = Some(
        "spec.virtualCluster.backend: another backend would install a second vCluster; remove spec.virtualCluster first",
    );
    let protected = Some("spec.virtualCluster: removing it deletes the virtual cluster and its data");
    let removed = json!({"spec": {"virtualCluster": null}});
    let backend = |name: &str| json!({"spec": {"virtualCluster": {"backend": name}}});
    let cases: [(&str, Value, Value, Option<&str>); 5] = [
        ("helm", json!({"version": "0.36.1"}), backend("Helm"), None),
        ("helm", json!({"version": "0.36.1"}), backend("External"), other),
        ("helm", json!({"version": "0.36.1"}), removed.clone(), protected),
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

/// The backends in the CRD.
const BACKENDS: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/virtualCluster/properties/backend/enum";

async fn patch_backends(world: &World, change: Value) -> Result<()> {
    let patch = json!([change]).to_string();
    world.kubectl(&["patch", "crd", "gputenants.gputenancy.io", "--type=json", "-p", &patch]).await.map(drop)
}

#[tokio::test]
async fn tenant_with_a_removed_backend_may_become_external_and_nothing_else() {
    let world = World::enter_api().await.unwrap();
    let (path, removed) = (format!("{PATH}/removed"), json!({"version": "0.36.1", "backend": "FluxHelmRelease"}));
    // as by the CRD of the version before
    let made = async {
        patch_backends(&world, json!({"op": "add", "path": format!("{BACKENDS}/2"), "value": "FluxHelmRelease"}))
            .await?;
        let tenant = tenant("removed", removed);
        eventually("the tenant to be admitted", PATIENCE, || async {
            Ok(world.set(std::slice::from_ref(&tenant)).await.map_err(|error| error.to_string()))
        })
        .await
    };
    let made = made.await;
    patch_backends(&world, json!({"op": "remove", "path": format!("{BACKENDS}/2")})).await.unwrap();
    made.unwrap();
    let backend = |name: &str| json!({"spec": {"virtualCluster": {"backend": name}}});
    let unsupported = Some("Unsupported value: \"FluxHelmRelease\"");
    eventually("the CRD without the backend", PATIENCE, || async {
        let created = tenant("other", json!({"version": "0.36.1", "backend": "FluxHelmRelease"}));
        Ok(Actor::Admin
            .check(&world.client, Verb::Create, PATH, &created, unsupported)
            .await
            .map_err(|e| e.to_string()))
    })
    .await
    .unwrap();
    let other = Some("spec.virtualCluster.backend: another backend would install a second vCluster");
    Actor::Admin.check(&world.client, Verb::Merge, &path, &backend("Helm"), other).await.unwrap();
    Actor::Admin.check(&world.client, Verb::Merge, &path, &backend("External"), None).await.unwrap();
}

#[tokio::test]
async fn crds_of_flux_and_argo_cd_admit_the_samples() {
    let world = World::attach().await.unwrap();
    // with a slash at its end: it is a link
    let crds = product::root().join("target/toolset/crds/").display().to_string();
    let body = async {
        ensure(std::path::Path::new(&crds).is_dir(), format!("{crds} is missing: run `make tools`"))?;
        world.kubectl(&["apply", "--server-side", "-f", &crds]).await?;
        world.kubectl(&["wait", "--for=condition=Established", "--timeout=2m", "-f", &crds]).await?;
        let objects = samples()?;
        let unknown = "field not declared in schema";
        for object in &objects {
            dry_run(&world, object).await?;
            let mut wrong = object.clone();
            wrong["spec"]["nonsense"] = json!(true);
            let refusal = dry_run(&world, &wrong).await.map_err(|e| e.to_string());
            ensure(refusal.as_ref().is_err_and(|e| e.contains(unknown)), format!("{refusal:?} of {wrong}"))?;
        }
        Ok(())
    };
    let outcome = body.await;
    // other tests expect neither product
    let removed = async {
        world.kubectl(&["delete", "--ignore-not-found", "--wait=false", "-f", &crds]).await?;
        // kubectl itself may miss the end of a deletion, and then waits for minutes
        eventually("the CRDs gone", PATIENCE, || async {
            let left = world.kubectl(&["get", "--ignore-not-found", "-o", "name", "-f", &crds]).await?;
            Ok(if left.trim().is_empty() { Ok(()) } else { Err(left) })
        })
        .await
    };
    let removed = removed.await;
    world.keeping_evidence("crds-of-backends", async { outcome.and(removed) }).await;
}

/// The objects of Flux and Argo CD in the samples, in a namespace that exists.
fn samples() -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for file in ["flux.yaml", "argo-cd.yaml"] {
        let path = product::root().join("samples/virtual-clusters").join(file);
        let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { what: file.into(), source })?;
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|e| Error::Wrong(e.to_string()))?;
        all.extend(objects.into_iter().filter(|object| object["metadata"]["namespace"].is_string()));
    }
    for object in &mut all {
        object["metadata"]["namespace"] = json!("default");
    }
    ensure(all.len() == 3, format!("{all:?}"))?;
    Ok(all)
}

/// Server-side apply, with strict validation and without a write.
async fn dry_run(world: &World, object: &Value) -> Result<()> {
    let io = |source| Error::Io { what: "writing an object".into(), source };
    let file = tempfile::Builder::new().suffix(".json").tempfile().map_err(io)?;
    std::fs::write(file.path(), object.to_string()).map_err(io)?;
    let path = file.path().display().to_string();
    world.kubectl(&["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", &path]).await.map(drop)
}
