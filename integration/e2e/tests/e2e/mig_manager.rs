//! Pools that NVIDIA's MIG manager carves: it is asked by node labels, waited for, and recovered from its traps.

use std::{collections::BTreeMap, time::Duration};

use e2e::{
    Result, World, mig_manager,
    objects::{self, ensure, says, set_guarantee},
    scene::{mig_profile, pool, tenant, workload},
    story::{MIG_1G, MIG_3G, all_hold, pod_events},
    wait::eventually,
};
use gputenancy_crds::{GpuPool, GpuTenant, condition, names};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::json;

/// Both GPUs of gpu-1, carved by the MIG manager: two halves with pods, and seven slices of which two have pods.
async fn enter() -> Result<World> {
    let world = World::bare().await?;
    mig_manager::prepare(&world).await?;
    world.renew(&[&format!("migManager.namespace={}", mig_manager::NAMESPACE)]).await?;
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

/// Waits until guarantees are there, kubelet and the node's allocatable show them, and nothing changes.
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

/// All pods of both tenants.
async fn everybody(world: &World) -> Result<BTreeMap<String, objects::Life>> {
    let mut all = objects::running(&world.client, "small").await?;
    all.extend(objects::running(&world.client, "big").await?);
    Ok(all)
}

/// What the operator agreed to is what NVML shows, the label names a layout of ours, and nothing is paused.
async fn in_order(world: &World) -> Result<()> {
    let node = objects::gpu_node(&world.client, mig_manager::NODE).await?;
    let gpus = node.status.iter().flat_map(|s| &s.gpus);
    // the agreement lists GPUs as they were taken on, the status by index
    for (state, seen) in gpus.zip(objects::layouts(&node)) {
        let Some(spec) = node.spec.gpus.iter().find(|g| g.uuid == state.uuid) else { continue };
        let mut agreed: Vec<String> = spec.instances.iter().map(|i| format!("{}:{}", i.start, i.profile)).collect();
        agreed.sort();
        let mut seen = seen;
        seen.sort();
        ensure(agreed == seen, format!("agreed {agreed:?}, NVML shows {seen:?}"))?;
    }
    let config = mig_manager::label(world, names::MIG_CONFIG_LABEL).await?.unwrap_or_default();
    ensure(config.starts_with("gputenancy-"), format!("{config} is a layout of ours"))?;
    for part in ["dcgm", "dcgm-exporter"] {
        let value = mig_manager::label(world, &format!("{}{part}", names::DEPLOY_LABELS)).await?;
        ensure(value.as_deref() == Some("true"), format!("{part} runs again: {value:?}"))?;
    }
    let off = mig_manager::label(world, "nvidia.com/gpu.deploy.device-plugin").await?;
    ensure(off.as_deref() == Some("false"), "what is off stays off")
}

#[tokio::test]
async fn a_guarantee_changes_and_the_mig_manager_carves_it() {
    let world = enter().await.unwrap();
    let body = async {
        in_order(&world).await?;
        let before = everybody(&world).await?;
        let places = all_hold(&world, &[mig_manager::NODE], 4).await?;
        let layout = objects::layouts(&objects::gpu_node(&world.client, mig_manager::NODE).await?);
        let proven = pod_events(&world, "default", "CanaryPassed").await?.len();
        set_guarantee(&world.client, "small", "mig-1g", 3).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        served(&world, 3, 3).await?;
        in_order(&world).await?;
        let now = pod_events(&world, "default", "CanaryPassed").await?.len();
        ensure(now > proven, "what the MIG manager has carved is proven before it is released")?;
        world.pods_ready("small", 2).await?;
        world.pods_ready("big", 2).await?;
        let after = everybody(&world).await?;
        let changed = objects::layouts(&objects::gpu_node(&world.client, mig_manager::NODE).await?);
        for (pod, (_, gpu, _)) in &places {
            let gpu = usize::try_from(*gpu).unwrap();
            let (anew, stayed) = (layout[gpu] != changed[gpu], before.get(pod) == after.get(pod));
            ensure(
                anew != stayed,
                format!("{pod} on GPU {gpu}: carved anew {anew}, stayed {stayed}; {layout:?} {changed:?}"),
            )?;
        }
        ensure(layout != changed, format!("a GPU has changed: {changed:?}"))?;
        let halves = objects::allocatable(&world.client, mig_manager::NODE, MIG_3G).await?;
        ensure(halves == 3, format!("{halves} halves can be had"))
    };
    world.keeping_evidence("mig-manager-carves", body).await;
}

#[tokio::test]
async fn a_mig_manager_stuck_in_pending_is_recovered_and_what_it_paused_runs_again() {
    let world = enter().await.unwrap();
    let body = async {
        let asked = mig_manager::label(&world, names::MIG_CONFIG_LABEL).await?;
        // a part of the GPU Operator that does not stop in time
        world.set(&[stubborn()]).await?;
        set_guarantee(&world.client, "small", "mig-1g", 3).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        let other = |value: &str| Some(value) != asked.as_deref();
        mig_manager::label_becomes(&world, names::MIG_CONFIG_LABEL, other).await?;
        mig_manager::label_becomes(&world, names::MIG_STATE_LABEL, |state| state == "pending").await?;
        mig_manager::label_becomes(&world, "nvidia.com/gpu.deploy.dcgm", |v| v == names::PAUSED).await?;
        tokio::time::sleep(Duration::from_secs(mig_manager::WAIT * 2)).await;
        let first = mig_manager::label(&world, names::MIG_CONFIG_LABEL).await?.unwrap_or_default();
        world
            .kubectl(&["delete", "pod", "-n", mig_manager::NAMESPACE, "stubborn", "--grace-period=0", "--force"])
            .await?;
        let second = mig_manager::label_becomes(&world, names::MIG_CONFIG_LABEL, |v| v != first).await?;
        ensure(
            first.trim_end_matches("-b") == second.trim_end_matches("-b"),
            format!("one layout: {first}, {second}"),
        )?;
        served(&world, 3, 3).await?;
        in_order(&world).await?;
        let events = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await?;
        let told = events.iter().any(|e| e.reason.as_deref() == Some("MigManagerAskedAgain"));
        ensure(told, "an event says that it was asked again")
    };
    world.keeping_evidence("mig-manager-stuck", body).await;
}

#[tokio::test]
async fn a_mig_manager_that_fails_is_rolled_back_and_the_pool_says_why() {
    let world = enter().await.unwrap();
    let body = async {
        let before = objects::layouts(&objects::gpu_node(&world.client, mig_manager::NODE).await?);
        world.kubectl(&["annotate", "node", mig_manager::NODE, "mig-manager.test/fault=fail-paused"]).await?;
        set_guarantee(&world.client, "small", "mig-1g", 3).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        let pools = Api::<GpuPool>::all(world.client.clone());
        let words = [mig_manager::NODE, names::MIG_STATE_LABEL, "failed", "read the log"];
        eventually("the pool says why", mig_manager::LIMIT, || async {
            mig_manager::nudge(&world).await?;
            let conditions = pools.get("p").await?.status.unwrap_or_default().conditions;
            Ok(says(&conditions, condition::READY, "False", "ChangeFailed", &words))
        })
        .await?;
        let node = objects::gpu_node(&world.client, mig_manager::NODE).await?;
        ensure(objects::layouts(&node) == before, "the old layout is there")?;
        ensure(
            node.spec.gpus.iter().all(|g| g.hold.is_empty()),
            format!("nothing is withheld on {}", node.name_any()),
        )?;
        in_order(&world).await?;
        world.pods_ready("small", 2).await?;
        world.pods_ready("big", 2).await?;
        // what failed would be tried again, and the next test ends the MIG manager
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
