//! Changes wait for whom they must wait for, and go back when they cannot go on.

use e2e::{
    Result, World,
    objects::{self, ensure, layouts, set_guarantee},
    scene::{mig_profile, pool, tenant, two_small_pods, workload},
    story::{changes, holdings, settled, tenant_ready},
    strike,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode, GpuPool, GpuSpec, InstanceState};
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
        settled(&world, "3g.40gb", 3).await?;
        let after = world.pods_ready("small", 2).await?;
        let stayed = before.iter().filter(|(pod, life)| after.get(*pod) == Some(*life)).count();
        ensure(stayed == 1, format!("one pod moved, one stayed: before {before:?}, after {after:?}"))
    };
    world.keeping_evidence("disruption-budget", body).await;
}

#[tokio::test]
async fn neighbours_of_what_must_go_are_given_to_pods_while_the_change_waits() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("neighbours", neighbours(&world)).await;
}

/// Fourteen pods on fourteen slices; a change that needs three of them away waits for a budget.
async fn neighbours(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g", "mig-3g"]), tenant("small", &[("mig-1g", 14)])]).await?;
    world.set(&[tenant("big", &[("mig-3g", 0)])]).await?;
    tenant_ready(world, "small").await?;
    tenant_ready(world, "big").await?;
    world.set(&[workload("small", "w", "nvidia.com/mig-1g.10gb", 14)]).await?;
    world.pods_ready("small", 14).await?;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "nobody", "namespace": "small"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "w"}}},
    });
    world.set(&[budget]).await?;
    set_guarantee(&world.client, "small", "mig-1g", 11).await?;
    set_guarantee(&world.client, "big", "mig-3g", 1).await?;
    let (gpu, staying) = eventually("a change that evicts", PATIENCE, || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        Ok(neighbours_of_a_change(&node).ok_or_else(|| format!("{:?}", node.spec)))
    })
    .await?;
    ensure(staying.len() == 4, format!("four neighbours: {staying:?}"))?;

    // they leave by themselves: all that is free now are their places, beside what must go
    for pod in &staying {
        let cost = "controller.kubernetes.io/pod-deletion-cost=-100";
        world.kubectl(&["annotate", "pod", "-n", "small", pod, cost]).await?;
    }
    world.kubectl(&["scale", "deployment", "-n", "small", "w", "--replicas=10"]).await?;
    let before = world.pods_ready("small", 10).await?;
    ensure(staying.iter().all(|pod| !before.contains_key(pod)), format!("{staying:?} have left: {before:?}"))?;
    world.kubectl(&["scale", "deployment", "-n", "small", "w", "--replicas=11"]).await?;
    let after = world.pods_ready("small", 11).await?;
    let new = after.keys().find(|pod| !before.contains_key(*pod)).cloned().unwrap_or_default();
    let place = eventually("the new pod's device", PATIENCE, || async {
        Ok(holdings(world).await?.remove(&new).ok_or_else(|| format!("{new} holds nothing")))
    })
    .await?;
    ensure((place.0.as_str(), place.1) == ("gpu-1", gpu), format!("beside what must go, on GPU {gpu}: {place:?}"))?;
    let phases = strike::phases(world, "gpu-1").await?;
    ensure(phases.contains(&ChangePhase::Evicting), format!("the change waits meanwhile: {phases:?}"))?;

    world.kubectl(&["delete", "pdb", "-n", "small", "nobody"]).await?;
    settled(world, "3g.40gb", 1).await?;
    let end = world.pods_ready("small", 11).await?;
    let moved = after.iter().filter(|(pod, life)| end.get(*pod) != Some(*life)).count();
    ensure(moved == 3 && end.contains_key(&new), format!("only the owners moved: before {after:?}, after {end:?}"))
}

/// The GPU on which owners are being evicted, and the pods on those of its devices that stay.
fn neighbours_of_a_change(node: &GpuNode) -> Option<(i32, Vec<String>)> {
    let evicts = |g: &&GpuSpec| g.change.as_ref().is_some_and(|c| c.phase == ChangePhase::Evicting);
    let spec = node.spec.gpus.iter().find(evicts)?;
    let state = node.status.as_ref()?.gpus.iter().find(|g| g.uuid == spec.uuid)?;
    let to = &spec.change.as_ref()?.to.instances;
    let stays = |i: &&InstanceState| to.iter().any(|w| w.start == i.start && w.profile == i.profile);
    let pods = state.instances.iter().filter(stays).filter_map(|i| Some(i.device.owner.as_ref()?.pod.clone()));
    Some((state.index, pods.collect()))
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
