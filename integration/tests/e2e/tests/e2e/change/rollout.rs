//! Staged rollouts: one node first, the others after the soak time, and none after a failure.

use e2e::{
    Result, World,
    fixtures::{merged, mig_profile, pool},
    objects::{self, ensure, layouts},
    scenario::{pod_events, pool_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuPool;
use kube::Api;
use serde_json::{Value, json};

const NODES: [&str; 2] = ["gpu-1", "gpu-2"];
const CALL: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

/// A pool of both nodes whose first GPUs have so many small instances.
fn both(count: i32) -> Value {
    let mut both = pool("p", NODES[0], &["slice"]);
    let spec = json!({
        "nodeSelector": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": NODES}]},
        "layout": {"mode": "Fixed", "fixed": [{"gpus": "0", "profiles": [{"name": "slice", "count": count}]}]},
        "rollout": {"canaryNodes": 1, "soak": "20s"},
    });
    let mut old = both["spec"].take();
    old.as_object_mut().unwrap().remove("nodeSelector");
    both["spec"] = merged(old, spec);
    both
}

/// Small instances on the first GPU of each node.
async fn slices(world: &World) -> Result<[usize; 2]> {
    let mut counts = [0; 2];
    for (node, count) in NODES.iter().zip(&mut counts) {
        let all = layouts(&objects::gpu_node(&world.client, node).await?);
        *count = all.iter().flatten().filter(|i| i.ends_with("1g.10gb")).count();
    }
    Ok(counts)
}

async fn rolled_out(world: &World, status: &str, reason: &str, excerpts: &[&str]) -> Result<()> {
    world.condition_becomes::<GpuPool>("p", "RolledOut", status, reason, excerpts).await
}

#[tokio::test]
async fn new_layout_is_served_by_one_node_first_and_a_failure_stops_it() {
    let world = World::enter().await.unwrap();
    let body = staged(&world).await;
    for node in NODES {
        world.nvsim(node, &["clear-faults"]).await.unwrap();
    }
    world.keeping_evidence("rollout", async { body }).await;
}

async fn staged(world: &World) -> Result<()> {
    world.set(&[mig_profile("slice", "1g.10gb"), both(2)]).await?;
    rolled_out(world, "False", "RolloutSoaking", &["slice", "other nodes follow"]).await?;
    let first = slices(world).await?;
    ensure(first == [2, 0] || first == [0, 2], format!("during the first soak time: {first:?}"))?;
    rolled_out(world, "True", "RolledOut", &[]).await?;
    pool_ready(world, "p").await?;
    ensure(slices(world).await? == [2, 2], "both nodes")?;

    // another layout
    world.set(&[both(3)]).await?;
    rolled_out(world, "False", "RolloutSoaking", &["spec.layout.fixed"]).await?;
    let second = slices(world).await?;
    ensure(second == [3, 2] || second == [2, 3], format!("during the second soak time: {second:?}"))?;
    eventually("the other node's message", PATIENCE, || async {
        let pool = Api::<GpuPool>::all(world.client.clone()).get("p").await?;
        let pending: Vec<String> = pool.status.unwrap_or_default().pending.into_iter().map(|p| p.message).collect();
        let named = pending.iter().any(|m| m.contains("serves spec.layout.fixed first; other nodes follow at"));
        Ok(if named || slices(world).await? == [3, 3] { Ok(()) } else { Err(format!("{pending:?}")) })
    })
    .await?;
    rolled_out(world, "True", "RolledOut", &[]).await?;
    pool_ready(world, "p").await?;
    ensure(slices(world).await? == [3, 3], "both nodes")?;

    // a layout that fails wherever it begins
    for node in NODES {
        world.nvsim(node, &["inject", "--call", CALL, "--code", "999", "--times", "0"]).await?;
    }
    world.set(&[both(4)]).await?;
    rolled_out(world, "False", "RolloutStopped", &["spec.layout.fixed", CALL, "no other node begins"]).await?;
    // written after the condition
    eventually("an event about the stop", PATIENCE, || async {
        let stopped = pod_events(world, "default", "RolloutStopped").await?;
        Ok(if stopped.is_empty() { Err("none".to_owned()) } else { Ok(()) })
    })
    .await?;
    let tried = changed_nodes(world).await?;
    ensure(tried.len() == 1, format!("changes began on {tried:?}"))?;
    ensure(slices(world).await? == [3, 3], "the old layout is back, and the other node has kept it")?;

    // back to what was proven: at once, on no node first
    for node in NODES {
        world.nvsim(node, &["clear-faults"]).await?;
    }
    world.set(&[both(3)]).await?;
    rolled_out(world, "True", "RolledOut", &[]).await?;
    pool_ready(world, "p").await.map(drop)
}

/// Nodes with a change in progress or a failed one.
async fn changed_nodes(world: &World) -> Result<Vec<&'static str>> {
    let mut changed = Vec::new();
    for name in NODES {
        let node = objects::gpu_node(&world.client, name).await?;
        if node.spec.gpus.iter().any(|gpu| gpu.change.is_some()) {
            changed.push(name);
        }
    }
    Ok(changed)
}
