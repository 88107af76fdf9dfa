//! The agent as a client of the GPU Operator: it leaves a node for a driver upgrade and returns.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects,
    objects::ensure,
    product,
    scenario::{NODES, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::json;

const LABEL: &str = "nvidia.com/gpu.deploy.client";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

#[tokio::test]
async fn agent_leaves_for_driver_upgrade_and_returns() {
    let world = World::enter().await.unwrap();
    let body = leave_and_return(&world).await;
    // also after a failure, for the next test
    product::install(&world.lab, &[]).await.unwrap();
    for node in NODES {
        world.kubectl(&["label", "node", node, &format!("{LABEL}-")]).await.unwrap();
    }
    world.keeping_evidence("gpu-client", async { body }).await;
}

async fn leave_and_return(world: &World) -> Result<()> {
    for node in NODES {
        world.kubectl(&["label", "--overwrite", "node", node, &format!("{LABEL}=true")]).await?;
    }
    product::install(&world.lab, &["agent.gpuOperatorClient=true"]).await?;
    world
        .set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 2)])])
        .await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("t", "w", SLICE, 1)]).await?;
    let before = world.pods_ready("t", 1).await?;

    world.kubectl(&["label", "--overwrite", "node", "gpu-1", &format!("{LABEL}=paused-for-driver-upgrade")]).await?;
    agents_on_gpu_1(world, 0).await?;
    let left = objects::allocatable(&world.client, "gpu-1", SLICE).await?;
    ensure(left <= 1, format!("allocatable without an agent: {left}"))?;
    ensure(objects::running(&world.client, "t").await? == before, "a pod was disturbed while the agent left")?;

    world.kubectl(&["label", "--overwrite", "node", "gpu-1", &format!("{LABEL}=true")]).await?;
    agents_on_gpu_1(world, 1).await?;
    eventually("both devices to be allocatable again", PATIENCE, || async {
        let offered = objects::allocatable(&world.client, "gpu-1", SLICE).await?;
        Ok(if offered == 2 { Ok(()) } else { Err(offered.to_string()) })
    })
    .await?;
    ensure(objects::running(&world.client, "t").await? == before, "a pod was disturbed when the agent returned")
}

#[tokio::test]
async fn gpu_operator_client_auto_requires_cluster_policy_and_node_label() {
    let world = World::enter().await.unwrap();
    let body = auto(&world).await;
    world.kubectl(&["delete", "crd", POLICIES, "--ignore-not-found"]).await.unwrap();
    world.kubectl(&["label", "node", "gpu-2", &format!("{LABEL}-")]).await.unwrap();
    world.keeping_evidence("gpu-client-auto", async { body }).await;
}

const POLICIES: &str = "clusterpolicies.nvidia.com";

async fn auto(world: &World) -> Result<()> {
    ensure(!is_client(world).await?, "client without the CRD")?;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let names = json!({"plural": "clusterpolicies", "singular": "clusterpolicy", "kind": "ClusterPolicy", "listKind": "ClusterPolicyList"});
    let spec = json!({"group": "nvidia.com", "scope": "Cluster", "names": names, "versions": [version]});
    let kind = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": POLICIES}, "spec": spec});
    world.set(&[kind]).await?;
    world.kubectl(&["wait", "--for=condition=Established", "crd", POLICIES, "--timeout=60s"]).await?;
    let label = format!("{LABEL}=true");
    world.kubectl(&["label", "--overwrite", "node", "gpu-2", &label]).await?;
    ensure(!is_client(world).await?, "client without a ClusterPolicy")?;
    world.apply("{apiVersion: nvidia.com/v1, kind: ClusterPolicy, metadata: {name: cluster-policy}, spec: {}}").await?;
    ensure(is_client(world).await?, "no client with ClusterPolicy and node label")?;
    world.kubectl(&["label", "node", "gpu-2", &format!("{LABEL}-")]).await?;
    ensure(!is_client(world).await?, "client without the node label, as with an older GPU Operator")
}

/// Does helm render the agent as a client on this cluster, without simulated GPUs?
async fn is_client(world: &World) -> Result<bool> {
    let chart = product::root().join("helm/gputenancy").display().to_string();
    let install = ["template", product::RELEASE, &chart, "--namespace", product::NAMESPACE, "--dry-run=server"];
    let text = world.lab.helm(&[&install[..], &["--show-only", "templates/agent.yaml"]].concat()).await?;
    Ok(text.contains(&format!("{LABEL}: \"true\"")))
}

async fn agents_on_gpu_1(world: &World, count: usize) -> Result<()> {
    eventually(&format!("{count} agents on gpu-1"), PATIENCE, || async {
        let pods = world.agents_on("gpu-1").await?;
        let (all, ready) = (pods.len(), pods.iter().filter(|p| objects::is_ready(p)).count());
        Ok(if all == count && ready == count { Ok(()) } else { Err(format!("{all} agents, {ready} ready")) })
    })
    .await
}
