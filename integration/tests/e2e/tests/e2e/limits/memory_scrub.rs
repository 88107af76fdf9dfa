//! A node whose driver leaves freed GPU memory as it is: the next pod could read what the pod before it has left there.

use e2e::{
    Result, World,
    fixtures::{pool, tenant, workload},
    objects::{ensure, running},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNode, GpuPool, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;

const NODE: &str = "gpu-1";
const TEAM: &str = "scrubbed";

#[tokio::test]
async fn node_without_scrubbing_gets_no_new_pod_until_the_pool_accepts_it() {
    let world = World::enter().await.unwrap();
    let body = refused_then_accepted(&world).await;
    world.nvsim(NODE, &["registry", ""]).await.unwrap();
    world.keeping_evidence("memory-scrub", async { body }).await;
}

async fn refused_then_accepted(world: &World) -> Result<()> {
    let whole = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "gpu"},
        "spec": {"device": {"whole": {}}, "support": {"expected": "a GPU of its own", "incident": "no GPU"}},
    });
    world.set(&[whole, pool("p", NODE, &["gpu"])]).await?;
    world.set(&[tenant(TEAM, &[("gpu", 2)])]).await?;
    tenant_ready(world, TEAM).await?;
    world.set(&[workload(TEAM, "first", names::WHOLE_GPU_RESOURCE, 1)]).await?;
    let first = world.pods_ready(TEAM, 1).await?;
    world.condition_becomes::<GpuNode>(NODE, "MemoryScrubbed", "True", "Scrubbed", &[]).await?;

    world.nvsim(NODE, &["registry", "RMDisableScrubOnFree=1"]).await?;
    let remedy = &["RMDisableScrubOnFree", "/etc/modprobe.d", "spec.enforcement.unscrubbedMemory"];
    world.condition_becomes::<GpuNode>(NODE, "MemoryScrubbed", "False", "ScrubDisabled", remedy).await?;
    let short = &["2 more cannot be used", "leaves freed memory as it is"];
    world.condition_becomes::<GpuPool>("p", "DemandMet", "False", "Shortage", short).await?;
    world.set(&[workload(TEAM, "second", names::WHOLE_GPU_RESOURCE, 1)]).await?;
    unschedulable(world, "second").await?;
    ensure(running(&world.client, TEAM).await? == first, "the pod that runs keeps its GPU")?;

    let mut accepting = pool("p", NODE, &["gpu"]);
    accepting["spec"]["enforcement"] = json!({"unscrubbedMemory": "Accept"});
    world.set(&[accepting]).await?;
    let both = world.pods_ready(TEAM, 2).await?;
    ensure(first.iter().all(|(name, pod)| both.get(name) == Some(pod)), "the first pod is the same")?;
    world.condition_becomes::<GpuNode>(NODE, "MemoryScrubbed", "False", "ScrubDisabled", &[]).await
}

/// Waits until the pod of a Deployment is Pending for want of a GPU.
async fn unschedulable(world: &World, app: &str) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), TEAM);
    let wanted = format!("Insufficient {}", names::WHOLE_GPU_RESOURCE);
    eventually("a Pending pod", PATIENCE, || async {
        let found = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?.items;
        let conditions = found.iter().flat_map(|p| p.status.iter().flat_map(|s| s.conditions.iter().flatten()));
        let messages: Vec<String> = conditions.filter_map(|c| c.message.clone()).collect();
        Ok(if messages.iter().any(|m| m.contains(&wanted)) { Ok(()) } else { Err(format!("{messages:?}")) })
    })
    .await
}
