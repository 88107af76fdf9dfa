//! The sample `GitOps` repository, applied with the teams before the platform; health by Argo CD's script.

use ::gitops::{health, samples, text};
use e2e::{
    Result, World,
    objects::ensure,
    wait::{PATIENCE, eventually},
};
use serde_json::Value;

const KINDS: &str = "gpuprofiles,gpupools,gputenants";

#[tokio::test]
async fn tenants_applied_before_the_platform_become_healthy() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        apply(&world, "teams").await?;
        let early = "Degraded: profile mig-1g does not exist";
        health_becomes(&world, "GpuTenant/ci", early).await?;
        apply(&world, "platform/overlays/lab").await?;
        for tenant in ["ci", "notebooks", "research", "serving", "vision"] {
            health_becomes(&world, &format!("GpuTenant/{tenant}"), "Healthy").await?;
        }
        for object in ["GpuPool/inference", "GpuPool/notebooks", "GpuProfile/gpu", "GpuProfile/mig-3g"] {
            health_becomes(&world, object, "Healthy").await?;
        }
        health_becomes(&world, "GpuPool/training", "Degraded: no node matches").await?;
        let before = generations(&world).await?;
        apply(&world, "platform/overlays/lab").await?;
        apply(&world, "teams").await?;
        ensure(generations(&world).await? == before, "a second apply changed a generation")
    };
    world.keeping_evidence("gitops", body).await;
}

async fn apply(world: &World, folder: &str) -> Result<()> {
    let folder = samples().join(folder).display().to_string();
    world.kubectl(&["apply", "--server-side", "-k", &folder]).await.map(drop)
}

/// Waits until Argo CD's health script returns this for an object.
async fn health_becomes(world: &World, object: &str, wanted: &str) -> Result<()> {
    let program = text("argocd/health.lua").unwrap();
    eventually(&format!("{object} is {wanted}"), PATIENCE, || async {
        let (kind, name) = object.split_once('/').unwrap();
        let live: Value = serde_json::from_str(&world.kubectl(&["get", kind, name, "-o", "json"]).await?).unwrap();
        let health = health(&program, &live).unwrap();
        let shown = format!("{}: {}", health.status, health.message);
        Ok(if shown.starts_with(wanted) { Ok(()) } else { Err(shown) })
    })
    .await
}

async fn generations(world: &World) -> Result<String> {
    let path = "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.generation}\n{end}";
    world.kubectl(&["get", KINDS, "-o", path]).await
}
