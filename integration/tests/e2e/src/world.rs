//! The lab that all tests share, with the product installed.

use std::{collections::BTreeSet, time::Duration};

use gputenancy_crds::GpuNode;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use lab::Lab;

use crate::{
    Error, Result,
    lab_lock::LabLock,
    objects::{self, ClusterObject},
    product,
    wait::{PATIENCE, eventually},
};

/// Names of the GPU nodes.
pub const NODES: [&str; 2] = ["gpu-1", "gpu-2"];

/// Handles on the lab.
pub struct World {
    /// The lab: nodes, power, network.
    pub lab: Lab,
    /// A client with all rights.
    pub client: Client,
    lock: LabLock,
}

impl World {
    /// Waits for a free lab and attaches to it, without installing anything. A test that its time limit
    /// ended may have left nodes off and programs changed: all is switched on, and the programs are installed again.
    pub async fn attach() -> Result<Self> {
        let lock = LabLock::acquire().await?;
        let lab = Lab::attach(&lock.lab).await?;
        lab.switch_on().await?;
        let client = lab.client();
        let world = Self { lab, client, lock };
        if world.lock.interrupted {
            world.disconnect_kueue().await?;
            world.uninstall_programs().await?;
        }
        Ok(world)
    }

    /// Runs a test body and collects logs, events and objects of the lab when it fails.
    ///
    /// # Panics
    /// When the body fails.
    pub async fn keeping_evidence<T>(&self, test: &str, body: impl Future<Output = Result<T>>) -> T {
        match body.await {
            Ok(value) => value,
            Err(error) => {
                let kept = self.lab.collect(test).await;
                let note = kept.map_or_else(
                    |e| format!("(nothing collected: {e})"),
                    |path| format!("(collected in {})", path.display()),
                );
                #[allow(clippy::panic, reason = "this is how a test fails")]
                {
                    panic!("{test}: {error} {note}")
                }
            }
        }
    }

    /// Waits until the agent of every GPU node reports GPUs.
    pub async fn agents_ready(&self) -> Result<Vec<GpuNode>> {
        let api = Api::<GpuNode>::all(self.client.clone());
        eventually("agents that report GPUs on gpu-1 and gpu-2", PATIENCE, || async {
            let nodes = api.list(&ListParams::default()).await?.items;
            let sees = |n: &&GpuNode| n.status.as_ref().is_some_and(|s| !s.gpus.is_empty());
            let seeing = nodes.iter().filter(sees).filter(|n| NODES.contains(&n.name_any().as_str())).count();
            let all = seeing == NODES.len();
            Ok(if all { Ok(nodes) } else { Err(format!("{seeing} of {} GpuNodes list GPUs", nodes.len())) })
        })
        .await
    }

    /// Runs `kubectl` with these arguments and returns its output.
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

    /// Runs a program on a node, as root in its namespaces, and returns its output.
    pub async fn on_node(&self, node: &str, args: &[&str]) -> Result<String> {
        Ok(self.lab.node(node)?.run(args).await?)
    }

    /// Runs `nvsim` for the simulated GPUs of a node: faults, history.
    pub async fn nvsim(&self, node: &str, args: &[&str]) -> Result<String> {
        let nvsim = product::root().join("target/debug/nvsim").display().to_string();
        let state = [nvsim.as_str(), "--state", "/run/nvidia/driver/run/nvsim"];
        self.on_node(node, &[&state, args].concat()).await
    }

    /// Waits until exactly `count` pods of a namespace are Ready, and returns them by name.
    pub async fn pods_ready(
        &self,
        namespace: &str,
        count: usize,
    ) -> Result<std::collections::BTreeMap<String, objects::PodIdentity>> {
        eventually(&format!("{count} pods of {namespace} Ready"), PATIENCE, || async {
            let running = objects::running(&self.client, namespace).await?;
            Ok(if running.len() == count { Ok(running) } else { Err(format!("{} Ready", running.len())) })
        })
        .await
    }

    /// Waits until a condition of a cluster-scoped object has this status and reason, and a message with these excerpts.
    pub async fn condition_becomes<K: ClusterObject>(
        &self,
        name: &str,
        type_: &str,
        status: &str,
        reason: &str,
        excerpts: &[&str],
    ) -> Result<()> {
        let api = Api::<K>::all(self.client.clone());
        eventually(&format!("{type_}={status} {reason} of {} {name}", K::kind(&())), PATIENCE, || async {
            let (conditions, _) = objects::status(&api.get(name).await?);
            Ok(objects::check_condition(&conditions, type_, status, reason, excerpts))
        })
        .await
    }

    /// Pods of the agent on a node.
    pub async fn agents_on(&self, node: &str) -> Result<Vec<Pod>> {
        let here = ListParams::default()
            .labels("app.kubernetes.io/name=gputenancy-agent")
            .fields(&format!("spec.nodeName={node}"));
        Ok(Api::<Pod>::namespaced(self.client.clone(), product::NAMESPACE).list(&here).await?.items)
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

    /// Every object of the cluster that carries a label, as `kind/name`.
    pub async fn labelled(&self, label: &str) -> Result<BTreeSet<String>> {
        let kinds = self.kubectl(&["api-resources", "--verbs=list", "-o", "name"]).await?;
        // events expire by themselves, and the lab has no metrics server
        let kinds: Vec<&str> =
            kinds.lines().filter(|k| !k.starts_with("events") && !k.contains("metrics.k8s.io")).collect();
        let found =
            self.kubectl(&["get", &kinds.join(","), "-A", "-l", label, "-o", "name", "--ignore-not-found"]).await?;
        Ok(found.lines().map(str::to_owned).collect())
    }
}
