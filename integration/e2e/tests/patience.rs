//! Changes wait for whom they must wait for, and go back when they cannot go on.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics says what it found"
)]

use e2e::{
    World,
    objects::{self, ensure, layouts, set_guarantee},
    scene::{mig_profile, pool, tenant, two_small_pods},
    story::{changes, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuPool};
use kube::Api;
use serde_json::json;

#[tokio::test]
async fn a_budget_that_forbids_is_waited_for_and_named() {
    let world = World::enter().await.unwrap();
    let body = async {
        two_small_pods(&world).await?;
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all-of-w", "namespace": "small"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "w"}}},
        });
        world.set(&[budget]).await?;
        let before = objects::running(&world.client, "small").await?;
        set_guarantee(&world.client, "small", "mig-1g", 2).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        let pools = Api::<GpuPool>::all(world.client.clone());
        eventually("the pool says which budget it waits for", PATIENCE, || async {
            let told = pools.get("p").await?.status.unwrap_or_default();
            Ok(objects::says(&told.conditions, "Ready", "False", "Changing", &["all-of-w", "small/w-"]))
        })
        .await?;
        ensure(objects::running(&world.client, "small").await? == before, "nobody was evicted against the budget")?;
        world.kubectl(&["delete", "pdb", "-n", "small", "all-of-w"]).await?;
        e2e::story::settled(&world, "3g.40gb", 3).await?;
        let after = world.pods_ready("small", 2).await?;
        let stayed = before.iter().filter(|(pod, life)| after.get(*pod) == Some(*life)).count();
        ensure(stayed == 1, format!("one pod moved, one stayed: before {before:?}, after {after:?}"))
    };
    world.keeping_evidence("disruption-budget", body).await;
}

#[tokio::test]
async fn a_create_that_nvml_refuses_is_rolled_back_and_says_which_call_and_why() {
    let world = World::enter().await.unwrap();
    let body = async {
        world
            .set(&[
                mig_profile("mig-1g", "1g.10gb"),
                mig_profile("mig-3g", "3g.40gb"),
                pool("p", "gpu-1", &["mig-1g", "mig-3g"]),
            ])
            .await?;
        world.set(&[tenant("t", &[("mig-1g", 14)])]).await?;
        tenant_ready(&world, "t").await?;
        let before = layouts(&objects::gpu_node(&world.client, "gpu-1").await?);
        let refuse = [
            "inject",
            "--call",
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            "--code",
            "23",
            "--nth",
            "2",
            "--times",
            "1",
        ];
        world.nvsim("gpu-1", &refuse).await?;
        world.set(&[tenant("t", &[("mig-3g", 4)])]).await?;
        eventually("a change rolled back", PATIENCE, || async {
            let node = objects::gpu_node(&world.client, "gpu-1").await?;
            let back =
                node.spec.gpus.iter().filter_map(|g| g.change.as_ref()).find(|c| c.phase == ChangePhase::RolledBack);
            Ok(match back {
                Some(c) if c.reason.contains("nvmlDeviceCreateGpuInstanceWithPlacement") && c.reason.contains("23") => {
                    Ok(())
                }
                Some(c) => Err(c.reason.clone()),
                None => Err(format!("{:?}", changes(&world).await?)),
            })
        })
        .await?;
        eventually("the old layout on the GPU that failed, verified", PATIENCE, || async {
            let node = objects::gpu_node(&world.client, "gpu-1").await?;
            let failed = node
                .spec
                .gpus
                .iter()
                .position(|g| g.change.as_ref().is_some_and(|c| c.phase == ChangePhase::RolledBack));
            let now = layouts(&node);
            Ok(match failed {
                Some(gpu) if now.get(gpu) == before.get(gpu) => Ok(()),
                _ => Err(format!("before {before:?}, now {now:?}")),
            })
        })
        .await
    };
    world.keeping_evidence("nvml-refuses", body).await;
    world.nvsim("gpu-1", &["clear-faults"]).await.unwrap();
}
