//! Unmet demands and refused objects are reported on the right object, and clear when corrected.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant},
    objects,
    scenario::tenant_ready,
    wait::observed,
};
use gputenancy_crds::{GpuPool, GpuProfile, GpuTenant};
use kube::{Api, api::DeleteParams};
use serde_json::json;

#[tokio::test]
async fn unknown_profile_stalls_tenant_until_created() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[pool("p", "gpu-1", &["slice"]), tenant("early", &[("slice", 1)])]).await?;
        world
            .condition_becomes::<GpuTenant>("early", "Stalled", "True", "ProfileNotFound", &["slice", "GpuProfile"])
            .await?;
        world.set(&[mig_profile("slice", "1g.10gb")]).await?;
        tenant_ready(&world, "early").await.map(drop)
    };
    world.keeping_evidence("unknown-profile", body).await;
}

#[tokio::test]
async fn unsupported_mig_profile_is_reported_on_gpuprofile() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[mig_profile("blackwell", "1g.23gb"), pool("p", "gpu-1", &["blackwell"])]).await?;
        world
            .condition_becomes::<GpuProfile>(
                "blackwell",
                "Ready",
                "False",
                "ProfileNotSupported",
                &["blackwell", "NVIDIA-A100-SXM4-80GB", "1g.10gb"],
            )
            .await?;
        world.set(&[mig_profile("blackwell", "1g.10gb")]).await?;
        world.condition_becomes::<GpuProfile>("blackwell", "Ready", "True", "Ready", &[]).await?;
        Ok(())
    };
    world.keeping_evidence("board-cannot", body).await;
}

#[tokio::test]
async fn overlapping_pools_leave_node_alone_and_report() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[mig_profile("slice", "1g.10gb"), pool("one", "gpu-1", &["slice"])]).await?;
        world.set(&[tenant("t", &[("slice", 2)])]).await?;
        tenant_ready(&world, "t").await?;
        let before = objects::gpu_node(&world.client, "gpu-1").await?.spec;
        world.set(&[pool("two", "gpu-1", &["slice"])]).await?;
        for name in ["one", "two"] {
            world.condition_becomes::<GpuPool>(name, "Ready", "False", "PoolOverlap", &["gpu-1", "one", "two"]).await?;
        }
        let grown = json!({"spec": {"gpus": [{"profile": "slice", "count": 9}]}});
        observed(&Api::<GpuTenant>::all(world.client.clone()), "t", &grown).await?;
        // both pools are reconciled after the tenant
        for name in ["one", "two"] {
            let later = json!({"spec": {"disruption": {"drainTimeout": "31m"}}});
            observed(&Api::<GpuPool>::all(world.client.clone()), name, &later).await?;
        }
        let after = objects::gpu_node(&world.client, "gpu-1").await?.spec;
        objects::ensure(before == after, "the spec of a node in two pools changed")?;
        Api::<GpuPool>::all(world.client.clone()).delete("two", &DeleteParams::default()).await?;
        world.condition_becomes::<GpuPool>("one", "Ready", "True", "Ready", &[]).await?;
        tenant_ready(&world, "t").await.map(drop)
    };
    world.keeping_evidence("two-pools", body).await;
}

#[tokio::test]
async fn shortage_is_reported_in_numbers_until_demand_fits() {
    let world = World::enter().await.unwrap();
    let body = async {
        world
            .set(&[mig_profile("half", "3g.40gb"), pool("p", "gpu-1", &["half"]), tenant("greedy", &[("half", 6)])])
            .await?;
        world
            .condition_becomes::<GpuTenant>("greedy", "CapacityReady", "False", "Shortage", &["half", "6", "4"])
            .await?;
        world.set(&[tenant("greedy", &[("half", 3)])]).await?;
        tenant_ready(&world, "greedy").await?;
        world.condition_becomes::<GpuTenant>("greedy", "CapacityReady", "True", "Available", &[]).await?;
        Ok(())
    };
    world.keeping_evidence("shortage", body).await;
}

#[tokio::test]
async fn existing_namespace_is_not_adopted_without_opt_in() {
    let world = World::enter().await.unwrap();
    let body: Result<()> = async {
        world.set(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "existing"}})]).await?;
        world.set(&[tenant("taker", &[])]).await?;
        let both = json!({"spec": {"namespaces": [{"name": "taker"}, {"name": "existing"}]}});
        objects::patch_tenant(&world.client, "taker", both).await?;
        world
            .condition_becomes::<GpuTenant>(
                "taker",
                "NamespacesReady",
                "False",
                "NamespaceConflict",
                &["existing", "adopt: true"],
            )
            .await?;
        world.kubectl(&["delete", "namespace", "existing"]).await?;
        tenant_ready(&world, "taker").await.map(drop)
    }
    .await;
    world.keeping_evidence("existing-namespace", async { body }).await;
}
