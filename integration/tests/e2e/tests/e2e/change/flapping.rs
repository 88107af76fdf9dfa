//! Two deployment tools that write one guarantee: the GPUs follow a few of the changes, the pool names both, and the last value is served.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant},
    objects::ensure,
    scenario::{NODES, instances_ready, pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, GpuTenant};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// Changes of mind, and the time between two: longer than a change of the layout takes here.
const FLIPS: usize = 16;
const BETWEEN: std::time::Duration = std::time::Duration::from_secs(3);

/// Driver operations on both nodes, from the simulator's history.
async fn operations(world: &World) -> Result<usize> {
    let mut count = 0;
    for node in NODES {
        let history = world.nvsim(node, &["history"]).await?;
        let changes = |line: &&str| ["create", "destroy", "mode", "reset"].iter().any(|event| line.contains(event));
        count += history.lines().filter(changes).count();
    }
    Ok(count)
}

/// Applies the guarantees as a deployment tool does, which takes the fields from other tools: all GPUs for small devices, or one for large ones.
async fn writes(world: &World, manager: &str, large: bool) -> Result<()> {
    let tenants = Api::<GpuTenant>::all(world.client.clone());
    let (small, large) = if large { (7, 2) } else { (14, 0) };
    let object = tenant("tug", &[("mig-1g", small), ("mig-3g", large)]);
    tenants.patch("tug", &PatchParams::apply(manager).force(), &Patch::Apply(object)).await?;
    Ok(())
}

#[tokio::test]
async fn guarantee_that_two_writers_flip_changes_the_layout_a_few_times_and_names_both() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("flapping", fight(&world)).await;
}

async fn fight(world: &World) -> Result<()> {
    let mut flapping = pool("p", "gpu-1", &["mig-1g", "mig-3g"]);
    flapping["spec"]["disruption"]["settleTime"] = json!("20s");
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), flapping]).await?;
    writes(world, "argocd", false).await?;
    tenant_ready(world, "tug").await?;
    pool_ready(world, "p").await?;
    // one edit, which is followed at once
    let before = operations(world).await?;
    writes(world, "argocd", true).await?;
    instances_ready(world, "3g.40gb", 2).await?;
    pool_ready(world, "p").await?;
    let one_edit = operations(world).await? - before;
    ensure(one_edit > 0, "an edit without driver operations")?;
    world.condition_becomes::<GpuPool>("p", "DemandFlapping", "False", "DemandSettled", &[]).await?;

    let before = operations(world).await?;
    for flip in 0..FLIPS {
        let (manager, large) = if flip % 2 == 0 { ("flux", false) } else { ("argocd", true) };
        writes(world, manager, large).await?;
        tokio::time::sleep(BETWEEN).await;
    }
    writes(world, "flux", false).await?;
    let named = ["guarantee of tenant tug for mig-1g", "written by argocd, flux"];
    world.condition_becomes::<GpuPool>("p", "DemandFlapping", "True", "Flapping", &named).await?;
    let pools = Api::<GpuPool>::all(world.client.clone());
    let status = pools.get("p").await?.status.unwrap_or_default();
    let writers: Vec<&[String]> = status.flapping.iter().map(|f| f.writers.as_slice()).collect();
    ensure(writers == [["argocd", "flux"]; 2], format!("{:?}", status.flapping))?;
    let events = pod_events(world, "default", "Flapping").await?;
    ensure(!events.is_empty(), "no event when it begins")?;

    // the last value is served when it has stayed
    eventually("the last value to be planned", PATIENCE, || async {
        let flapping = pools.get("p").await?.status.unwrap_or_default().flapping;
        let planned = flapping.iter().all(|f| f.wanted == f.planned && f.planned_at.is_none());
        Ok(if planned { Ok(()) } else { Err(format!("{flapping:?}")) })
    })
    .await?;
    instances_ready(world, "1g.10gb", 14).await?;
    tenant_ready(world, "tug").await?;
    let fought = operations(world).await? - before;
    // four changes of the layout at most, of which one may be undone in the middle
    ensure(fought <= 5 * one_edit, format!("{fought} driver operations in {FLIPS} flips, {one_edit} for one edit"))
}
