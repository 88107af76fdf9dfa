//! Pools partitioned by NVIDIA's MIG manager: requests by node labels, stuck states, and failures.

use std::collections::BTreeMap;

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    mig_manager,
    objects::{self, check_condition, ensure, set_guarantee},
    scenario::{MIG_1G, MIG_3G, pod_events, wait_for_devices},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, GpuTenant, condition, names};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::json;

/// A lab in which the MIG manager has partitioned gpu-1: two 3g.40gb with pods, and seven 1g.10gb, two of them with pods.
async fn enter() -> Result<World> {
    let world = World::attach().await?;
    mig_manager::prepare(&world).await?;
    world.reinstall(&[&format!("migManager.namespace={}", mig_manager::NAMESPACE)]).await?;
    mig_manager::start(&world).await?;
    let mut managed = pool("p", mig_manager::NODE, &["mig-1g", "mig-3g"]);
    managed["spec"]["partitioner"] = json!("MigManager");
    let canary = json!({"image": "lab.local/gputenancy-workload:dev", "command": ["/usr/bin/gpu-work", "show"]});
    managed["spec"]["verify"] = json!({"canary": canary});
    managed["spec"]["migManager"] = json!({"timeout": "25s", "configSync": "1s"});
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), managed]).await?;
    world.set(&[tenant("small", &[("mig-1g", 7)]), tenant("big", &[("mig-3g", 2)])]).await?;
    served(&world, 7, 2).await?;
    world.set(&[workload("small", "w", MIG_1G, 2), workload("big", "w", MIG_3G, 2)]).await?;
    world.pods_ready("small", 2).await?;
    world.pods_ready("big", 2).await?;
    Ok(world)
}

/// Waits until the guarantees are served, all tenants are Ready, and no GPU is changing.
async fn served(world: &World, small: usize, big: usize) -> Result<()> {
    eventually("guarantees served by the MIG manager", mig_manager::LIMIT, || async {
        mig_manager::nudge(world).await?;
        let node = objects::gpu_node(&world.client, mig_manager::NODE).await?;
        let all = objects::layouts(&node).concat();
        let count = |profile: &str| all.iter().filter(|i| i.ends_with(profile)).count();
        let rest = node.spec.gpus.iter().all(|g| g.change.is_none()) && !node.spec.gpus.is_empty();
        let (has_small, has_big) = (count(":1g.10gb"), count(":3g.40gb"));
        let tenants = Api::<GpuTenant>::all(world.client.clone()).list(&ListParams::default()).await?;
        let ready = tenants.iter().all(|t| {
            let status = t.status.clone().unwrap_or_default();
            status.observed_generation == t.metadata.generation
                && condition::is_true(&status.conditions, condition::READY)
        });
        let good = rest && ready && has_small >= small && has_big >= big;
        let changes: Vec<_> = node.spec.gpus.iter().filter_map(|g| g.change.as_ref()).map(|c| c.phase).collect();
        Ok(if good { Ok(()) } else { Err(format!("{all:?} {changes:?} ready {ready} {:?}", node.spec.mig_manager)) })
    })
    .await
}

/// Pods of both tenants.
async fn all_pods(world: &World) -> Result<BTreeMap<String, objects::PodIdentity>> {
    let mut all = objects::running(&world.client, "small").await?;
    all.extend(objects::running(&world.client, "big").await?);
    Ok(all)
}

/// Spec and NVML have the same layouts, the label names a layout of the operator, and no component is paused.
async fn check_converged(world: &World) -> Result<()> {
    let node = objects::gpu_node(&world.client, mig_manager::NODE).await?;
    let gpus = node.status.iter().flat_map(|s| &s.gpus);
    // the order of GPUs differs between spec and status
    for (state, seen) in gpus.zip(objects::layouts(&node)) {
        let Some(spec) = node.spec.gpus.iter().find(|g| g.uuid == state.uuid) else { continue };
        let mut desired: Vec<String> = spec.instances.iter().map(|i| format!("{}:{}", i.start, i.profile)).collect();
        desired.sort();
        let mut seen = seen;
        seen.sort();
        ensure(desired == seen, format!("desired {desired:?}, NVML shows {seen:?}"))?;
    }
    let config = mig_manager::label(world, names::MIG_CONFIG_LABEL).await?.unwrap_or_default();
    ensure(config.starts_with("gputenancy-"), format!("{config} is no layout of the operator"))?;
    for part in ["dcgm", "dcgm-exporter"] {
        let value = mig_manager::label(world, &format!("{}{part}", names::DEPLOY_LABELS)).await?;
        ensure(value.as_deref() == Some("true"), format!("{part} is paused: {value:?}"))?;
    }
    let off = mig_manager::label(world, "nvidia.com/gpu.deploy.device-plugin").await?;
    ensure(off.as_deref() == Some("false"), "a component that was off was switched on")
}

