//! Next to NVSentinel: maintenance that is announced to it, and the reset of a GPU, for which it removes all clients of the driver from the node.

use e2e::{
    Result, World,
    departure::agents,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure},
    product,
    scenario::{NODES, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuPool;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::node_health::{both_nodes, nodes_with, unmarked};

/// Instances that move from a node to the other one.
const MOVED: &str = "2g.20gb";
const SLICE: &str = "nvidia.com/mig-1g.10gb";
/// By which NVSentinel stops and starts DCGM.
const DCGM: &str = "nvidia.com/gpu.deploy.dcgm";
const KIND: &str = "maintenancerequests.nvsentinel.dgxc.nvidia.com";

/// NVSentinel's kind, whose fields are all kept.
fn definition() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": KIND},
        "spec": {"group": "nvsentinel.dgxc.nvidia.com", "scope": "Cluster",
            "names": {"plural": "maintenancerequests", "singular": "maintenancerequest", "kind": "MaintenanceRequest", "shortNames": ["mr"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}}}]},
    })
}

/// As NVSentinel's tutorial writes it.
fn request(node: &str, start: Option<&str>) -> Value {
    let event = json!({
        "version": 1, "agent": "my-maintenance-tool", "componentClass": "Node", "checkName": "PlannedMaintenance", "nodeName": node,
        "isHealthy": false, "isFatal": false, "recommendedAction": "NONE", "message": "Planned hardware maintenance",
    });
    json!({"apiVersion": "nvsentinel.dgxc.nvidia.com/v1", "kind": "MaintenanceRequest", "metadata": {"name": "m"},
        "spec": {"healthEvent": event, "startTime": start}})
}

#[tokio::test]
async fn maintenance_request_moves_guarantees_in_a_window_and_outside_once_it_has_started() {
    let world = World::enter().await.unwrap();
    let outcome = maintenance(&world).await;
    world.kubectl(&["delete", "crd", KIND, "--ignore-not-found"]).await.unwrap();
    world.keeping_evidence("maintenance-request", async { outcome }).await;
}

async fn marked(world: &World, excerpt: &str) -> Result<()> {
    world.condition_becomes::<GpuPool>("p", "NodesMarked", "True", "Marked", &[excerpt]).await
}

async fn maintenance(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-2g", "2g.20gb")]).await?;
    // a GPU that was never advertised needs no window: every GPU gets a layout first
    world.set(&[both_nodes(&json!({"maxUnavailable": 4})), tenant("t", &[("mig-1g", 28)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    world.set(&[tenant("t", &[("mig-2g", 2)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    let [node] = nodes_with(world, MOVED).await?.try_into().expect("instances on one node");
    let pools = Api::<GpuPool>::all(world.client.clone());
    // no window for years
    let windows = json!({"spec": {"disruption": {"windows": [{"schedule": "0 2 29 2 *", "duration": "1h"}]}}});
    pools.patch("p", &PatchParams::default(), &Patch::Merge(windows)).await?;

    world.set(&[definition()]).await?;
    world.kubectl(&["wait", "--for=condition=Established", &format!("crd/{KIND}"), "--timeout=60s"]).await?;
    world.set(&[request(&node, Some("2100-01-01T00:00:00Z"))]).await?;
    let words =
        format!("node {node}: MaintenanceRequest m of NVSentinel names it, which starts at 2100-01-01T00:00:00Z");
    marked(world, &words).await?;
    eventually("a change that waits for a window", PATIENCE, || async {
        let pending = pools.get("p").await?.status.unwrap_or_default().pending;
        Ok(if pending.iter().any(|p| p.message.contains("nextWindow=")) { Ok(()) } else { Err(format!("{pending:?}")) })
    })
    .await?;
    ensure(nodes_with(world, MOVED).await? == [node.clone()], "a change began outside the windows")?;

    world.kubectl(&["delete", KIND, "m"]).await?;
    unmarked(world).await?;
    world.set(&[request(&node, None)]).await?;
    marked(world, &format!("node {node}: MaintenanceRequest m of NVSentinel names it: ")).await?;
    eventually("instances on the other node", PATIENCE, || async {
        let nodes = nodes_with(world, MOVED).await?;
        Ok(if nodes == NODES { Ok(()) } else { Err(format!("{nodes:?}")) })
    })
    .await?;
    tenant_ready(world, "t").await?;
    // with its kind all objects go
    world.kubectl(&["delete", "crd", KIND]).await?;
    unmarked(world).await
}

#[tokio::test]
async fn agent_leaves_for_the_reset_of_a_gpu_and_returns() {
    let world = World::enter().await.unwrap();
    let outcome = reset(&world).await;
    // also after a failure
    for node in NODES {
        world.kubectl(&["label", "node", node, &format!("{DCGM}-")]).await.unwrap();
    }
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("gpu-reset", async { outcome }).await;
}

async fn label(world: &World, node: &str, value: &str) -> Result<()> {
    world.kubectl(&["label", "--overwrite", "node", node, &format!("{DCGM}={value}")]).await.map(drop)
}

async fn reset(world: &World) -> Result<()> {
    // DCGM has no label on gpu-2
    label(world, "gpu-1", "true").await?;
    product::install(&world.lab, &["presets.nvsentinel.enabled=true"]).await?;
    world
        .set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 2)])])
        .await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("t", "w", SLICE, 1)]).await?;
    let before = world.pods_ready("t", 1).await?;

    label(world, "gpu-1", "false").await?;
    agents(world, "gpu-1", 0).await?;
    agents(world, "gpu-2", 1).await?;
    let left = objects::allocatable(&world.client, "gpu-1", SLICE).await?;
    ensure(left <= 1, format!("allocatable without an agent: {left}"))?;
    ensure(objects::running(&world.client, "t").await? == before, "a pod was disturbed while the agent left")?;

    label(world, "gpu-1", "true").await?;
    agents(world, "gpu-1", 1).await?;
    eventually("both devices to be allocatable again", PATIENCE, || async {
        let offered = objects::allocatable(&world.client, "gpu-1", SLICE).await?;
        Ok(if offered == 2 { Ok(()) } else { Err(offered.to_string()) })
    })
    .await?;
    ensure(objects::running(&world.client, "t").await? == before, "a pod was disturbed when the agent returned")
}
