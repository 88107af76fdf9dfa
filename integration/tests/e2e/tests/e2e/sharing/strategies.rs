//! One team with MIG instances by both of NVIDIA's strategies, and a pool that distributes its pods over GPUs.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{allocatable, ensure, gpu_node, running},
    scenario::{pool_ready, tenant_ready, visible_gpus, wait_for_devices},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::names;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{Api, api::ListParams};
use serde_json::json;

const TEAM: &str = "team";
const MIXED: &str = "gpu-1";
const SINGLE: &str = "gpu-2";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// What the quotas of the team permit under a key.
async fn quota(world: &World, key: &str) -> Result<Option<String>> {
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), TEAM).list(&ListParams::default()).await?;
    let hard = quotas.items.into_iter().filter_map(|q| q.spec?.hard?.remove(key));
    Ok(hard.map(|quantity| quantity.0).next())
}

#[tokio::test]
async fn one_tenant_has_slices_by_both_strategies_with_the_right_quota_keys() {
    let world = World::enter().await.unwrap();
    let body = async {
        let mut as_gpu = mig_profile("slice", "2g.20gb");
        as_gpu["spec"]["resourceName"] = names::WHOLE_GPU_RESOURCE.into();
        let (mut single, mut mixed) = (pool("single", SINGLE, &["slice"]), pool("mixed", MIXED, &["mig-1g"]));
        single["spec"]["strategy"] = "Single".into();
        mixed["spec"]["allocation"] = "Distributed".into();
        let team = tenant(TEAM, &[("mig-1g", 8), ("slice", 2)]);
        world.set(&[as_gpu, mig_profile("mig-1g", "1g.10gb"), single, mixed, team]).await?;
        tenant_ready(&world, TEAM).await?;
        pool_ready(&world, "single").await?;
        pool_ready(&world, "mixed").await?;

        // every GPU of the node is alike, also those that no guarantee needs
        eventually("six instances as nvidia.com/gpu", PATIENCE, || async {
            let (gpus, slices) = (
                allocatable(&world.client, SINGLE, names::WHOLE_GPU_RESOURCE).await?,
                allocatable(&world.client, SINGLE, "nvidia.com/mig-2g.20gb").await?,
            );
            Ok(if (gpus, slices) == (6, 0) { Ok(()) } else { Err(format!("{gpus} GPUs, {slices} slices")) })
        })
        .await?;
        let keys =
            (quota(&world, "requests.nvidia.com/gpu").await?, quota(&world, &format!("requests.{SLICE}")).await?);
        ensure(keys == (Some("2".into()), Some("8".into())), format!("quota: {keys:?}"))?;

        // a manifest for whole GPUs runs unchanged, and sees one instance
        world.set(&[workload(TEAM, "single", names::WHOLE_GPU_RESOURCE, 3)]).await?;
        let two = world.pods_ready(TEAM, 2).await?;
        for pod in two.keys() {
            let shown = visible_gpus(&world, TEAM, pod).await?;
            ensure(shown.matches("MIG-").count() == 1 && shown.contains("2g.20gb"), format!("{pod} sees {shown}"))?;
        }
        world.set(&[workload(TEAM, "mixed", SLICE, 2)]).await?;
        world.pods_ready(TEAM, 4).await?;
        let held = wait_for_devices(&world, &[MIXED, SINGLE], 4).await?;
        let mixed: BTreeSet<i32> = held.values().filter(|(node, ..)| node == MIXED).map(|(_, gpu, _)| *gpu).collect();
        ensure(mixed == [0, 1].into(), format!("the pods of a distributing pool are on both GPUs: {held:?}"))?;
        let policy = serde_json::to_value(gpu_node(&world.client, MIXED).await?.spec.allocation);
        ensure(policy.is_ok_and(|p| p == json!("Distributed")), "the policy in the GpuNode")?;
        ensure(running(&world.client, TEAM).await?.keys().filter(|p| two.contains_key(*p)).count() == 2, "both run on")
    };
    world.keeping_evidence("strategies", body).await;
}