#[tokio::test]
async fn mig_manager_applies_changed_guarantee() {
    let world = enter().await.unwrap();
    let body = async {
        check_converged(&world).await?;
        let before = all_pods(&world).await?;
        let places = wait_for_devices(&world, &[mig_manager::NODE], 4).await?;
        let layout = objects::layouts(&objects::gpu_node(&world.client, mig_manager::NODE).await?);
        let verified = pod_events(&world, "default", "CanaryPassed").await?.len();
        set_guarantee(&world.client, "small", "mig-1g", 3).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        served(&world, 3, 3).await?;
        check_converged(&world).await?;
        let now = pod_events(&world, "default", "CanaryPassed").await?.len();
        ensure(now > verified, "no canary ran on the new devices")?;
        world.pods_ready("small", 2).await?;
        world.pods_ready("big", 2).await?;
        let after = all_pods(&world).await?;
        let changed = objects::layouts(&objects::gpu_node(&world.client, mig_manager::NODE).await?);
        for (pod, (_, gpu, _)) in &places {
            let gpu = usize::try_from(*gpu).unwrap();
            let (repartitioned, stayed) = (layout[gpu] != changed[gpu], before.get(pod) == after.get(pod));
            ensure(
                repartitioned != stayed,
                format!("{pod} on GPU {gpu}: repartitioned {repartitioned}, stayed {stayed}; {layout:?} {changed:?}"),
            )?;
        }
        ensure(layout != changed, format!("no GPU has changed: {changed:?}"))?;
        let halves = objects::allocatable(&world.client, mig_manager::NODE, MIG_3G).await?;
        ensure(halves == 3, format!("{halves} allocatable 3g.40gb devices"))
    };
    world.keeping_evidence("mig-manager-change", body).await;
}

#[tokio::test]
async fn mig_manager_stuck_in_pending_is_recovered() {
    let world = enter().await.unwrap();
    let body = async {
        let requested = mig_manager::label(&world, names::MIG_CONFIG_LABEL).await?;
        // a pod of the GPU Operator that does not stop in time
        world.set(&[stubborn()]).await?;
        set_guarantee(&world.client, "small", "mig-1g", 3).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        let other = |value: &str| Some(value) != requested.as_deref();
        mig_manager::label_becomes(&world, names::MIG_CONFIG_LABEL, other).await?;
        mig_manager::label_becomes(&world, names::MIG_STATE_LABEL, |state| state == "pending").await?;
        mig_manager::label_becomes(&world, "nvidia.com/gpu.deploy.dcgm", |v| v == names::PAUSED).await?;
        eventually("the MIG manager to give up", PATIENCE, || async {
            let log =
                world.kubectl(&["logs", "-n", mig_manager::NAMESPACE, "-l", "app=mig-manager", "--tail=-1"]).await?;
            Ok(if log.contains("did not stop") { Ok(()) } else { Err(log) })
        })
        .await?;
        let first = mig_manager::label(&world, names::MIG_CONFIG_LABEL).await?.unwrap_or_default();
        world
            .kubectl(&["delete", "pod", "-n", mig_manager::NAMESPACE, "stubborn", "--grace-period=0", "--force"])
            .await?;
        let second = mig_manager::label_becomes(&world, names::MIG_CONFIG_LABEL, |v| v != first).await?;
        ensure(
            first.trim_end_matches("-b") == second.trim_end_matches("-b"),
            format!("the repeated request names another layout: {first}, {second}"),
        )?;
        served(&world, 3, 3).await?;
        check_converged(&world).await?;
        let events = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await?;
        let repeated = events.iter().any(|e| e.reason.as_deref() == Some("MigManagerRequestRepeated"));
        ensure(repeated, "no event MigManagerRequestRepeated")
    };
    world.keeping_evidence("mig-manager-stuck", body).await;
}

#[tokio::test]
async fn mig_manager_failure_rolls_back_and_is_reported() {
    let world = enter().await.unwrap();
    let body = async {
        let before = objects::layouts(&objects::gpu_node(&world.client, mig_manager::NODE).await?);
        world.kubectl(&["annotate", "node", mig_manager::NODE, "mig-manager.test/fault=fail-paused"]).await?;
        set_guarantee(&world.client, "small", "mig-1g", 3).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        let pools = Api::<GpuPool>::all(world.client.clone());
        let words = [mig_manager::NODE, names::MIG_STATE_LABEL, "failed", "read the log"];
        eventually("the failure in the pool's condition", mig_manager::LIMIT, || async {
            mig_manager::nudge(&world).await?;
            let conditions = pools.get("p").await?.status.unwrap_or_default().conditions;
            Ok(check_condition(&conditions, condition::READY, "False", "ChangeFailed", &words))
        })
        .await?;
        let node = objects::gpu_node(&world.client, mig_manager::NODE).await?;
        ensure(objects::layouts(&node) == before, "the old layout was not restored")?;
        ensure(
            node.spec.gpus.iter().all(|g| g.hold.is_empty()),
            format!("a device of {} is still withdrawn", node.name_any()),
        )?;
        check_converged(&world).await?;
        world.pods_ready("small", 2).await?;
        world.pods_ready("big", 2).await?;
        // restore the old demand: the failed change would be retried, and the next test stops the MIG manager
        set_guarantee(&world.client, "big", "mig-3g", 2).await?;
        set_guarantee(&world.client, "small", "mig-1g", 7).await
    };
    Box::pin(world.keeping_evidence("mig-manager-fails", body)).await;
}

fn stubborn() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "stubborn", "namespace": mig_manager::NAMESPACE, "labels": {"app": "nvidia-dcgm"}},
        "spec": {
            "nodeName": mig_manager::NODE, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "3600"]}],
        },
    })
}
