//! Outside of a pool's maintenance windows no change starts, and the status has the next window.

use e2e::{
    Result, World,
    fixtures::two_small_pods,
    objects::{self, ensure, set_guarantee},
    wait::{PATIENCE, eventually, observed},
};
use gputenancy_crds::{GpuPool, GpuPoolStatus};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

#[tokio::test]
async fn change_waits_for_maintenance_window() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("windows", wait_for_the_window(&world)).await;
}

async fn wait_for_the_window(world: &World) -> Result<()> {
    two_small_pods(world).await?;
    set_windows(world, json!([{"schedule": far_away(), "duration": "1h", "timeZone": "Europe/Berlin"}])).await?;
    let before = objects::running(&world.client, "small").await?;
    let layout = objects::layouts(&objects::gpu_node(&world.client, "gpu-1").await?);
    set_guarantee(&world.client, "small", "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await?;

    let waiting = eventually("pending changes in the pool's status", PATIENCE, || async {
        let status = status(world).await?;
        Ok(if status.pending.is_empty() { Err(format!("{:?}", status.conditions)) } else { Ok(status) })
    })
    .await?;
    let next = waiting.next_window.expect("a pool with windows has a next one");
    ensure(next.start.0 > Timestamp::now(), format!("the next window has already started: {next:?}"))?;
    let message = &waiting.pending[0].message;
    ensure(message.contains(&format!("nextWindow={}", next.start.0)), format!("no start of the window in: {message}"))?;
    // the operator reconciles the pool again with the window closed, and finds the same
    for minutes in [31, 32, 33] {
        let other = json!({"spec": {"disruption": {"drainTimeout": format!("{minutes}m")}}});
        let pending = observed(&pools(world), "p", &other).await?.status.unwrap_or_default().pending;
        ensure(!pending.is_empty(), "no change is pending")?;
    }
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    ensure(node.spec.gpus.iter().all(|gpu| gpu.change.is_none()), "a change has started")?;
    ensure(objects::layouts(&node) == layout, "the layout has changed")?;
    ensure(objects::running(&world.client, "small").await? == before, "a pod was evicted")?;

    // every minute, for an hour: always open
    set_windows(world, json!([{"schedule": "* * * * *", "duration": "1h"}])).await?;
    e2e::scenario::instances_ready(world, "3g.40gb", 3).await?;
    let after = world.pods_ready("small", 2).await?;
    let stayed = before.iter().filter(|(pod, identity)| after.get(*pod) == Some(*identity)).count();
    ensure(stayed == 1, format!("{stayed} pods unchanged, expected 1: before {before:?}, after {after:?}"))?;
    eventually("no pending change", PATIENCE, || async {
        let pending = status(world).await?.pending;
        Ok(if pending.is_empty() { Ok(()) } else { Err(format!("{pending:?}")) })
    })
    .await
}

/// A schedule with its next window in about half a year.
fn far_away() -> String {
    let month = Timestamp::now().strftime("%m").to_string().parse::<u32>().unwrap();
    format!("0 2 1 {} *", (month + 5) % 12 + 1)
}

async fn set_windows(world: &World, windows: Value) -> Result<()> {
    let patch = json!({"spec": {"disruption": {"windows": windows}}});
    pools(world).patch("p", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn status(world: &World) -> Result<GpuPoolStatus> {
    Ok(pools(world).get("p").await?.status.unwrap_or_default())
}

fn pools(world: &World) -> Api<GpuPool> {
    Api::all(world.client.clone())
}
