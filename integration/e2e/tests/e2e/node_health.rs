//! Cordons, taints and conditions of others: such a node gets no new devices, what runs there goes on, and one that is marked in the middle of
//! a change keeps its present layout. Entering the lab removes all marks.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure, set_guarantee},
    scenario::{instances_ready, layouts, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuPool;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// A condition of NVSentinel.
const FAULT: &str = "GpuMemWatch";

/// A pool of both nodes, whose verdicts end with their marks, and at least one of two nodes may be marked.
fn both_nodes(disruption: &Value) -> Value {
    let mut both = pool("p", "gpu-1", &["mig-1g", "mig-2g"]);
    let hosts = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-1", "gpu-2"]});
    both["spec"]["nodeSelector"] = json!({"matchExpressions": [hosts]});
    both["spec"]["health"] = json!({"clearAfter": "0s"});
    both["spec"]["disruption"] = disruption.clone();
    both
}

/// Sets the condition of gpu-1 as NVSentinel does.
async fn fault(world: &World, status: &str) -> Result<()> {
    let nodes = Api::<Node>::all(world.client.clone());
    let condition = json!({"type": FAULT, "status": status, "reason": "GpuMemWatchIsNotHealthy", "message": "DCGM_FR_FAULTY_MEMORY"});
    let patch = json!({"status": {"conditions": [condition]}});
    nodes.patch_status("gpu-1", &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

async fn marked(world: &World, excerpt: &str) -> Result<()> {
    world.condition_becomes::<GpuPool>("p", "NodesMarked", "True", "Marked", &["node gpu-1: ", excerpt]).await
}

async fn unmarked(world: &World) -> Result<()> {
    world.condition_becomes::<GpuPool>("p", "NodesMarked", "False", "Unmarked", &[]).await
}

/// Nodes on which a GPU has an instance of this profile.
async fn nodes_with(world: &World, profile: &str) -> Result<Vec<String>> {
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
    world.kubectl(&["cordon", "gpu-1"]).await?;
    marked(world, "it is cordoned").await?;
    set_guarantee(&world.client, "t", "mig-2g", 3).await?;
    instances_ready(world, "2g.20gb", 3).await?;
    ensure(nodes_with(world, "2g.20gb").await? == ["gpu-2"], "instances on the cordoned node")?;
    ensure(world.pods_ready("t", 2).await? == pods, "a running pod was ended")?;
    world.kubectl(&["uncordon", "gpu-1"]).await?;
    unmarked(world).await?;

    world.kubectl(&["taint", "node", "gpu-1", "nvidia.com/gpu-xid-error=79:NoSchedule"]).await?;
    marked(world, "it has the taint nvidia.com/gpu-xid-error=79:NoSchedule").await?;
    world.kubectl(&["taint", "node", "gpu-1", "nvidia.com/gpu-xid-error-"]).await?;
    unmarked(world).await?;

    fault(world, "True").await?;
    marked(world, "its condition GpuMemWatch is True (GpuMemWatchIsNotHealthy)").await?;
    fault(world, "False").await?;
    unmarked(world).await?;
    let node = Api::<Node>::all(world.client.clone()).get("gpu-1").await?;
    ensure(!node.annotations().contains_key("gputenancy.io/cordoned"), "a cordon of ours on gpu-1")?;
    ensure(world.pods_ready("t", 2).await? == pods, "a running pod was ended")
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
