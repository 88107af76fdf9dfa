//! Entering the lab: the product is installed, and what earlier tests left is removed.

use futures::future::{try_join, try_join_all};
use gputenancy_crds::GpuNode;
use kube::{Api, api::ListParams};

use crate::{
    Result, World, mig_manager, objects, product,
    wait::{PATIENCE, eventually},
    world::NODES,
};

/// The share of the driver's real latency that tests wait for.
const QUARTER: &str = "0.25";

impl World {
    /// Attaches, installs the product, and removes what earlier tests left. Driver calls take a quarter of their real time:
    /// most tests ask what comes of a change and not how long it takes.
    pub async fn enter() -> Result<Self> {
        let world = Self::bare().await?;
        world.renew(&[]).await?;
        mig_manager::gone(&world).await?;
        Ok(world)
    }

    /// As [`World::enter`], with driver calls that take as long as on hardware: for what is shown or measured, and for tests
    /// that must meet a change in the act.
    pub async fn enter_real() -> Result<Self> {
        let world = Self::enter().await?;
        world.latency("real").await?;
        Ok(world)
    }

    /// Installs the product with these values of the chart, and removes what earlier tests left; driver calls as in [`World::enter`].
    pub async fn renew(&self, values: &[&str]) -> Result<()> {
        // The operator that runs removes what is left, whatever its values were, or the one to come does: a namespace takes five
        // seconds to go, an upgrade half of that.
        let product = async {
            product::install(&self.lab, values).await?;
            self.agents_ready().await?;
            self.given_up().await?;
            self.latency(QUARTER).await?;
            self.blank().await
        };
        try_join(product, objects::delete_everything(&self.client)).await.map(drop)
    }

    /// Waits until the operator has given up every GPU: a board that is reset before that is partitioned again as after a reboot.
    async fn given_up(&self) -> Result<()> {
        let api = Api::<GpuNode>::all(self.client.clone());
        eventually("every GPU given up", PATIENCE, || async {
            let nodes = api.list(&ListParams::default()).await?.items;
            let kept = nodes.iter().flat_map(|n| n.spec.gpus.iter().map(|g| g.uuid.as_str())).collect::<Vec<_>>();
            Ok(if kept.is_empty() { Ok(()) } else { Err(kept.join(", ")) })
        })
        .await
    }

    /// Empties all boards by a reset, as an administrator would before handing them over: the planner keeps what it finds, so
    /// a test that counts devices starts from none.
    async fn blank(&self) -> Result<()> {
        let reset = |node| async move {
            self.nvsim(node, &["clear-faults"]).await?;
            // refused while a process is left, as by `nvidia-smi`
            eventually(&format!("the GPUs of {node} reset"), PATIENCE, || async {
                try_join(self.nvsim(node, &["reset", "0"]), self.nvsim(node, &["reset", "1"])).await.map(Ok)
            })
            .await
        };
        try_join_all(NODES.map(reset)).await?;
        self.layout("no instance on any board", PATIENCE, |all| all.iter().flatten().all(|i| i == "whole"))
            .await
            .map(drop)
    }

    /// From now on driver calls take this share of their real time, on all GPU nodes.
    async fn latency(&self, share: &str) -> Result<()> {
        try_join_all(NODES.map(async |node| self.nvsim(node, &["latency", share]).await)).await.map(drop)
    }
}
