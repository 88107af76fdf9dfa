//! Changes respect `PodDisruptionBudgets`, and devices that a waiting change keeps stay usable.

use e2e::{
    Result, World,
    fixtures::{mig_profile, no_eviction, pool, tenant, two_small_pods, workload},
    interrupt,
    objects::{self, ensure, set_guarantee},
    scenario::{devices_by_pod, instances_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode, GpuPool, GpuSpec, InstanceState};
use serde_json::json;

#[tokio::test]
async fn disruption_budget_delays_eviction_and_is_reported() {
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
        let blocked = ["all-of-w", "small/w-"];
        world.condition_becomes::<GpuPool>("p", "Ready", "False", "Changing", &blocked).await?;
        ensure(objects::running(&world.client, "small").await? == before, "a pod was evicted against the budget")?;
        world.kubectl(&["delete", "pdb", "-n", "small", "all-of-w"]).await?;
        instances_ready(&world, "3g.40gb", 3).await?;
        let after = world.pods_ready("small", 2).await?;
        let stayed = before.iter().filter(|(pod, identity)| after.get(*pod) == Some(*identity)).count();
        ensure(stayed == 1, format!("{stayed} pods unchanged, expected 1: before {before:?}, after {after:?}"))
    };
    world.keeping_evidence("disruption-budget", body).await;
}

#[tokio::test]
async fn devices_kept_by_a_waiting_change_stay_allocatable() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("neighbours", neighbours(&world)).await;
}

/// Fourteen pods on fourteen devices; a change that removes three of these waits for a budget.
async fn neighbours(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g", "mig-3g"]), tenant("small", &[("mig-1g", 14)])]).await?;
    world.set(&[tenant("big", &[("mig-3g", 0)])]).await?;
    tenant_ready(world, "small").await?;
    tenant_ready(world, "big").await?;
    world.set(&[workload("small", "w", "nvidia.com/mig-1g.10gb", 14)]).await?;
    world.pods_ready("small", 14).await?;
    world.set(&[no_eviction("small", "no-eviction")]).await?;
    set_guarantee(&world.client, "small", "mig-1g", 11).await?;
    set_guarantee(&world.client, "big", "mig-3g", 1).await?;
    let (gpu, staying) = eventually("a change in phase Evicting", PATIENCE, || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        Ok(neighbours_of_a_change(&node).ok_or_else(|| format!("{:?}", node.spec)))
    })
    .await?;
    ensure(staying.len() == 4, format!("{} neighbours, expected 4", staying.len()))?;

    // delete exactly these four pods: the free devices are then the kept ones of the changing GPU
    for pod in &staying {
        let cost = "controller.kubernetes.io/pod-deletion-cost=-100";
        world.kubectl(&["annotate", "pod", "-n", "small", pod, cost]).await?;
    }
    world.kubectl(&["scale", "deployment", "-n", "small", "w", "--replicas=10"]).await?;
    let before = world.pods_ready("small", 10).await?;
    ensure(staying.iter().all(|pod| !before.contains_key(pod)), format!("{staying:?} should be deleted: {before:?}"))?;
    world.kubectl(&["scale", "deployment", "-n", "small", "w", "--replicas=11"]).await?;
    let after = world.pods_ready("small", 11).await?;
    let new = after.keys().find(|pod| !before.contains_key(*pod)).cloned().unwrap_or_default();
    let place = eventually("the new pod's device in a status", PATIENCE, || async {
        Ok(devices_by_pod(world).await?.remove(&new).ok_or_else(|| format!("{new} has no device")))
    })
    .await?;
    ensure((place.0.as_str(), place.1) == ("gpu-1", gpu), format!("expected on GPU {gpu} of gpu-1: {place:?}"))?;
    let phases = interrupt::phases(world, "gpu-1").await?;
    ensure(phases.contains(&ChangePhase::Evicting), format!("phases while the change waits: {phases:?}"))?;

    world.kubectl(&["delete", "pdb", "-n", "small", "no-eviction"]).await?;
    instances_ready(world, "3g.40gb", 1).await?;
    let end = world.pods_ready("small", 11).await?;
    let moved = after.iter().filter(|(pod, identity)| end.get(*pod) != Some(*identity)).count();
    ensure(
        moved == 3 && end.contains_key(&new),
        format!("{moved} pods moved, expected 3: before {after:?}, after {end:?}"),
    )
}

/// The GPU in phase Evicting, and the pods on devices that it keeps.
fn neighbours_of_a_change(node: &GpuNode) -> Option<(i32, Vec<String>)> {
    let evicts = |g: &&GpuSpec| g.change.as_ref().is_some_and(|c| c.phase == ChangePhase::Evicting);
    let spec = node.spec.gpus.iter().find(evicts)?;
    let state = node.status.as_ref()?.gpus.iter().find(|g| g.uuid == spec.uuid)?;
    let to = &spec.change.as_ref()?.to.instances;
    let stays = |i: &&InstanceState| to.iter().any(|w| w.start == i.start && w.profile == i.profile);
    let pods =
        state.instances.iter().filter(stays).filter_map(|i| Some(i.device.as_ref()?.owner.as_ref()?.pod.clone()));
    Some((state.index, pods.collect()))
}
