//! Preparing a lab for a test: installs the product and removes the objects of earlier tests.

use futures::future::{try_join, try_join_all};
use gputenancy_crds::GpuNode;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    Result, World, mig_manager, objects, product,
    wait::{PATIENCE, eventually},
    world::NODES,
};

/// Share of the driver's real latency in most tests.
const LATENCY: &str = "0.25";

impl World {
    /// Attaches to a free lab, installs the product, and removes the objects of earlier tests. Driver calls take a quarter of
    /// their real time, because most tests check the result of a change and not its duration.
    pub async fn enter() -> Result<Self> {
        let world = Self::attach().await?;
        world.reinstall(&[]).await?;
        mig_manager::remove(&world).await?;
        Ok(world)
    }

    /// As [`World::enter`] for tests of what the API server decides: GPUs are left as they are.
    pub async fn enter_api() -> Result<Self> {
        let world = Self::attach().await?;
        world.reinstall_api(&[]).await?;
        mig_manager::remove(&world).await?;
        Ok(world)
    }

    /// Installs the product with these chart values and removes the objects of earlier tests, and leaves GPUs as they are.
    pub async fn reinstall_api(&self, values: &[&str]) -> Result<()> {
        try_join(self.installed(values, &[]), objects::delete_everything(&self.client)).await?;
        Box::pin(self.h100_node_removed()).await
    }

    /// As [`World::enter`], with driver calls that take as long as on hardware: for the demo, benchmarks, and tests that
    /// interrupt a change in progress.
    pub async fn enter_realtime() -> Result<Self> {
        let world = Self::enter().await?;
        world.latency("real").await?;
        Ok(world)
    }

    /// Installs the product with these chart values and removes the objects of earlier tests; latency as in [`World::enter`].
    pub async fn reinstall(&self, values: &[&str]) -> Result<()> {
        self.reinstall_with(values, &[]).await
    }

    /// As [`World::reinstall`], with further flags of helm.
    pub async fn reinstall_with(&self, values: &[&str], flags: &[&str]) -> Result<()> {
        // Deletion runs beside the upgrade: a namespace takes five seconds, an upgrade half of that, and either operator can do it.
        // Boxed: this future and the body of a test share the stack of the test.
        let product = Box::pin(async {
            self.installed(values, flags).await?;
            self.marks_removed().await?;
            self.gpus_released().await?;
            self.latency(LATENCY).await?;
            self.reset_boards().await
        });
        try_join(product, objects::delete_everything(&self.client)).await?;
        Box::pin(self.h100_node_removed()).await
    }

    /// Installs the product with these chart values, unless it is installed so.
    async fn installed(&self, values: &[&str], flags: &[&str]) -> Result<()> {
        if !self.has_installed(values, flags).await? {
            self.forget_installed();
            // over what tests have changed by hand
            product::install_with(&self.lab, values, &[flags, &["--force-conflicts"]].concat()).await?;
            self.note_installed(values, flags).await?;
        }
        self.agents_ready().await.map(drop)
    }

    /// Removes what tests have said about nodes: cordons, taints and conditions of products that no lab runs.
    async fn marks_removed(&self) -> Result<()> {
        let api = Api::<Node>::all(self.client.clone());
        for node in api.list(&ListParams::default()).await?.items {
            let (name, spec) = (node.name_any(), node.spec.unwrap_or_default());
            if spec.unschedulable == Some(true) || spec.taints.is_some_and(|taints| !taints.is_empty()) {
                let clean = json!({"spec": {"unschedulable": null, "taints": null}});
                api.patch(&name, &PatchParams::default(), &Patch::Merge(clean)).await?;
            }
            let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
            let foreign = conditions.iter().filter(|c| {
                !["Ready", "NetworkUnavailable"].contains(&c.type_.as_str()) && !c.type_.ends_with("Pressure")
            });
            let removed: Vec<_> = foreign.map(|c| json!({"type": c.type_, "$patch": "delete"})).collect();
            if !removed.is_empty() {
                let clean = json!({"status": {"conditions": removed}});
                api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(clean)).await?;
            }
        }
        Ok(())
    }

    /// Waits until no `GpuNode` spec lists a GPU: a board that is reset earlier is partitioned again, as after a reboot.
    async fn gpus_released(&self) -> Result<()> {
        let api = Api::<GpuNode>::all(self.client.clone());
        eventually("no GPU in a GpuNode spec", PATIENCE, || async {
            let nodes = api.list(&ListParams::default()).await?.items;
            let kept = nodes.iter().flat_map(|n| n.spec.gpus.iter().map(|g| g.uuid.as_str())).collect::<Vec<_>>();
            Ok(if kept.is_empty() { Ok(()) } else { Err(kept.join(", ")) })
        })
        .await
    }

    /// Resets all GPUs: the planner keeps existing instances, and a test that counts devices starts without any.
    async fn reset_boards(&self) -> Result<()> {
        let reset = |node| async move {
            self.nvsim(node, &["clear-faults"]).await?;
            self.nvsim(node, &["virtualize", "none"]).await?;
            self.nvsim(node, &["memory-limits", "false"]).await?;
            // refused while a process uses the GPU, as by `nvidia-smi`
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

    /// Sets the share of their real time that driver calls take, on all GPU nodes.
    async fn latency(&self, share: &str) -> Result<()> {
        try_join_all(NODES.map(async |node| self.nvsim(node, &["latency", share]).await)).await.map(drop)
    }
}
