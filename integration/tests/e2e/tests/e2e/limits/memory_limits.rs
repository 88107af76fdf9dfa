//! Memory limits of shares by the shim: two teams on one GPU, through CUDA's own interface.

use e2e::{
    Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::{self, ensure},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::Isolation;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const SHARED: &str = "nvidia.com/gpu.shared";
const PART: &str = "gputenancy.io/part";

#[tokio::test]
async fn greedy_team_on_a_shared_gpu_is_held_to_its_part_and_its_neighbour_allocates_undisturbed() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("memory-limits", async { two_teams(&world).await }).await;
}

async fn two_teams(world: &World) -> Result<()> {
    let profile = |name: &str, device: Value| {
        json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
            "spec": {"device": device, "support": {"expected": "neighbours", "incident": "less memory than the part"}},
        })
    };
    world.set(&[profile("turns", json!({"timeSlice": {"replicas": 4}}))]).await?;
    world.set(&[profile("part", json!({"fraction": {"memory": "10Gi", "compute": 20}}))]).await?;
    world.set(&[pool("p", NODE, &["turns", "part"])]).await?;
    let team = |name: &str, guaranteed: &[(&str, i32)]| {
        let mut team = tenant(name, guaranteed);
        let spec = team["spec"].take();
        let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
        team["spec"] = merged(spec, sharing);
        team
    };
    world.set(&[team("greedy", &[("turns", 2)]), team("modest", &[("turns", 2), ("part", 1)])]).await?;
    tenant_ready(world, "greedy").await?;
    tenant_ready(world, "modest").await?;

    // (81,920 - 512) / 4 - 640 MiB: 308 blocks of 64 MiB
    let all = ["--count", "2000", "--hold"];
    world.set(&[program("greedy", "taker", SHARED, &all)]).await?;
    let taken = printed(world, "greedy", "taker").await?;
    ensure(taken.contains("granted=308 code=2"), format!("the greedy team got {taken}"))?;
    ensure(taken.contains("total=19712MiB free=0MiB device=19712MiB"), format!("what it sees: {taken}"))?;
    // both have a share of the one time-sliced GPU
    world
        .set(&[program("modest", "neighbour", SHARED, &["--count", "100", "--size", "190Mi", "--all", "--hold"])])
        .await?;
    let neighbour = printed(world, "modest", "neighbour").await?;
    ensure(neighbour.contains("granted=100 code=0"), format!("the neighbour got {neighbour}"))?;
    world.set(&[program("modest", "fraction", PART, &all)]).await?;
    let part = printed(world, "modest", "fraction").await?;
    ensure(part.contains("granted=160 code=2"), format!("10 GiB are 160 blocks: {part}"))?;
    ensure(part.contains("total=10240MiB"), format!("what it sees: {part}"))?;

    let node = objects::gpu_node(&world.client, NODE).await?;
    let means: Vec<_> = node.status.iter().flat_map(|status| &status.gpus).map(|gpu| gpu.enforcement).collect();
    ensure(means == [Some(Isolation::Software); 2], format!("GpuNode.status.gpus[].enforcement: {means:?}"))?;

    // the same container again, without a new allocation: what its killed program held is free
    let id = world.kubectl(&["get", "pods", "-n", "greedy", "-l", "app=taker", "-o", "name"]).await?;
    let kill = ["exec", "-n", "greedy", id.trim(), "--", "/bin/sh", "-c", "kill -9 1; kill 1"];
    // the program ends with its container, and the answer of exec with both
    let _ = world.kubectl(&kill).await;
    eventually("the taker again after a restart of its container", PATIENCE, || async {
        let pods = world.kubectl(&["get", "pods", "-n", "greedy", "-l", "app=taker", "-o", RESTARTS]).await?;
        let text = world.kubectl(&["logs", "-n", "greedy", "-l", "app=taker"]).await.unwrap_or_default();
        let again = pods.trim() == "1" && text.contains("granted=308 code=2");
        Ok(if again { Ok(()) } else { Err(format!("{pods} restarts: {text}")) })
    })
    .await
}

/// Number of restarts of a pod's container.
const RESTARTS: &str = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";

/// A Deployment of one pod that allocates.
fn program(namespace: &str, name: &str, resource: &str, arguments: &[&str]) -> Value {
    let command: Vec<&str> = ["/usr/bin/cuda-work", "allocate"].into_iter().chain(arguments.iter().copied()).collect();
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": command, "resources": {"limits": {resource: "1"}},
    }));
    deployment(namespace, name, 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}

/// What the program printed, once it has printed both lines.
async fn printed(world: &World, namespace: &str, name: &str) -> Result<String> {
    let selector = format!("app={name}");
    eventually(&format!("output of {namespace}/{name}"), PATIENCE, || async {
        let text = world.kubectl(&["logs", "-n", namespace, "-l", &selector]).await.unwrap_or_default();
        if text.contains("total=") {
            return Ok(Ok(text));
        }
        let pods = world.kubectl(&["get", "pods", "-n", namespace, "-l", &selector, "-o", "wide"]).await?;
        Ok(Err(format!("{text}{pods}")))
    })
    .await
}
