//! What tests of queues begin and end with: a lab with Kueue and the product, a pool with queues, and teams that borrow and lend.

use e2e::{
    Error, Result, World,
    fixtures::{merged, pool, tenant},
    mig_manager, product,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use serde_json::{Value, json};

use super::kueue::Kueue;

/// The chart's value with which the operator writes queues.
pub const WITH_QUEUES: &str = "queueing.kueue.enabled=true";
/// The pool, and its node.
pub const POOL: &str = "p";
pub const NODE: &str = "gpu-1";

/// Runs the body of a test. Afterwards, and also when it fails, Kueue is removed, and the product is installed without queues.
pub async fn in_lab(test: &'static str, body: impl AsyncFn(&World, &Kueue<'_>) -> Result<()>) {
    let world = World::attach().await.unwrap();
    let kueue = Kueue::new(&world, test);
    let outcome = Box::pin(body(&world, &kueue)).await;
    if outcome.is_err() {
        // what cannot be kept must not hide the failure
        let _ = kueue.evidence().await;
        let _ = world.lab.collect(test).await;
    }
    let cleaned = Box::pin(clean(&world, &kueue)).await;
    match outcome {
        Ok(()) => world.keeping_evidence(test, async { cleaned }).await,
        Err(error) => panic!("{test}: {error}"),
    }
}

/// Each step runs, also after one that has failed.
async fn clean(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    let disconnected = world.disconnect_kueue().await;
    // an operator with queues would write again what is removed
    let without_queues = product::install_with(&world.lab, &[], &["--force-conflicts"]).await.map(drop);
    let removed = kueue.remove().await;
    let reinstalled = world.reinstall(&[]).await;
    disconnected.and(without_queues).and(removed).and(reinstalled)
}

/// Installs Kueue, and then the product with queues.
pub async fn installed(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    Box::pin(kueue.start()).await?;
    with_queues(world).await
}

/// Installs the product with queues, and removes the objects of earlier tests.
pub async fn with_queues(world: &World) -> Result<()> {
    world.reinstall(&[WITH_QUEUES]).await?;
    mig_manager::remove(world).await
}

/// The pool, with queues of Kueue and these profiles.
pub fn queued_pool(profiles: &[&str]) -> Value {
    let mut queued = pool(POOL, NODE, profiles);
    queued["spec"]["queueing"] = json!({"system": "Kueue"});
    queued
}

/// A team with `count`, `borrow` and `lend` of one profile.
pub fn team(name: &str, profile: &str, limits: Value) -> Value {
    let mut team = tenant(name, &[]);
    team["spec"]["gpus"] = json!([merged(json!({"profile": profile}), limits)]);
    team
}

/// Waits until pool and teams are Ready, and Kueue admits the teams' Jobs.
pub async fn all_ready(world: &World, teams: &[&str]) -> Result<()> {
    for team in teams {
        tenant_ready(world, team).await?;
        queue_ready(world, team).await?;
    }
    pool_ready(world, POOL).await.map(drop)
}

/// Waits until the team's queue is as the operator writes it, and Kueue gives it to Jobs that name none.
pub async fn queue_ready(world: &World, team: &str) -> Result<()> {
    world.condition_becomes::<GpuTenant>(team, "QueueReady", "True", "Queued", &[]).await?;
    let queue = "localqueues.kueue.x-k8s.io/default";
    world.kubectl(&["wait", "--for=condition=Active", queue, "-n", team, "--timeout=2m"]).await.map(drop)
}

/// Devices of a resource that the quota of a namespace admits.
pub async fn wall(world: &World, namespace: &str, resource: &str) -> Result<i64> {
    let quota = Api::<ResourceQuota>::namespaced(world.client.clone(), namespace).get("gputenancy").await?;
    let hard = quota.status.and_then(|status| status.hard).unwrap_or_default();
    let devices = hard.get(&format!("requests.{resource}")).and_then(|devices| devices.0.parse().ok());
    devices.ok_or_else(|| Error::Wrong(format!("quota of {namespace}: {hard:?}")))
}

/// Waits until the quota of a namespace admits so many devices of a resource.
pub async fn wall_becomes(world: &World, namespace: &str, resource: &str, devices: i64) -> Result<()> {
    eventually(&format!("quota of {devices} of {resource} in {namespace}"), PATIENCE, || async {
        let now = wall(world, namespace, resource).await?;
        Ok(if now == devices { Ok(()) } else { Err(format!("{now}")) })
    })
    .await
}
