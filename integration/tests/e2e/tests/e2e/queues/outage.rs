//! Kueue is not installed, does not run, or has a queue of another writer: no quota is raised, and the queues recover without help.

use e2e::{
    Result, World,
    fixtures::{mig_profile, workload},
    objects::{ensure, running},
    scenario::{MIG_1G, TEAM_A, TEAM_B, pool_ready},
    wait::observed,
};
use gputenancy_crds::{GpuTenant, names};
use kube::{Api, ResourceExt as _, api::DynamicObject};
use serde_json::{Value, json};

use super::{
    kueue::{API, Kueue},
    scene::{POOL, all_ready, in_lab, queue_ready, queued_pool, team, wall, wall_becomes, with_queues},
    work::{State, end, job, state_becomes},
    workloads::{of_kueue, waits},
};

/// The name of the second team's queue.
const QUEUE: &str = "gput-team-b";

#[tokio::test]
async fn without_kueue_nothing_is_widened_and_it_recovers() {
    in_lab("queues-outage", recovers).await;
}

async fn recovers(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    kueue.remove().await?;
    with_queues(world).await?;
    not_installed(world).await?;
    Box::pin(kueue.start()).await?;
    all_ready(world, &[TEAM_A]).await?;
    wall_becomes(world, TEAM_A, MIG_1G, 3).await?;
    stopped(world, kueue).await?;
    foreign(world).await
}

/// The quota stays at the guarantee, and admits pods within it.
async fn not_installed(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), queued_pool(&["mig-1g"])]).await?;
    world.set(&[team(TEAM_A, "mig-1g", json!({"count": 2, "borrow": 1}))]).await?;
    world.condition_becomes::<GpuTenant>(TEAM_A, "QueueReady", "False", "QueuePending", &["Kueue"]).await?;
    pool_ready(world, POOL).await?;
    wall_becomes(world, TEAM_A, MIG_1G, 2).await?;
    world.set(&[workload(TEAM_A, "w", MIG_1G, 1)]).await?;
    world.pods_ready(TEAM_A, 1).await?;
    still_admits(world, 2, "guests").await
}

/// Pods and quota stay as they are while Kueue does not run; a waiting Job is admitted once it runs again.
async fn stopped(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    // the Deployment's pod has the other device of the guarantee
    world.set(&[job(TEAM_A, "one", MIG_1G, 1)]).await?;
    state_becomes(world, TEAM_A, "one", State::Running).await?;
    world.set(&[job(TEAM_A, "two", MIG_1G, 1)]).await?;
    waits(world, TEAM_A, "two").await?;
    let before = world.pods_ready(TEAM_A, 2).await?;

    kueue.stop().await?;
    still_admits(world, 3, "others").await?;
    let now = running(&world.client, TEAM_A).await?;
    ensure(now == before, format!("pods before {before:?}, without Kueue {now:?}"))?;
    world.kubectl(&["delete", "job", "-n", TEAM_A, "one", "--wait=false"]).await?;
    kueue.resume().await?;
    state_becomes(world, TEAM_A, "two", State::Running).await?;
    end(world, TEAM_A, "two").await
}

/// The operator reconciles the team again, and leaves its quota at so many devices.
async fn still_admits(world: &World, devices: i64, viewers: &str) -> Result<()> {
    let teams = Api::<GpuTenant>::all(world.client.clone());
    observed(&teams, TEAM_A, &json!({"spec": {"viewers": [{"kind": "Group", "name": viewers}]}})).await?;
    let now = wall(world, TEAM_A, MIG_1G).await?;
    ensure(now == devices, format!("the quota admits {now} devices, expected {devices}"))
}

/// A queue of another writer stays as it is, and its team at its guarantee, until the queue is deleted.
async fn foreign(world: &World) -> Result<()> {
    let theirs = json!({"namespaceSelector": {}, "queueingStrategy": "StrictFIFO"});
    world
        .set(&[json!({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": QUEUE}, "spec": theirs})])
        .await?;
    let before = spec(world).await?;
    world.set(&[team(TEAM_B, "mig-1g", json!({"count": 1, "borrow": 1}))]).await?;
    let named = ["ClusterQueue gput-team-b", "delete it"];
    world.condition_becomes::<GpuTenant>(TEAM_B, "QueueReady", "False", "QueueForeign", &named).await?;
    wall_becomes(world, TEAM_B, MIG_1G, 1).await?;
    let after = spec(world).await?;
    ensure(after == before, format!("the queue of another writer before {before:?}, after {after:?}"))?;
    world.kubectl(&["delete", "clusterqueues.kueue.x-k8s.io", QUEUE, "--timeout=2m"]).await?;
    queue_ready(world, TEAM_B).await?;
    wall_becomes(world, TEAM_B, MIG_1G, 2).await
}

/// The spec of the second team's queue, and who manages it.
async fn spec(world: &World) -> Result<(Value, Option<String>)> {
    let queues = Api::<DynamicObject>::all_with(world.client.clone(), &of_kueue("ClusterQueue"));
    let queue = queues.get(QUEUE).await?;
    Ok((queue.data["spec"].clone(), queue.labels().get(names::MANAGED_BY_LABEL).cloned()))
}
