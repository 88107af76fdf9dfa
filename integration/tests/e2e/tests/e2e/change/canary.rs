//! Canary pods verify new devices before tenants can use them; a failure rolls the change back and reports the pod's log.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    interrupt,
    objects::{self, ensure, layouts},
    product,
    scenario::{changes, pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode, GpuPool, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

const HALF: &str = "nvidia.com/mig-3g.40gb";

/// A pool of gpu-1 with this canary command.
fn pool_with_canary(command: &[&str]) -> Value {
    let mut pool = pool("p", "gpu-1", &["mig-1g", "mig-3g"]);
    let canary = json!({"image": "lab.local/gputenancy-workload:dev", "command": command, "timeout": "2m"});
    pool["spec"]["verify"] = json!({"canary": canary});
    pool["spec"]["disruption"]["maxUnavailable"] = json!(1);
    pool
}

async fn canaries(world: &World) -> Result<Vec<Pod>> {
    let api = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    Ok(api.list(&ListParams::default().labels(names::CANARY_LABEL)).await?.items)
}

async fn no_canary_is_left(world: &World) -> Result<()> {
    eventually("no canary left", PATIENCE, || async {
        let left: Vec<String> = canaries(world).await?.iter().map(ResourceExt::name_any).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
    })
    .await
}

/// The device allocated to a canary pod: the pod's name, and GPU, start and profile.
fn canary_device(node: &GpuNode) -> Option<(String, (i32, i32, String))> {
    let gpus = node.status.iter().flat_map(|s| &s.gpus);
    let mut all = gpus.flat_map(|g| g.instances.iter().map(move |i| (g.index, i)));
    all.find_map(|(gpu, i)| {
        let owner = i.device.as_ref()?.owner.as_ref().filter(|o| o.namespace == product::NAMESPACE)?;
        Some((owner.pod.clone(), (gpu, i.start, i.profile.clone())))
    })
}

#[tokio::test]
async fn canary_owns_new_device_before_tenants() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("canary-passes", passes(&world)).await;
}

async fn passes(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    let show = ["/bin/sh", "-c", "gpu-work show && sleep 6"];
    world.set(&[pool_with_canary(&show), tenant("small", &[("mig-1g", 1)]), tenant("big", &[("mig-3g", 0)])]).await?;
    tenant_ready(world, "small").await?;
    tenant_ready(world, "big").await?;
    pool_ready(world, "p").await?;
    no_canary_is_left(world).await?;
    world.set(&[workload("small", "w", "nvidia.com/mig-1g.10gb", 1)]).await?;
    let neighbour = world.pods_ready("small", 1).await?;

    // a tenant's pod waits for a 3g.40gb device: it must not get the new one before the canary has passed
    objects::set_guarantee(&world.client, "big", "mig-3g", 1).await?;
    world.set(&[workload("big", "w", HALF, 1)]).await?;
    let (pod, place) = eventually("a canary with a device", PATIENCE, || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        Ok(canary_device(&node).ok_or_else(|| format!("{:?}", node.spec.gpus)))
    })
    .await?;
    ensure(place.2 == "3g.40gb", format!("profile of the canary's device: {place:?}"))?;
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    let on_trial: Vec<_> = node.spec.gpus.iter().filter(|g| !g.trial.is_empty()).map(|g| &g.trial).collect();
    ensure(on_trial == [&vec![place.1]], format!("device under verification: {place:?}, {on_trial:?}"))?;
    ensure(
        interrupt::phases(world, "gpu-1").await? == BTreeSet::from([ChangePhase::Canary]),
        "the change is not in phase Canary",
    )?;
    ensure(
        objects::running(&world.client, "big").await?.is_empty(),
        "a tenant has the new device before the canary passed",
    )?;
    ensure(
        objects::allocatable(&world.client, "gpu-1", HALF).await? == 0,
        "the new device is allocatable before the canary passed",
    )?;
    // kubelet allocates the device before the program starts
    eventually("the canary to see one 3g.40gb device only", PATIENCE, || async {
        let seen = world.kubectl(&["logs", "-n", product::NAMESPACE, &pod]).await?;
        Ok(if seen.matches("MIG-").count() == 1 && seen.contains("3g.40gb") { Ok(()) } else { Err(seen) })
    })
    .await?;

    world.pods_ready("big", 1).await?;
    pool_ready(world, "p").await?;
    no_canary_is_left(world).await?;
    ensure(objects::running(&world.client, "small").await? == neighbour, "the neighbour was restarted or evicted")?;
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    ensure(node.spec.gpus.iter().all(|g| g.hold.is_empty() && g.trial.is_empty()), "a device is still withdrawn")?;
    let left = objects::allocatable(&world.client, "gpu-1", &names::canary_resource(place.0, place.1)).await?;
    ensure(left == 0, "the canary resource is still allocatable")?;
    event_recorded(world, "CanaryPassed").await
}

