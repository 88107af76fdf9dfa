//! Handle of a node: power, network cable, components, and commands inside it.

use crate::command::{self, Output};
use crate::control::{self, Answer, Request, Status};
use crate::error::{Error, Result};
use crate::lab::Lab;
use crate::place::{node_folder, node_share};
use crate::spec::NodePlan;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// A node of a running lab.
#[derive(Clone)]
pub struct NodeHandle {
    lab: Lab,
    plan: NodePlan,
}

impl Lab {
    /// A node, by name.
    pub fn node(&self, name: &str) -> Result<NodeHandle> {
        let node = self.inner.plan.node(name).cloned();
        let node = node.ok_or_else(|| {
            Error::Missing(format!("lab {} has no node {name}, only {}", self.name(), self.node_names().join(", ")))
        })?;
        Ok(NodeHandle::new(self.clone(), node))
    }
}

impl NodeHandle {
    pub(crate) fn new(lab: Lab, plan: NodePlan) -> Self {
        Self { lab, plan }
    }

    /// Its name in Kubernetes.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Whether it gets simulated GPUs.
    pub fn gpu(&self) -> bool {
        self.plan.gpu
    }

    fn named(&self) -> String {
        self.plan.name.clone()
    }

    /// Power loss: all of its processes end at this moment; `/run`, `/dev` and `/tmp` are lost, the disk is not.
    pub async fn power_off(&self) -> Result<()> {
        self.lab.ask(&Request::PowerOff(self.named())).await.map(drop)
    }

    /// Switches it on. Returns when its root process runs; see [`NodeHandle::wait_ready`].
    pub async fn power_on(&self) -> Result<()> {
        self.lab.ask(&Request::PowerOn(self.named())).await.map(drop)
    }

    /// Pulls its network cable: it reaches neither the API server nor other nodes.
    pub async fn cut_network(&self) -> Result<()> {
        self.lab.ask(&Request::Cut(self.named())).await.map(drop)
    }

    /// Plugs the cable in again.
    pub async fn restore_network(&self) -> Result<()> {
        self.lab.ask(&Request::Restore(self.named())).await.map(drop)
    }

    /// Kills one of its programs (`kubelet`, `containerd`, `kube-proxy`); it is started again.
    pub async fn kill_component(&self, name: &str) -> Result<()> {
        self.ask(&Request::Kill(name.to_owned())).await.map(drop)
    }

    /// Stops one of its programs until it is started again or the node power-cycled.
    pub async fn stop_component(&self, name: &str) -> Result<()> {
        self.ask(&Request::Stop(name.to_owned())).await.map(drop)
    }

    /// Starts a stopped program.
    pub async fn start_component(&self, name: &str) -> Result<()> {
        self.ask(&Request::Start(name.to_owned())).await.map(drop)
    }

    async fn ask(&self, request: &Request) -> Result<Answer> {
        let socket = node_share(self.name()).join("control.sock");
        control::ask(self.lab.name(), &self.lab.inside(&socket.display().to_string()), request).await
    }

    /// Its programs and their processes.
    pub async fn status(&self) -> Result<Status> {
        match self.ask(&Request::Status).await? {
            Answer::Status(status) => Ok(status),
            other => Err(Error::Refused {
                lab: self.lab.name().to_owned(),
                message: format!("{} answered {other:?}", self.name()),
            }),
        }
    }

    /// Waits until its programs have all been started.
    pub async fn wait_booted(&self, timeout: Duration) -> Result<()> {
        let booted = async {
            while !self.status().await.is_ok_and(|status| status.booted) {
                tokio::time::sleep(crate::process::LOOK).await;
            }
        };
        tokio::time::timeout(timeout, booted).await.map_err(|_| Error::Timeout {
            what: format!("node {} to boot", self.name()),
            after: timeout,
            log: Some(self.log("boot")),
        })
    }

    /// A component's log file (`boot` for the node's own), as the host reaches it.
    pub fn log(&self, component: &str) -> PathBuf {
        let file = node_share(self.name()).join("log").join(format!("{component}.log"));
        self.lab.inside(&file.display().to_string())
    }

    /// A file of kubelet's folder, as the host reaches it while the node runs.
    pub fn kubelet_file(&self, path: &str) -> PathBuf {
        let file = node_folder(self.name()).join("disk/kubelet").join(path);
        self.lab.inside(&file.display().to_string())
    }

    /// Runs a command inside the node's namespaces, as root.
    pub async fn exec(&self, argv: &[impl AsRef<OsStr>]) -> Result<Output> {
        command::output(&mut self.command(argv).await?).await
    }

    /// Like [`NodeHandle::exec`], but it must succeed; its standard output.
    pub async fn run(&self, argv: &[impl AsRef<OsStr>]) -> Result<String> {
        let words: Vec<_> = argv.iter().map(|word| word.as_ref().to_string_lossy().into_owned()).collect();
        self.exec(argv).await?.success(&format!("{}: {}", self.name(), words.join(" ")))
    }

    /// A command that will run inside the node's namespaces.
    pub async fn command(&self, argv: &[impl AsRef<OsStr>]) -> Result<Command> {
        let pid = self.lab.node_status(self.name()).await?.pid;
        let pid = pid.ok_or_else(|| Error::Missing(format!("node {} is off", self.name())))?;
        Ok(self.lab.node_command(pid, argv))
    }

    /// Loads an image tar into its containerd, unless it has the same one. Returns whether it was loaded.
    pub async fn load_image(&self, tar: &Path) -> Result<bool> {
        let known = self.exec(&["cat", crate::node_init::IMPORTED]).await?.stdout;
        if crate::node_init::is_imported(&known, tar) {
            return Ok(false);
        }
        let tar = tar.display().to_string();
        let mut argv = crate::node_init::IMPORT.to_vec();
        argv.push(&tar);
        self.run(&argv).await?;
        self.run(&["sh", "-c", &format!("echo {tar} >> {}", crate::node_init::IMPORTED)]).await?;
        Ok(true)
    }

    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }
}
