//! Outside a pool's maintenance windows nothing moves, and the status tells when it will.

use e2e::{
    Result, World,
    objects::{self, ensure, set_guarantee},
    scene::two_small_pods,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, GpuPoolStatus};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

#[tokio::test]
async fn outside_the_window_nothing_moves_and_the_pool_says_when_it_opens() {
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

    let told = eventually("the pool says what waits for the window", PATIENCE, || async {
        let status = status(world).await?;
        Ok(if status.pending.is_empty() { Err(format!("{:?}", status.conditions)) } else { Ok(status) })
    })
    .await?;
    let next = told.next_window.expect("a pool with windows has a next one");
    ensure(next.start.0 > Timestamp::now(), format!("the window is yet to open: {next:?}"))?;
    let message = &told.pending[0].message;
    ensure(message.contains(&format!("nextWindow={}", next.start.0)), format!("it tells when: {message}"))?;
    // a pass of the operator takes less than a second; ten of them have seen the closed window by then
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    ensure(node.spec.gpus.iter().all(|gpu| gpu.change.is_none()), "no change has begun")?;
    ensure(objects::layouts(&node) == layout, "the layout is as it was")?;
    ensure(objects::running(&world.client, "small").await? == before, "nobody was evicted")?;

    // every minute, for an hour: always open
    set_windows(world, json!([{"schedule": "* * * * *", "duration": "1h"}])).await?;
    e2e::story::settled(world, "3g.40gb", 3).await?;
    let after = world.pods_ready("small", 2).await?;
    let stayed = before.iter().filter(|(pod, life)| after.get(*pod) == Some(*life)).count();
    ensure(stayed == 1, format!("one pod moved, one stayed: before {before:?}, after {after:?}"))?;
    eventually("nothing waits any more", PATIENCE, || async {
        let pending = status(world).await?.pending;
        Ok(if pending.is_empty() { Ok(()) } else { Err(format!("{pending:?}")) })
    })
    .await
}

/// A schedule whose next opening is about half a year from now.
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
