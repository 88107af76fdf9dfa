//! Takes the agent off a node and brings it back, as the GPU Operator does for a driver upgrade.

use crate::{
    Result, World, objects, product,
    scenario::NODES,
    wait::{PATIENCE, eventually},
};

/// Label of clients of the GPU Operator: the agent runs where its value is `true`.
pub const CLIENT_LABEL: &str = "nvidia.com/gpu.deploy.client";

/// Installs the agent as a client of the GPU Operator on all GPU nodes.
pub async fn install_as_client(world: &World) -> Result<()> {
    for node in NODES {
        label(world, node, "true").await?;
    }
    product::install(&world.lab, &["agent.gpuOperatorClient=true"]).await.map(drop)
}

/// Installs the chart as before, for the next test.
pub async fn install_as_before(world: &World) -> Result<()> {
    product::install(&world.lab, &[]).await?;
    for node in NODES {
        world.kubectl(&["label", "node", node, &format!("{CLIENT_LABEL}-")]).await?;
    }
    Ok(())
}

/// Takes the agent off a node, and waits until its pod is gone.
pub async fn agent_leaves(world: &World, node: &str) -> Result<()> {
    label(world, node, "paused-for-driver-upgrade").await?;
    agents(world, node, 0).await
}

/// Brings the agent back, and waits until its pod is Ready.
pub async fn agent_returns(world: &World, node: &str) -> Result<()> {
    label(world, node, "true").await?;
    agents(world, node, 1).await
}

async fn label(world: &World, node: &str, value: &str) -> Result<()> {
    world.kubectl(&["label", "--overwrite", "node", node, &format!("{CLIENT_LABEL}={value}")]).await.map(drop)
}

/// Waits until so many agents are on a node, all of them Ready.
pub async fn agents(world: &World, node: &str, count: usize) -> Result<()> {
    eventually(&format!("{count} agents on {node}"), PATIENCE, || async {
        let pods = world.agents_on(node).await?;
        let (all, ready) = (pods.len(), pods.iter().filter(|p| objects::is_ready(p)).count());
        Ok(if all == count && ready == count { Ok(()) } else { Err(format!("{all} agents, {ready} ready")) })
    })
    .await
}
