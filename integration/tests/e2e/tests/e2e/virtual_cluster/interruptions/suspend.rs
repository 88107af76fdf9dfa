//! A virtual cluster that is stopped and started again, by its field and as `vcluster pause` does it; and what becomes of its volumes.

use e2e::{
    Result, World,
    fixtures::deployment,
    objects::{ensure, patch_tenant},
    virtual_cluster::VERSION,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use serde_json::{Value, json};

use crate::virtual_cluster::{
    Inside, busybox, inside::SPACE, install, remove_virtual_cluster, virtual_cluster_ready, virtual_tenant, volume,
};

const TEAM: &str = "vc-s";
const NODE: &str = "cpu-1";
/// Claims of the first replica, which the `StatefulSet` makes, and of a second one that there was.
const CLAIMS: [&str; 2] = ["data-vc-s-0", "data-vc-s-1"];

#[tokio::test]
async fn stopped_virtual_cluster_keeps_its_data_and_its_volumes_follow_the_policy() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("virtual-cluster-suspend", stopped(&world)).await;
}

async fn stopped(world: &World) -> Result<()> {
    install(world).await?;
    volume(world, TEAM, NODE).await?;
    world.set(&[team("Retain")]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    // other tests find no volume: it goes with its claim
    world.kubectl(&["delete", "persistentvolume", TEAM, "--wait=false"]).await?;
    let inside = Inside::open(world, TEAM).await?;
    let kept = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": SPACE}});
    let spec = busybox(SPACE, "w", "sleep 3600")["spec"].clone();
    inside.must(&["create", "namespace", SPACE]).await?;
    inside.set(&[kept, deployment(SPACE, "w", 1, &spec)]).await?;
    inside.running(1).await?;
    let uid = data(&inside).await?;

    by_the_field(world).await?;
    serves_the_same(world, &inside, &uid).await?;
    by_hand(world).await?;
    serves_the_same(world, &inside, &uid).await?;
    drop(inside);

    second_claim(world).await?;
    remove_virtual_cluster(world, TEAM).await?;
    ensure(claims(world).await? == CLAIMS, format!("kept: {:?}", claims(world).await?))?;
    named_by_the_event(world).await?;
    world.set(&[team("Delete")]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    let inside = Inside::open(world, TEAM).await?;
    let found = data(&inside).await?;
    ensure(found == uid, format!("on the kept volume: before {uid}, now {found}"))?;
    drop(inside);
    remove_virtual_cluster(world, TEAM).await?;
    eventually("no claim of the virtual cluster", PATIENCE, || async {
        let left = claims(world).await?;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
}

/// The tenant, with this policy for its volumes.
fn team(reclaim: &str) -> Value {
    let mut team = virtual_tenant(TEAM, &[]);
    team["spec"]["virtualCluster"] =
        json!({"version": VERSION, "storage": {"size": "1Gi", "class": TEAM, "reclaim": reclaim}});
    team
}

/// Identity of what the team has written inside.
async fn data(inside: &Inside) -> Result<String> {
    inside.must(&["get", "configmap", "-n", SPACE, "kept", "-o", "jsonpath={.metadata.uid}"]).await
}

async fn serves_the_same(world: &World, inside: &Inside, uid: &str) -> Result<()> {
    virtual_cluster_ready(world, TEAM).await?;
    let found = data(inside).await?;
    ensure(found == uid, format!("before {uid}, now {found}"))?;
    inside.running(1).await
}

async fn claims(world: &World) -> Result<Vec<String>> {
    let path = "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}";
    let claims = world.kubectl(&["get", "persistentvolumeclaims", "-n", TEAM, "-o", path]).await?;
    Ok(claims.lines().map(str::to_owned).collect())
}

async fn suspend(world: &World, suspend: bool) -> Result<()> {
    patch_tenant(&world.client, TEAM, json!({"spec": {"virtualCluster": {"suspend": suspend}}})).await.map(drop)
}

async fn paused(world: &World) -> Result<()> {
    let message = ["the control plane is stopped"];
    world.condition_becomes::<GpuTenant>(TEAM, "VirtualClusterReady", "False", "VirtualClusterPaused", &message).await
}

async fn no_pods(world: &World) -> Result<()> {
    eventually("no pod in the namespace", PATIENCE, || async {
        let pods = world.kubectl(&["get", "pods", "-n", TEAM, "-o", "name"]).await?;
        Ok(if pods.is_empty() { Ok(()) } else { Err(pods) })
    })
    .await
}

/// Suspends and resumes by `spec.virtualCluster.suspend`.
async fn by_the_field(world: &World) -> Result<()> {
    suspend(world, true).await?;
    paused(world).await?;
    no_pods(world).await?;
    let claim = world.kubectl(&["get", "pvc", "-n", TEAM, CLAIMS[0], "-o", "jsonpath={.status.phase}"]).await?;
    ensure(claim == "Bound", format!("the claim is {claim}"))?;
    suspend(world, false).await
}

/// Pauses and resumes with what `vcluster pause` and `vcluster resume` write: annotations and replicas of the workload. Meanwhile a change of
/// another object is repaired, and the replicas are not.
async fn by_hand(world: &World) -> Result<()> {
    let change = async |annotations: Value, replicas: i32| {
        let change = json!({"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}}).to_string();
        world.kubectl(&["patch", "statefulset", "-n", TEAM, TEAM, "--type=merge", "-p", &change]).await
    };
    let date = "2026-01-01T00:00:00Z";
    change(json!({"loft.sh/paused": "true", "loft.sh/paused-replicas": "1", "loft.sh/paused-date": date}), 0).await?;
    let synced = format!("vcluster.loft.sh/managed-by={TEAM}");
    world.kubectl(&["delete", "pods", "-n", TEAM, "-l", &synced, "--wait=false"]).await?;
    paused(world).await?;
    no_pods(world).await?;
    world.kubectl(&["label", "service", "-n", TEAM, TEAM, "app=other", "--overwrite"]).await?;
    eventually("the Service as it was", PATIENCE, || async {
        let label = ["get", "service", "-n", TEAM, TEAM, "-o", "jsonpath={.metadata.labels.app}"];
        let label = world.kubectl(&label).await?;
        Ok(if label == "vcluster" { Ok(()) } else { Err(label) })
    })
    .await?;
    let path = "jsonpath={.spec.replicas} {.metadata.annotations.loft\\.sh/paused}";
    let state = world.kubectl(&["get", "statefulset", "-n", TEAM, TEAM, "-o", path]).await?;
    ensure(state == "0 true", format!("replicas and annotation: {state}"))?;
    no_pods(world).await?;
    let nothing = json!({"loft.sh/paused": null, "loft.sh/paused-replicas": null, "loft.sh/paused-date": null});
    change(nothing, 1).await.map(drop)
}

/// A claim as the `StatefulSet` made it for a second replica.
async fn second_claim(world: &World) -> Result<()> {
    let [first, second] = CLAIMS;
    let labels = world.kubectl(&["get", "pvc", "-n", TEAM, first, "-o", "jsonpath={.metadata.labels}"]).await?;
    let labels: Value = serde_json::from_str(&labels).unwrap_or_default();
    ensure(labels["release"] == TEAM, format!("labels of {first}: {labels}"))?;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": TEAM, "resources": {"requests": {"storage": "1Gi"}}});
    let metadata = json!({"name": second, "namespace": TEAM, "labels": labels});
    world.set(&[json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})]).await
}

async fn named_by_the_event(world: &World) -> Result<()> {
    let words = format!("its volumes are kept: PersistentVolumeClaim {}, {} in namespace {TEAM}", CLAIMS[0], CLAIMS[1]);
    eventually("an event that names the kept volumes", PATIENCE, || async {
        let path = "jsonpath={.items[*].message}";
        let selector = format!("reason=VirtualClusterRemoved,involvedObject.name={TEAM}");
        let events =
            world.kubectl(&["get", "events", "-n", "default", "--field-selector", &selector, "-o", path]).await?;
        Ok(if events.contains(&words) { Ok(()) } else { Err(events) })
    })
    .await
}
