//! A pool that demands limits of its shares: nodes whose agent cannot limit them offer none, and what is in use is published.

use e2e::{
    Result, World,
    fixtures::{merged, pool, tenant, workload},
    objects::{self, ensure},
    product,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, GpuTenant, Isolation, names};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const SHARED: &str = "nvidia.com/gpu.shared";

#[tokio::test]
async fn shares_are_offered_only_where_they_are_limited_as_the_pool_demands() {
    let world = World::enter().await.unwrap();
    let outcome = demanded(&world).await;
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("enforcement", async { outcome }).await;
}

async fn demanded(world: &World) -> Result<()> {
    product::install(&world.lab, &["agent.memoryLimits=None"]).await?;
    world.set(&objects_of_the_test()).await?;

    // no limits: no shares, and the pool says why
    let excerpts = ["profile turns", "None on gpu-1", "set agent.memoryLimits: Shim"];
    world.condition_becomes::<GpuPool>("p", "EnforcementMet", "False", "EnforcementTooWeak", &excerpts).await?;
    world
        .condition_becomes::<GpuTenant>("t", "CapacityReady", "False", "Shortage", &["spec.enforcement.minimum"])
        .await?;
    ensure(shares(world).await? == (0, 0), "shares exist on a node without limits")?;

    // limits: shares, and the means on node, label and tenant
    product::install(&world.lab, &[]).await?;
    world.condition_becomes::<GpuPool>("p", "EnforcementMet", "True", "MinimumMet", &["Software"]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    let offered = shares(world).await?;
    ensure(offered == (4, 4), format!("of shares that exist and are free: {offered:?}"))?;
    world.set(&[workload("t", "w", SHARED, 1)]).await?;
    let before = world.pods_ready("t", 1).await?;
    published(world, Isolation::Software).await?;
    world.condition_becomes::<GpuTenant>("t", "MemoryLimited", "True", "Limited", &["Software"]).await?;

    // the limits end: no new pod gets a share, and the one that runs keeps its own
    product::install(&world.lab, &["agent.memoryLimits=None"]).await?;
    world.condition_becomes::<GpuPool>("p", "EnforcementMet", "False", "EnforcementTooWeak", &["gpu-1"]).await?;
    published(world, Isolation::None).await?;
    world.condition_becomes::<GpuTenant>("t", "MemoryLimited", "False", "NotLimited", &["GPU", "node gpu-1"]).await?;
    eventually("the idle shares to be withdrawn", PATIENCE, || async {
        let found = (shares(world).await?, objects::allocatable(&world.client, NODE, SHARED).await?);
        // kubelet counts the device of the pod until it ends
        Ok(if found.0 == (4, 0) && found.1 <= 1 { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await?;
    ensure(objects::running(&world.client, "t").await? == before, "the pod is not disturbed")
}

/// A profile of time-slices, a pool that demands limits, and a team.
fn objects_of_the_test() -> [Value; 3] {
    let profile = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {"device": {"timeSlice": {"replicas": 4}}, "support": {"expected": "neighbours", "incident": "less memory"}},
    });
    let mut pool = pool("p", NODE, &["turns"]);
    pool["spec"]["enforcement"] = json!({"minimum": "Software"});
    let mut team = tenant("t", &[("turns", 2)]);
    let spec = team["spec"].take();
    team["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    [profile, pool, team]
}

/// Time-slices of the pool that exist, and those that a new pod could get.
async fn shares(world: &World) -> Result<(i32, i32)> {
    let pool = Api::<GpuPool>::all(world.client.clone()).get("p").await?;
    let profiles = pool.status.map(|status| status.profiles).unwrap_or_default();
    let turns = profiles.iter().find(|p| p.name == "turns");
    Ok(turns.map_or((0, 0), |p| (p.total, p.free)))
}

/// Waits until node, label and tenant name this means.
async fn published(world: &World, means: Isolation) -> Result<()> {
    eventually(&format!("{means} on node, label and tenant"), PATIENCE, || async {
        let node = Api::<Node>::all(world.client.clone()).get(NODE).await?;
        let label = node.labels().get(names::ENFORCEMENT_LABEL).cloned();
        let status = objects::gpu_node(&world.client, NODE).await?.status.unwrap_or_default();
        let given = status.enforcement.map(|given| given.time_slice);
        let tenant = Api::<GpuTenant>::all(world.client.clone()).get("t").await?;
        let used = tenant.status.and_then(|status| status.enforcement);
        let all = label.as_deref() == Some(means.as_str()) && given == Some(means) && used == Some(means);
        Ok(if all { Ok(()) } else { Err(format!("label {label:?}, node {given:?}, tenant {used:?}")) })
    })
    .await
}
