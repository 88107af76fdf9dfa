//! A failed NVML call rolls the change back and is reported.

use e2e::{
    World,
    fixtures::{mig_profile, pool, tenant},
    objects::{self, layouts},
    scenario::{changes, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::ChangePhase;

const CALL: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

#[tokio::test]
async fn nvml_create_failure_rolls_back_and_names_the_call() {
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
        let fault = ["inject", "--call", CALL, "--code", "23", "--nth", "2", "--times", "1"];
        world.nvsim("gpu-1", &fault).await?;
        world.set(&[tenant("t", &[("mig-3g", 4)])]).await?;
        eventually("a change rolled back", PATIENCE, || async {
            let node = objects::gpu_node(&world.client, "gpu-1").await?;
            let back =
                node.spec.gpus.iter().filter_map(|g| g.change.as_ref()).find(|c| c.phase == ChangePhase::RolledBack);
            Ok(match back {
                Some(c) if c.reason.contains(CALL) && c.reason.contains("23") => Ok(()),
                Some(c) => Err(c.reason.clone()),
                None => Err(format!("{:?}", changes(&world).await?)),
            })
        })
        .await?;
        eventually("the old layout on the GPU that failed", PATIENCE, || async {
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
    world.keeping_evidence("nvml-failure", body).await;
    world.nvsim("gpu-1", &["clear-faults"]).await.unwrap();
}
