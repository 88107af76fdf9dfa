//! Memory limits by the driver: a program that loads the driver's library itself, as one that is linked statically, is held to its share.

use e2e::{
    Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::{self, ensure},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, Isolation};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const SHARED: &str = "nvidia.com/gpu.shared";
const TEAM: &str = "t";

#[tokio::test]
async fn program_that_bypasses_the_library_is_stopped_by_the_driver_where_it_has_limits() {
    let world = World::enter().await.unwrap();
    let outcome = bypassing_program(&world).await;
    world.nvsim(NODE, &["memory-limits", "false"]).await.unwrap();
    world.keeping_evidence("driver-limits", async { outcome }).await;
}

async fn bypassing_program(world: &World) -> Result<()> {
    let turns = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {"device": {"timeSlice": {"replicas": 4}}, "support": {"expected": "neighbours", "incident": "less memory"}},
    });
    let mut supply = pool("p", NODE, &["turns"]);
    supply["spec"]["enforcement"] = json!({"minimum": "Driver"});
    let mut team = tenant(TEAM, &[("turns", 2)]);
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(team["spec"].take(), sharing);
    world.set(&[turns, supply, team]).await?;

    // the older driver: the library alone is weaker than the pool demands
    let excerpts = ["profile turns", "Software on gpu-1"];
    world.condition_becomes::<GpuPool>("p", "EnforcementMet", "False", "EnforcementTooWeak", &excerpts).await?;
    world.nvsim(NODE, &["memory-limits", "true"]).await?;
    world.condition_becomes::<GpuPool>("p", "EnforcementMet", "True", "MinimumMet", &["Driver"]).await?;
    tenant_ready(world, TEAM).await?;
    let status = objects::gpu_node(&world.client, NODE).await?.status.unwrap_or_default();
    let given = status.enforcement.map(|given| (given.time_slice, given.fraction));
    ensure(given == Some((Isolation::Driver, Isolation::Driver)), format!("GpuNode.status.enforcement: {given:?}"))?;

    // 20,352 MiB less 300 for the simulated context are 313 blocks of 64 MiB; the library would permit 308
    world.set(&[program("greedy", "--library /run/gputenancy/driver/libcuda.so.1 ")]).await?;
    world.set(&[program("neighbour", "")]).await?;
    let greedy = printed(world, "greedy").await?;
    ensure(greedy.contains("granted=313 code=2"), format!("past the library: {greedy}"))?;
    let neighbour = printed(world, "neighbour").await?;
    ensure(neighbour.contains("granted=308 code=2"), format!("with the library: {neighbour}"))?;
    let node = objects::gpu_node(&world.client, NODE).await?;
    let means: Vec<_> = node.status.iter().flat_map(|s| &s.gpus).filter_map(|gpu| gpu.enforcement).collect();
    ensure(!means.is_empty() && means.iter().all(|means| *means == Isolation::Driver), format!("{means:?}"))?;

    // the limits end with the pods, and none is left behind
    world.kubectl(&["delete", "deployment", "-n", TEAM, "--all"]).await?;
    eventually("no limit left in the driver", PATIENCE, || async {
        let state = world.on_node(NODE, &["cat", "/run/nvidia/driver/run/nvsim/state.json"]).await?;
        let state: Value = serde_json::from_str(&state).unwrap_or_default();
        let set = state["memory_limits"]["set"].as_array().cloned().unwrap_or_default();
        let mut left = Vec::new();
        for limit in &set {
            let cgroup = limit["cgroup"].as_str().unwrap_or_default();
            let folder = cgroup.strip_prefix("/host").unwrap_or(cgroup);
            if world.on_node(NODE, &["test", "-d", folder]).await.is_ok() {
                left.push(folder.to_owned());
            }
        }
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
}

/// A Deployment of one pod that takes what it gets. It waits until the agent has found its cgroup.
fn program(name: &str, library: &str) -> Value {
    let script = format!("sleep 5; exec /usr/bin/cuda-work {library}allocate --count 2000 --hold");
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script], "resources": {"limits": {SHARED: "1"}},
    }));
    deployment(TEAM, name, 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}

/// What the program printed, once it has printed its result.
async fn printed(world: &World, name: &str) -> Result<String> {
    let selector = format!("app={name}");
    eventually(&format!("output of {name}"), PATIENCE, || async {
        let text = world.kubectl(&["logs", "-n", TEAM, "-l", &selector]).await.unwrap_or_default();
        if text.contains("granted=") {
            return Ok(Ok(text));
        }
        let pods = world.kubectl(&["get", "pods", "-n", TEAM, "-l", &selector, "-o", "wide"]).await?;
        Ok(Err(format!("{text}{pods}")))
    })
    .await
}
