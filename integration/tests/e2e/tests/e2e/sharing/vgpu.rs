//! NVIDIA's vGPU software: a virtual machine's vGPU is used without MIG, and a hypervisor's GPUs are left alone.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, Vgpu, names};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use serde_json::json;

const NODE: &str = "gpu-1";
const TEAM: &str = "guests";

#[tokio::test]
async fn vgpu_guest_gets_no_mig_call_and_a_hypervisor_is_left_alone() {
    let world = World::enter().await.unwrap();
    let body = guest_then_host(&world).await;
    world.nvsim(NODE, &["virtualize", "none"]).await.unwrap();
    world.keeping_evidence("vgpu", async { body }).await;
}

async fn guest_then_host(world: &World) -> Result<()> {
    // an earlier test may have left MIG mode on, which this board keeps
    for gpu in ["0", "1"] {
        world.nvsim(NODE, &["reset", gpu, "--mig-off"]).await?;
    }
    becomes(world, "guest", Some(Vgpu::Guest)).await?;
    world.nvsim(NODE, &["trace", "start"]).await?;
    let whole = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "gpu"},
        "spec": {"device": {"whole": {}}, "support": {"expected": "a vGPU of its own", "incident": "no vGPU"}},
    });
    world.set(&[whole, mig_profile("slice", "1g.10gb"), pool("p", NODE, &["gpu", "slice"])]).await?;
    world.set(&[tenant(TEAM, &[("gpu", 1)])]).await?;
    world
        .condition_becomes::<GpuProfile>("slice", "Ready", "False", "ProfileNotSupported", &["whole GPUs only"])
        .await?;
    tenant_ready(world, TEAM).await?;
    world.set(&[workload(TEAM, "w", names::WHOLE_GPU_RESOURCE, 1)]).await?;
    let running = world.pods_ready(TEAM, 1).await?;
    let calls = world.nvsim(NODE, &["trace", "list"]).await?;
    world.nvsim(NODE, &["trace", "stop"]).await?;
    ensure(calls.contains("nvmlDeviceGetVirtualizationMode"), "the agent made no call")?;
    let mig: Vec<&str> = calls.lines().filter(|l| l.contains("Mig") || l.contains("GpuInstance")).collect();
    ensure(mig.is_empty(), format!("MIG calls on a vGPU: {mig:?}"))?;

    // the licence lapses, and comes back
    world.condition_becomes::<GpuNode>(NODE, "VgpuLicensed", "True", "Licensed", &["2 vGPUs with a licence"]).await?;
    world.nvsim(NODE, &["virtualize", "guest", "--unlicensed"]).await?;
    let remedy = &["no vGPU licence: gpu 0, gpu 1", "nvidia-gridd"];
    world.condition_becomes::<GpuNode>(NODE, "VgpuLicensed", "False", "Unlicensed", remedy).await?;
    eventually("an event for each unlicensed vGPU", PATIENCE, || async {
        let events = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await?.items;
        let unlicensed = events.into_iter().filter(|event| event.reason.as_deref() == Some("VgpuUnlicensed"));
        let notes: Vec<String> = unlicensed.filter_map(|event| event.note).collect();
        let expected = [0, 1].map(|index| format!("gpu {index} of node {NODE} has no vGPU licence"));
        let found = expected.iter().all(|text| notes.iter().any(|note| note.starts_with(text)));
        Ok(if found { Ok(()) } else { Err(format!("{notes:?}")) })
    })
    .await?;
    world.nvsim(NODE, &["virtualize", "guest"]).await?;
    world.condition_becomes::<GpuNode>(NODE, "VgpuLicensed", "True", "Licensed", &[]).await?;

    becomes(world, "host", Some(Vgpu::Host)).await?;
    let message = &["node gpu-1", "NVIDIA's vGPU manager", "hypervisor"];
    world.condition_becomes::<GpuPool>("p", "ForeignPartitioner", "True", "Found", message).await?;
    ensure(objects::running(&world.client, TEAM).await? == running, "a pod was disturbed")
}

/// Changes the simulated machine, and waits until the agent has reported it.
async fn becomes(world: &World, mode: &str, vgpu: Option<Vgpu>) -> Result<()> {
    world.nvsim(NODE, &["virtualize", mode]).await?;
    eventually(&format!("vGPU mode {mode} in the GpuNode"), PATIENCE, || async {
        let status = objects::gpu_node(&world.client, NODE).await?.status.unwrap_or_default();
        let now: Vec<_> = status.boards.iter().map(|board| board.vgpu).collect();
        Ok(if now == [vgpu] { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await
}