/// Waits for an event with this reason about gpu-1.
async fn event_recorded(world: &World, reason: &str) -> Result<()> {
    eventually(&format!("event {reason}"), PATIENCE, || async {
        let events = pod_events(world, "default", reason).await?;
        Ok(if events.iter().any(|e| e.starts_with("gpu-1: ")) { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await
}

#[tokio::test]
async fn canary_failure_rolls_back_and_reports_its_log() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("canary-fails", fails(&world)).await;
}

async fn fails(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    world.set(&[pool_with_canary(&["/usr/bin/gpu-work", "show"]), tenant("t", &[("mig-1g", 14)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    let before = layouts(&objects::gpu_node(&world.client, "gpu-1").await?);

    let words = "no kernel image is available";
    world.set(&[pool_with_canary(&["/bin/sh", "-c", &format!("echo {words}; exit 7")])]).await?;
    world.set(&[tenant("t", &[("mig-3g", 4)])]).await?;
    let reason = eventually("a change rolled back", PATIENCE, || async {
        let all = changes(world).await?;
        let back = all.iter().find(|c| c.phase == ChangePhase::RolledBack);
        Ok(back.map(|c| (c.gpu.clone(), c.reason.clone())).ok_or_else(|| format!("{all:?}")))
    })
    .await?;
    let (gpu, reason) = reason;
    for part in ["canary pod", "3g.40gb at ", &gpu, "exit code 7", words] {
        ensure(reason.contains(part), format!("{part:?} in {reason:?}"))?;
    }
    world.condition_becomes::<GpuPool>("p", "Ready", "False", "ChangeFailed", &["exit code 7", words]).await?;
    let changes_once = ["changes", "--once", "-o", "json"];
    let listed = product::kubectl_gpu(&world.lab.kubeconfig_path(), &changes_once).await?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    ensure(listed.contains("exit code 7"), format!("kubectl gpu changes prints: {listed}"))?;
    eventually("the old layout on both GPUs", PATIENCE, || async {
        let now = layouts(&objects::gpu_node(&world.client, "gpu-1").await?);
        let busy = changes(world).await?.into_iter().any(|c| c.phase < ChangePhase::RolledBack);
        Ok(if now == before && !busy { Ok(()) } else { Err(format!("before {before:?}, now {now:?}")) })
    })
    .await?;
    no_canary_is_left(world).await?;
    event_recorded(world, "CanaryFailed").await
}

#[tokio::test]
async fn canary_survives_operator_restart() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("canary-operator-killed", killed(&world)).await;
}

async fn killed(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-3g", "3g.40gb")]).await?;
    let mut slow = pool_with_canary(&["/bin/sh", "-c", "gpu-work show && sleep 20"]);
    slow["spec"]["profiles"] = json!(["mig-3g"]);
    world.set(&[slow, tenant("t", &[("mig-3g", 1)])]).await?;
    let (pod, _) = eventually("a canary with a device", PATIENCE, || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        Ok(canary_device(&node).ok_or_else(|| format!("{:?}", node.spec.gpus)))
    })
    .await?;
    let count = pod_events(world, "default", "CanaryPassed").await?.len();
    let uid = |pods: &[Pod]| pods.iter().map(|p| (p.name_any(), p.uid())).collect::<Vec<_>>();
    let before = uid(&canaries(world).await?);
    interrupt::kill_leader(world).await?;
    let after = uid(&canaries(world).await?);
    ensure(before.len() == 1 && before == after && before[0].0 == pod, format!("{before:?}, then {after:?}"))?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    no_canary_is_left(world).await?;
    let now = pod_events(world, "default", "CanaryPassed").await?;
    ensure(now.len() == count + 1, format!("events of the next operator: {now:?}"))
}
