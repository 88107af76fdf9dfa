//! Namespaces of a tenant that are deleted alone and do not go: the tenant names what keeps each of them.

use e2e::{Result, World, fixtures::tenant, scenario::tenant_ready};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

const CONFIG_MAP: &str = "blocked-configmap";
const VOLUME: &str = "blocked-volume";
const ITSELF: &str = "blocked-itself";

#[tokio::test]
async fn namespace_that_is_deleted_alone_is_named_with_what_keeps_it() {
    let world = World::enter().await.unwrap();
    let body = each_blocker(&world).await;
    // also after a failure: a namespace with a finalizer would stay for ever
    drop(release(&world).await);
    world.keeping_evidence("namespace-blockers", async { body }).await;
}

/// An object with this body in a namespace.
fn object<K: serde::de::DeserializeOwned>(body: Value) -> Result<K> {
    serde_json::from_value(body).map_err(|e| e2e::Error::Text { what: "an object".into(), why: e.to_string() })
}

async fn each_blocker(world: &World) -> Result<()> {
    let mut blocked = tenant("blocked", &[]);
    blocked["spec"]["namespaces"] = json!([{"name": CONFIG_MAP}, {"name": VOLUME}, {"name": ITSELF}]);
    world.set(&[blocked]).await?;
    tenant_ready(world, "blocked").await?;
    let metadata = json!({"name": "kept", "finalizers": ["example.com/backup"]});
    let maps = Api::<ConfigMap>::namespaced(world.client.clone(), CONFIG_MAP);
    maps.create(&PostParams::default(), &object(json!({"metadata": metadata}))?).await?;
    let metadata = json!({"name": "kept", "finalizers": ["example.com/snapshot"]});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    let claims = Api::<PersistentVolumeClaim>::namespaced(world.client.clone(), VOLUME);
    claims.create(&PostParams::default(), &object(json!({"metadata": metadata, "spec": spec}))?).await?;
    let namespaces = Api::<Namespace>::all(world.client.clone());
    let finalizers = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    namespaces.patch(ITSELF, &PatchParams::default(), &Patch::Merge(finalizers)).await?;
    for name in [CONFIG_MAP, VOLUME, ITSELF] {
        namespaces.delete(name, &DeleteParams::default()).await?;
    }
    let excerpts = [CONFIG_MAP, "example.com/backup", VOLUME, "example.com/snapshot", ITSELF, "example.com/hold"];
    let (type_, reason) = ("NamespacesReady", "NamespaceTerminating");
    world.condition_becomes::<GpuTenant>("blocked", type_, "False", reason, &excerpts).await?;
    release(world).await?;
    tenant_ready(world, "blocked").await.map(drop)
}

/// Removes the finalizers; what is gone already makes no difference.
async fn release(world: &World) -> Result<()> {
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let params = PatchParams::default();
    let maps = Api::<ConfigMap>::namespaced(world.client.clone(), CONFIG_MAP);
    let claims = Api::<PersistentVolumeClaim>::namespaced(world.client.clone(), VOLUME);
    let namespaces = Api::<Namespace>::all(world.client.clone());
    let found = [
        maps.patch("kept", &params, &none).await.map(drop),
        claims.patch("kept", &params, &none).await.map(drop),
        namespaces.patch(ITSELF, &params, &none).await.map(drop),
    ];
    for outcome in found {
        match outcome {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => other?,
        }
    }
    Ok(())
}
