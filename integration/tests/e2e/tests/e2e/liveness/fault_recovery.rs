//! A GPU with a fault gets no new pod, and returns by itself when the driver asks for nothing and a canary pod has passed; a person can clear the fault
//! as well.

use std::time::Duration;

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure},
    scenario::{pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNode, GpuState, Health, RecoveryState, names::CLEARED_FAULTS};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// NVML's numbers of `NVML_GPU_RECOVERY_ACTION_NONE` and `_GPU_RESET`.
const NOTHING: &str = "0";
const RESET: &str = "1";

/// Longer than the quiet time, the start of a canary pod and its end.
const RECOVERY: Duration = Duration::from_mins(4);

fn first(node: GpuNode) -> GpuState {
    node.status.map(|status| status.gpus).unwrap_or_default().into_iter().find(|gpu| gpu.index == 0).unwrap_or_default()
}

async fn gpu(world: &World) -> Result<GpuState> {
    objects::gpu_node(&world.client, "gpu-1").await.map(first)
}

async fn recovery_becomes(world: &World, patience: Duration, wanted: Option<RecoveryState>) -> Result<GpuState> {
    eventually(&format!("recovery {wanted:?} of gpu-1 GPU 0"), patience, || async {
        let gpu = gpu(world).await?;
        let found = gpu.recovery.as_ref().map(|recovery| recovery.state);
        Ok(if found == wanted { Ok(gpu) } else { Err(format!("{:?}, fault {:?}", gpu.recovery, gpu.fault)) })
    })
    .await
}

/// Free devices of the GPU that kubelet lists.
fn open(gpu: &GpuState) -> usize {
    gpu.devices().filter(|device| device.allocatable && device.owner.is_none()).count()
}

async fn clear(world: &World, text: Option<&str>) -> Result<()> {
    let nodes = Api::<Node>::all(world.client.clone());
    let patch = json!({"metadata": {"annotations": {CLEARED_FAULTS: text}}});
    nodes.patch("gpu-1", &PatchParams::default(), &Patch::Merge(patch)).await.map(drop).map_err(Into::into)
}

#[tokio::test]
async fn gpu_returns_after_a_canary_when_the_driver_asks_for_nothing() {
    let world = World::enter().await.unwrap();
    let outcome = returns(&world).await;
    world.nvsim("gpu-1", &["clear-faults"]).await.unwrap();
    let forgotten = forget(&world).await;
    world.keeping_evidence("fault-recovery", async { outcome.and(forgotten) }).await;
}

/// Clears all faults of GPU 0 and their number: they would count for a day, also for the next test.
async fn forget(world: &World) -> Result<()> {
    let uuid = gpu(world).await?.uuid;
    clear(world, Some(&format!("{uuid}={}", Timestamp::now()))).await?;
    recovery_becomes(world, PATIENCE, None).await?;
    clear(world, None).await
}

async fn returns(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
    let mut one = pool("p", "gpu-1", &["mig-1g"]);
    let canary = json!({"image": "lab.local/gputenancy-workload:dev", "command": ["/usr/bin/gpu-work", "show"], "timeout": "2m"});
    one["spec"]["verify"] = json!({"canary": canary});
    world.set(&[one, tenant("t", &[("mig-1g", 14)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("t", "w", "nvidia.com/mig-1g.10gb", 3)]).await?;
    let pods = world.pods_ready("t", 3).await?;
    let before = pod_events(world, "default", "FaultCleared").await?.len();
    forget(world).await?;

    // while the driver asks for a reset nothing is tried
    world.nvsim("gpu-1", &["recovery-action", "0", RESET]).await?;
    world.nvsim("gpu-1", &["xid", "0", "48"]).await?;
    let faulty = recovery_becomes(world, PATIENCE, Some(RecoveryState::Waiting)).await?;
    ensure(faulty.health == Health::Unhealthy, format!("{:?}", faulty.health))?;
    eventually("no free device of the GPU is listed", PATIENCE, || async {
        let left = open(&gpu(world).await?);
        Ok(if left == 0 { Ok(()) } else { Err(left.to_string()) })
    })
    .await?;
    let message = faulty.recovery.map(|recovery| recovery.message).unwrap_or_default();
    ensure(message == "the driver asks for a reset of the GPU", message)?;

    // it asks for nothing any more: a canary pod decides, and running pods stay
    world.nvsim("gpu-1", &["recovery-action", "0", NOTHING]).await?;
    let back = recovery_becomes(world, RECOVERY, Some(RecoveryState::Cleared)).await?;
    ensure(back.health == Health::Healthy && back.fault.is_none(), format!("{:?} {:?}", back.health, back.fault))?;
    let why = back.recovery.map(|recovery| recovery.message).unwrap_or_default();
    ensure(why.contains("canary pod") && why.contains("has passed"), why)?;
    pool_ready(world, "p").await?;
    tenant_ready(world, "t").await?;
    ensure(world.pods_ready("t", 3).await? == pods, "a running pod was ended")?;
    eventually("event FaultCleared", PATIENCE, || async {
        let events = pod_events(world, "default", "FaultCleared").await?;
        Ok(if events.len() > before { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await?;
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    ensure(node.spec.gpus.iter().all(|gpu| gpu.trial.is_empty()), "a device is still on trial")?;

    // what a person clears is forgotten, whatever the driver asks for
    world.nvsim("gpu-1", &["recovery-action", "0", RESET]).await?;
    world.nvsim("gpu-1", &["xid", "0", "48"]).await?;
    let faulty = recovery_becomes(world, PATIENCE, Some(RecoveryState::Waiting)).await?;
    ensure(faulty.health == Health::Unhealthy, format!("{:?}", faulty.health))?;
    forget(world).await?;
    ensure(gpu(world).await?.health == Health::Healthy, "the GPU is not healthy")?;
    world.nvsim("gpu-1", &["recovery-action", "0", NOTHING]).await?;
    ensure(world.pods_ready("t", 3).await? == pods, "a running pod was ended")
}
