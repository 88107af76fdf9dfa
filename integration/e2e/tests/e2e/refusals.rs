//! What cannot be had is said on the right object, and heals by itself when mended.

use std::time::Duration;

use e2e::{
    Result, World, objects,
    objects::says,
    scene::{mig_profile, pool, tenant},
    story::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, GpuProfile, GpuTenant};
use kube::{Api, api::DeleteParams};
use serde_json::json;

/// The words of a condition, on any of our kinds, within the usual patience.
macro_rules! wait_says {
    ($world:expr, $kind:ty, $name:expr, $type:expr, $status:expr, $reason:expr, $words:expr) => {{
        let api = Api::<$kind>::all($world.client.clone());
        let what = format!("{} {} says {}", stringify!($kind), $name, $reason);
        eventually(&what, PATIENCE, || async {
            let status = api.get($name).await?.status.unwrap_or_default();
            Ok(says(&status.conditions, $type, $status, $reason, $words))
        })
        .await?
    }};
}

#[tokio::test]
async fn an_unknown_profile_stalls_the_tenant_until_it_appears() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[pool("p", "gpu-1", &["slice"]), tenant("early", &[("slice", 1)])]).await?;
        wait_says!(world, GpuTenant, "early", "Stalled", "True", "ProfileNotFound", &["slice", "GpuProfile"]);
        world.set(&[mig_profile("slice", "1g.10gb")]).await?;
        tenant_ready(&world, "early").await.map(drop)
    };
    world.keeping_evidence("unknown-profile", body).await;
}

#[tokio::test]
async fn a_board_that_cannot_is_said_on_the_profile() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[mig_profile("blackwell", "1g.23gb"), pool("p", "gpu-1", &["blackwell"])]).await?;
        wait_says!(
            world,
            GpuProfile,
            "blackwell",
            "Ready",
            "False",
            "BoardCannot",
            &["blackwell", "NVIDIA-A100-SXM4-80GB", "1g.10gb"]
        );
        world.set(&[mig_profile("blackwell", "1g.10gb")]).await?;
        wait_says!(world, GpuProfile, "blackwell", "Ready", "True", "Ready", &[]);
        Ok(())
    };
    world.keeping_evidence("board-cannot", body).await;
}

#[tokio::test]
async fn two_pools_on_one_node_leave_it_alone_and_both_say_so() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[mig_profile("slice", "1g.10gb"), pool("one", "gpu-1", &["slice"])]).await?;
        world.set(&[tenant("t", &[("slice", 2)])]).await?;
        tenant_ready(&world, "t").await?;
        let before = objects::gpu_node(&world.client, "gpu-1").await?.spec;
        world.set(&[pool("two", "gpu-1", &["slice"])]).await?;
        for name in ["one", "two"] {
            wait_says!(world, GpuPool, name, "Ready", "False", "PoolOverlap", &["gpu-1", "one", "two"]);
        }
        world.set(&[tenant("t", &[("slice", 9)])]).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let after = objects::gpu_node(&world.client, "gpu-1").await?.spec;
        objects::ensure(before == after, "a node in two pools is not acted on")?;
        Api::<GpuPool>::all(world.client.clone()).delete("two", &DeleteParams::default()).await?;
        wait_says!(world, GpuPool, "one", "Ready", "True", "Ready", &[]);
        tenant_ready(&world, "t").await.map(drop)
    };
    world.keeping_evidence("two-pools", body).await;
}

#[tokio::test]
async fn a_shortage_is_said_in_numbers_and_ends_when_demand_shrinks() {
    let world = World::enter().await.unwrap();
    let body = async {
        world
            .set(&[mig_profile("half", "3g.40gb"), pool("p", "gpu-1", &["half"]), tenant("greedy", &[("half", 6)])])
            .await?;
        wait_says!(world, GpuTenant, "greedy", "CapacityReady", "False", "Shortage", &["half", "6", "4"]);
        world.set(&[tenant("greedy", &[("half", 3)])]).await?;
        tenant_ready(&world, "greedy").await?;
        wait_says!(world, GpuTenant, "greedy", "CapacityReady", "True", "Available", &[]);
        Ok(())
    };
    world.keeping_evidence("shortage", body).await;
}

#[tokio::test]
async fn a_namespace_of_somebody_else_is_not_taken() {
    let world = World::enter().await.unwrap();
    let body: Result<()> = async {
        world.set(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "theirs"}})]).await?;
        world.set(&[tenant("taker", &[])]).await?;
        let both = json!({"spec": {"namespaces": [{"name": "taker"}, {"name": "theirs"}]}});
        objects::patch_tenant(&world.client, "taker", both).await?;
        wait_says!(
            world,
            GpuTenant,
            "taker",
            "NamespacesReady",
            "False",
            "NamespaceForeign",
            &["theirs", "adopt: true"]
        );
        world.kubectl(&["delete", "namespace", "theirs"]).await?;
        tenant_ready(&world, "taker").await.map(drop)
    }
    .await;
    world.keeping_evidence("foreign-namespace", async { body }).await;
}
