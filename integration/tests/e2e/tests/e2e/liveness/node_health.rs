//! Cordons, taints and conditions of others: such a node gets no new devices, what runs there goes on, and one that is marked in the middle of
//! a change keeps its present layout. A single GPU that is withdrawn by its annotation is treated so, and its neighbours are not. Entering the lab removes all marks.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure, set_guarantee},
    scenario::{instances_ready, layouts, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{
    GpuNode, GpuPool, GpuState,
    names::{NODE_DEVICES_READY, WITHDRAWN_GPUS},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// Marks as their authors write them.
const CASES: &str = include_str!("../../../../../cases/node-health.json");

/// A pool of both nodes, whose verdicts end with their marks, and at least one of two nodes may be marked.
pub(crate) fn both_nodes(disruption: &Value) -> Value {
    let mut both = pool("p", "gpu-1", &["mig-1g", "mig-2g"]);
    let hosts = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-1", "gpu-2"]});
    both["spec"]["nodeSelector"] = json!({"matchExpressions": [hosts]});
    both["spec"]["health"] = json!({"clearAfter": "0s"});
    both["spec"]["disruption"] = disruption.clone();
    both
}

/// Marks gpu-1 as the author of a mark does, or takes the mark back.
async fn mark(world: &World, mark: &Value, set: bool) -> Result<()> {
    let nodes = Api::<Node>::all(world.client.clone());
    let mut object = mark.clone();
    if let Some(conditions) = object["status"]["conditions"].as_array_mut() {
        if !set {
            for condition in conditions.iter_mut() {
                condition["$patch"] = json!("delete");
            }
        }
        nodes.patch_status("gpu-1", &PatchParams::default(), &Patch::Strategic(object)).await?;
        return Ok(());
    }
    if !set {
        let without =
            |field: &Value| field.as_object().into_iter().flatten().map(|(k, _)| (k.clone(), Value::Null)).collect();
        for field in ["labels", "annotations"] {
            let removed: serde_json::Map<String, Value> = without(&object["metadata"][field]);
            object["metadata"][field] = Value::Object(removed);
        }
        object["spec"] = json!({"unschedulable": null, "taints": null});
    }
    nodes.patch("gpu-1", &PatchParams::default(), &Patch::Merge(object)).await?;
    Ok(())
}

async fn marked(world: &World, excerpt: &str) -> Result<()> {
    world.condition_becomes::<GpuPool>("p", "NodesMarked", "True", "Marked", &["node gpu-1: ", excerpt]).await
}

pub(crate) async fn unmarked(world: &World) -> Result<()> {
    world.condition_becomes::<GpuPool>("p", "NodesMarked", "False", "Unmarked", &[]).await
}

/// Nodes on which a GPU has an instance of this profile.
pub(crate) async fn nodes_with(world: &World, profile: &str) -> Result<Vec<String>> {
    let suffix = format!(":{profile}");
    let found = layouts(world).await?;
    let mut nodes: Vec<String> =
        found.into_iter().filter(|(_, l)| l.iter().any(|i| i.ends_with(&suffix))).map(|((node, _), _)| node).collect();
    nodes.dedup();
    Ok(nodes)
}

#[tokio::test]
async fn marked_node_gets_no_new_devices_and_keeps_what_runs() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("node-health", each_mark(&world)).await;
}

async fn each_mark(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-2g", "2g.20gb")]).await?;
    world.set(&[both_nodes(&json!({"maxUnavailable": 4})), tenant("t", &[("mig-1g", 2)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("t", "w", "nvidia.com/mig-1g.10gb", 2)]).await?;
    let pods = world.pods_ready("t", 2).await?;

    // new demand goes to the other node, whatever marks this one
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let rows = cases["marks"].as_array().unwrap().iter().filter(|row| row["lab"] == true);
    for (number, row) in rows.enumerate() {
        mark(world, &row["node"], true).await?;
        marked(world, row["says"].as_str().unwrap()).await?;
        if number == 0 {
            set_guarantee(&world.client, "t", "mig-2g", 3).await?;
            instances_ready(world, "2g.20gb", 3).await?;
            ensure(nodes_with(world, "2g.20gb").await? == ["gpu-2"], "instances on the marked node")?;
        }
        ensure(world.pods_ready("t", 2).await? == pods, format!("a running pod was ended: {row}"))?;
        mark(world, &row["node"], false).await?;
        unmarked(world).await?;
    }

    let node = Api::<Node>::all(world.client.clone()).get("gpu-1").await?;
    ensure(!node.annotations().contains_key("gputenancy.io/cordoned"), "a cordon of ours on gpu-1")?;
    ensure(world.pods_ready("t", 2).await? == pods, "a running pod was ended")
}

/// Withdraws a GPU of gpu-1 as an administrator does, or takes it back.
async fn withdraw(world: &World, text: Option<&str>) -> Result<()> {
    let nodes = Api::<Node>::all(world.client.clone());
    let patch = json!({"metadata": {"annotations": {WITHDRAWN_GPUS: text}}});
    nodes.patch("gpu-1", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Status and message of the condition `DevicesReady` of gpu-1.
async fn devices_ready(world: &World) -> Result<Option<(String, String)>> {
    let node = Api::<Node>::all(world.client.clone()).get("gpu-1").await?;
    let mut conditions = node.status.and_then(|status| status.conditions).unwrap_or_default().into_iter();
    let found = conditions.find(|condition| condition.type_ == NODE_DEVICES_READY);
    Ok(found.map(|condition| (condition.status, condition.message.unwrap_or_default())))
}

async fn devices_become_ready(world: &World, status: &str, excerpt: &str) -> Result<()> {
    eventually(&format!("DevicesReady {status} of gpu-1"), PATIENCE, || async {
        let found = devices_ready(world).await?;
        let wanted = found.as_ref().is_some_and(|(is, message)| is == status && message.contains(excerpt));
        Ok(if wanted { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
}

#[tokio::test]
async fn withdrawn_gpu_gets_no_new_pod_and_its_running_pod_stays() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("node-health-gpu", one_gpu(&world)).await;
}

async fn one_gpu(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-2g", "2g.20gb")]).await?;
    let mut one = pool("p", "gpu-1", &["mig-1g", "mig-2g"]);
    one["spec"]["health"] = json!({"clearAfter": "0s", "maxUnavailable": "100%"});
    one["spec"]["disruption"] = json!({"maxUnavailable": 4});
    world.set(&[one, tenant("t", &[("mig-1g", 1)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("t", "w", "nvidia.com/mig-1g.10gb", 1)]).await?;
    let pods = world.pods_ready("t", 1).await?;
    devices_become_ready(world, "True", "advertised and healthy").await?;

    let holds = |gpu: &&GpuState| gpu.devices().any(|device| device.owner.is_some());
    let state = |node: GpuNode| node.status.map(|status| status.gpus).unwrap_or_default();
    let held = || async {
        let gpus = state(objects::gpu_node(&world.client, "gpu-1").await?);
        Ok::<_, e2e::Error>(gpus.iter().find(holds).map(|gpu| gpu.uuid.clone()))
    };
    eventually("the agent reports the owner of the device", PATIENCE, || async {
        Ok(held().await?.map(drop).ok_or_else(|| "no owner".to_owned()))
    })
    .await?;
    let uuid = held().await?.unwrap_or_default();
    withdraw(world, Some(&format!("{uuid}=row remapping failed"))).await?;
    marked(world, &format!("{uuid} is withdrawn by the annotation {WITHDRAWN_GPUS} (row remapping failed)")).await?;
    devices_become_ready(world, "False", &uuid).await?;

    // new demand goes to the other GPU of the node, and the running pod stays
    set_guarantee(&world.client, "t", "mig-2g", 2).await?;
    instances_ready(world, "2g.20gb", 2).await?;
    let gpus = state(objects::gpu_node(&world.client, "gpu-1").await?);
    let withdrawn = gpus.iter().find(|gpu| gpu.uuid == uuid);
    let withdrawn = withdrawn.ok_or_else(|| e2e::Error::Wrong("the withdrawn GPU is not reported".into()))?;
    ensure(withdrawn.instances.iter().all(|i| i.profile != "2g.20gb"), format!("{withdrawn:?}"))?;
    let open = withdrawn.devices().filter(|device| device.allocatable && device.owner.is_none()).count();
    ensure(open == 0, format!("{open} free devices of the withdrawn GPU are allocatable"))?;
    ensure(world.pods_ready("t", 1).await? == pods, "the running pod was ended")?;

    withdraw(world, None).await?;
    unmarked(world).await?;
    devices_become_ready(world, "True", "advertised and healthy").await?;
    ensure(world.pods_ready("t", 1).await? == pods, "the running pod was ended")
}

#[tokio::test]
async fn cordon_in_the_notice_of_a_change_cancels_it_and_no_pod_is_evicted() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("node-health-notice", in_the_notice(&world)).await;
}

async fn in_the_notice(world: &World) -> Result<()> {
    e2e::fixtures::two_small_pods(world).await?;
    let pools = Api::<GpuPool>::all(world.client.clone());
    let spec = json!({"spec": {"disruption": {"notice": "1h"}, "health": {"clearAfter": "0s", "maxUnavailable": 2}}});
    pools.patch("p", &PatchParams::default(), &Patch::Merge(spec)).await?;
    let before = objects::running(&world.client, "small").await?;
    set_guarantee(&world.client, "small", "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await?;
    let phases = || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        let changes = node.spec.gpus.iter().filter_map(|gpu| gpu.change.as_ref());
        Ok::<_, e2e::Error>(changes.map(|change| format!("{:?}", change.phase)).collect::<Vec<_>>())
    };
    eventually("a change in its notice", PATIENCE, || async {
        let phases = phases().await?;
        Ok(if phases.iter().any(|p| p == "Noticed") { Ok(()) } else { Err(format!("{phases:?}")) })
    })
    .await?;
    world.kubectl(&["cordon", "gpu-1"]).await?;
    eventually("no pod is to be evicted any more", PATIENCE, || async {
        let phases = phases().await?;
        Ok(if phases.iter().any(|p| p == "Noticed") { Err(format!("{phases:?}")) } else { Ok(()) })
    })
    .await?;
    marked(world, "it is cordoned").await?;
    ensure(objects::running(&world.client, "small").await? == before, "a pod was evicted")?;
    // the change begins again
    world.kubectl(&["uncordon", "gpu-1"]).await?;
    eventually("the change in its notice again", PATIENCE, || async {
        let phases = phases().await?;
        Ok(if phases.iter().any(|p| p == "Noticed") { Ok(()) } else { Err(format!("{phases:?}")) })
    })
    .await
}

#[tokio::test]
async fn with_too_many_marked_gpus_no_pod_is_evicted_until_fewer_are() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("node-health-breaker", too_many(&world)).await;
}

async fn too_many(world: &World) -> Result<()> {
    e2e::fixtures::two_small_pods(world).await?;
    let pools = Api::<GpuPool>::all(world.client.clone());
    let spec = json!({"spec": {"health": {"clearAfter": "0s", "maxUnavailable": 1}}});
    pools.patch("p", &PatchParams::default(), &Patch::Merge(spec)).await?;
    let before = objects::running(&world.client, "small").await?;
    world.kubectl(&["cordon", "gpu-1"]).await?;
    let over = "no pod of the pool is evicted";
    let marked = world.condition_becomes::<GpuPool>(
        "p",
        "NodesMarked",
        "True",
        "TooManyMarked",
        &["node gpu-1: ", "maxUnavailable is 1"],
    );
    marked.await.map_err(|error| e2e::Error::Wrong(format!("{over}: {error}")))?;
    set_guarantee(&world.client, "small", "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await?;
    // the tenant is short, and the reason names the node
    world
        .condition_becomes::<gputenancy_crds::GpuTenant>(
            "big",
            "CapacityReady",
            "False",
            "Shortage",
            &["node gpu-1: it is cordoned"],
        )
        .await?;
    ensure(objects::running(&world.client, "small").await? == before, "a pod was evicted")?;
    world.kubectl(&["uncordon", "gpu-1"]).await?;
    unmarked(world).await?;
    instances_ready(world, "3g.40gb", 3).await.map(drop)
}
