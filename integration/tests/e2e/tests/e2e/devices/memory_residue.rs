//! What a tenant's pod leaves in GPU memory, and what the next tenant's pod on the same device finds there.

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pool, restricted_spec, tenant},
    objects::{allocatable, ensure},
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuNode;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";
/// MiB of the instance beyond which a program with a context gets nothing.
const SEARCHED: u64 = 9000;

#[tokio::test]
async fn pattern_of_a_tenant_is_found_by_the_next_one_only_where_the_driver_does_not_scrub() {
    let world = World::enter().await.unwrap();
    let body = handed_over(&world).await;
    world.nvsim(NODE, &["registry", ""]).await.unwrap();
    world.keeping_evidence("memory-residue", async { body }).await;
}

async fn handed_over(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
    world.set(&[one_device(json!({}))]).await?;
    arrives(world, "first").await?;
    pool_ready(world, "p").await?;
    ensure(allocatable(&world.client, NODE, RESOURCE).await? == 1, "the node has one device, which every tenant gets")?;
    leave(world, "first", 1).await?;

    world.kubectl(&["delete", "gputenant", "first"]).await?;
    arrives(world, "second").await?;
    let found = search(world, "second", 1).await?;
    ensure(found == 0, format!("the second tenant finds {found} lines of the first one's pattern"))?;
    leave(world, "second", 2).await?;

    world.nvsim(NODE, &["registry", "RMDisableScrubOnFree=1"]).await?;
    world.condition_becomes::<GpuNode>(NODE, "MemoryScrubbed", "False", "ScrubDisabled", &[]).await?;
    start(world, "second", "refused", &["search", "--seed", "2"]).await?;
    unschedulable(world, "second", "refused").await?;

    // where the pool accepts such nodes, the same search finds the pattern
    world.kubectl(&["delete", "gputenant", "second"]).await?;
    world.set(&[one_device(json!({"enforcement": {"unscrubbedMemory": "Accept"}}))]).await?;
    arrives(world, "third").await?;
    let found = search(world, "third", 2).await?;
    ensure(found > 0, "without scrubbing the pattern of the tenant before is there")
}

/// A pool of one MIG device.
fn one_device(more: Value) -> Value {
    let mut one = pool("p", NODE, &["mig-1g"]);
    let layout = json!({"mode": "Fixed", "fixed": [{"gpus": "0", "profiles": [{"name": "mig-1g", "count": 1}]}]});
    let spec = one["spec"].take();
    one["spec"] = merged(merged(spec, json!({"layout": layout})), more);
    one
}

async fn arrives(world: &World, name: &str) -> Result<()> {
    world.set(&[tenant(name, &[("mig-1g", 1)])]).await?;
    tenant_ready(world, name).await.map(drop)
}

/// A pod that runs `cuda-work` on the device once.
fn program(namespace: &str, name: &str, arguments: &[&str]) -> Value {
    let command: Vec<&str> = ["/usr/bin/cuda-work"].into_iter().chain(arguments.iter().copied()).collect();
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": command, "resources": {"limits": {RESOURCE: "1"}},
    }));
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": merged(spec, json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 2})),
    })
}

/// Runs a pod to its end, and returns what it printed.
async fn run(world: &World, namespace: &str, name: &str, arguments: &[&str]) -> Result<String> {
    start(world, namespace, name, arguments).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), namespace);
    eventually(&format!("the end of {namespace}/{name}"), PATIENCE, || async {
        let phase = pods.get(name).await?.status.and_then(|status| status.phase);
        Ok(if phase.as_deref() == Some("Succeeded") { Ok(()) } else { Err(format!("{phase:?}")) })
    })
    .await?;
    world.kubectl(&["logs", "-n", namespace, name]).await
}

/// Creates a pod once the quota has counted the end of the one before.
async fn start(world: &World, namespace: &str, name: &str, arguments: &[&str]) -> Result<()> {
    let pod = program(namespace, name, arguments);
    eventually("a free budget", PATIENCE, || async { world.set(std::slice::from_ref(&pod)).await.map(Ok) }).await
}

/// A pod leaves a pattern.
async fn leave(world: &World, namespace: &str, seed: u32) -> Result<()> {
    let text = run(world, namespace, "leaver", &["leave", "--size", "16Mi", "--seed", &seed.to_string()]).await?;
    ensure(text.trim() == "left=16MiB", text)
}

/// How often a pod that searches all memory of its device finds a pattern.
async fn search(world: &World, namespace: &str, seed: u32) -> Result<u64> {
    let text = run(world, namespace, "searcher", &["search", "--seed", &seed.to_string()]).await?;
    let numbers = text.trim().strip_prefix("searched=").and_then(|rest| rest.split_once("MiB found="));
    let numbers = numbers.and_then(|(searched, found)| Some((searched.parse::<u64>().ok()?, found.parse().ok()?)));
    let (searched, found) = numbers.ok_or_else(|| Error::Wrong(text))?;
    ensure(searched > SEARCHED, format!("only {searched} MiB searched"))?;
    Ok(found)
}

/// Waits until a pod is Pending for want of a device.
async fn unschedulable(world: &World, namespace: &str, name: &str) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), namespace);
    let wanted = format!("Insufficient {RESOURCE}");
    eventually("a Pending pod", PATIENCE, || async {
        let conditions = pods.get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        let messages: Vec<String> = conditions.into_iter().filter_map(|condition| condition.message).collect();
        Ok(if messages.iter().any(|m| m.contains(&wanted)) { Ok(()) } else { Err(format!("{messages:?}")) })
    })
    .await
}
