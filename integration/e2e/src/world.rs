//! The lab that all tests share, with the product installed.

use std::time::Duration;

use futures::future::{try_join, try_join_all};
use gputenancy_crds::GpuNode;
use kube::{Api, Client, api::ListParams};
use lab::Lab;

use crate::{
    Error, Result, mig_manager, objects, product,
    story::NODES,
    turn::Turn,
    wait::{PATIENCE, eventually},
};

/// The share of the driver's real latency that tests wait for.
const QUARTER: &str = "0.25";

/// Handles on the lab.
pub struct World {
    /// The lab itself: nodes, power, network.
    pub lab: Lab,
    /// A client with all rights.
    pub client: Client,
    _turn: Turn,
}

impl World {
    /// Waits for a lab that nobody uses and attaches to it, without installing anything.
    pub async fn bare() -> Result<Self> {
        let turn = Turn::take().await?;
        let lab = Lab::attach(&turn.lab).await?;
        let client = lab.client();
        Ok(Self { lab, client, _turn: turn })
    }

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

    /// Waits until the operator has given up every GPU: a board that is reset before that is carved again as after a reboot.
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

    /// Runs a test body and keeps logs, events and objects of the lab when it fails.
    ///
    /// # Panics
    /// When the body fails: this is how a test says so.
    pub async fn keeping_evidence<T>(&self, test: &str, body: impl Future<Output = Result<T>>) -> T {
        match body.await {
            Ok(value) => value,
            Err(error) => {
                let kept = self.lab.collect(test).await;
                let note = kept
                    .map_or_else(|e| format!("(nothing kept: {e})"), |path| format!("(kept in {})", path.display()));
                #[allow(clippy::panic, reason = "this is how a test fails")]
                {
                    panic!("{test}: {error} {note}")
                }
            }
        }
    }

    /// Waits until every GPU node has an agent that sees its GPUs.
    pub async fn agents_ready(&self) -> Result<Vec<GpuNode>> {
        let api = Api::<GpuNode>::all(self.client.clone());
        eventually("an agent with GPUs on gpu-1 and gpu-2", PATIENCE, || async {
            let nodes = api.list(&ListParams::default()).await?.items;
            let seeing = nodes.iter().filter(|n| n.status.as_ref().is_some_and(|s| !s.gpus.is_empty())).count();
            Ok(if seeing >= 2 { Ok(nodes) } else { Err(format!("{seeing} of {} GpuNodes show GPUs", nodes.len())) })
        })
        .await
    }

    /// `kubectl` with these words; what it prints.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        Ok(self.lab.kubectl(args).await?)
    }

    /// Applies a file of `samples/`.
    pub async fn sample(&self, file: &str) -> Result<String> {
        let path = product::root().join("samples").join(file).display().to_string();
        self.kubectl(&["apply", "--server-side", "-f", &path]).await
    }

    /// Applies a manifest given as text.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        let io = |source| Error::Io { what: "writing a manifest".into(), source };
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io)?;
        std::fs::write(file.path(), manifest).map_err(io)?;
        self.kubectl(&["apply", "--server-side", "-f", &file.path().display().to_string()]).await
    }

    /// Runs a program on a node, as root in its namespaces; what it prints.
    pub async fn on_node(&self, node: &str, args: &[&str]) -> Result<String> {
        Ok(self.lab.node(node)?.run(args).await?)
    }

    /// Talks to the simulated silicon of a node: faults, history.
    pub async fn nvsim(&self, node: &str, args: &[&str]) -> Result<String> {
        let nvsim = product::root().join("target/debug/nvsim").display().to_string();
        let state = [nvsim.as_str(), "--state", "/run/nvidia/driver/run/nvsim"];
        self.on_node(node, &[&state, args].concat()).await
    }

    /// Waits until so many pods of a namespace are Ready; all of them by name.
    pub async fn pods_ready(
        &self,
        namespace: &str,
        count: usize,
    ) -> Result<std::collections::BTreeMap<String, objects::Life>> {
        eventually(&format!("{count} pods of {namespace} Ready"), PATIENCE, || async {
            let running = objects::running(&self.client, namespace).await?;
            Ok(if running.len() == count { Ok(running) } else { Err(format!("{} Ready", running.len())) })
        })
        .await
    }

    /// Waits until the layouts of all GPU nodes satisfy a predicate and no GPU is changing.
    pub async fn layout(
        &self,
        what: &str,
        limit: Duration,
        good: impl Fn(&[Vec<String>]) -> bool,
    ) -> Result<Vec<Vec<String>>> {
        let api = Api::<GpuNode>::all(self.client.clone());
        eventually(what, limit, || async {
            let nodes = api.list(&ListParams::default()).await?.items;
            let all: Vec<Vec<String>> = nodes.iter().flat_map(objects::layouts).collect();
            let changing = nodes.iter().flat_map(|n| &n.spec.gpus).filter(|g| g.change.is_some()).count();
            Ok(if changing == 0 && good(&all) { Ok(all) } else { Err(format!("{changing} changing; {all:?}")) })
        })
        .await
    }
}
