//! Handle of a running lab.

use crate::control::{self, Answer, NodeStatus, Request, Status};
use crate::error::{Asking, During, Error, Result};
use crate::init::{HOST_KUBECONFIG, SOCKET};
use crate::keeper::{self, State};
use crate::place::Folders;
use crate::spec::Plan;
use crate::{client, command};
use kube::Client;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::process::Command;

/// A running lab. Dropping the handle leaves the lab up; [`Lab::down`] removes it.
#[derive(Clone)]
pub struct Lab {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) plan: Plan,
    pub(crate) folders: Folders,
    pub(crate) folder: PathBuf,
    pub(crate) state: State,
    pub(crate) client: Client,
}

impl Lab {
    /// The running lab of this name.
    pub async fn attach(name: &str) -> Result<Self> {
        let folders = Folders::find()?;
        let folder = folders.lab(name);
        let state = State::read(&folder)?.filter(State::alive);
        let state =
            state.ok_or_else(|| Error::Missing(format!("no lab {name} runs: start it with `lab up --name {name}`")))?;
        let file = folder.join("plan.json");
        let text = fs::read_to_string(&file).during(|| format!("reading {}", file.display()))?;
        let plan = serde_json::from_str(&text).during(|| format!("reading {}", file.display()))?;
        let client = client::from_file(&folder.join("kubeconfig")).await?;
        Ok(Self { inner: Arc::new(Inner { plan, folders, folder, state, client }) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.plan.name
    }

    /// A client with the rights of a cluster administrator.
    pub fn client(&self) -> Client {
        self.inner.client.clone()
    }

    /// The kubeconfig that works on the host.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.inner.folder.join("kubeconfig")
    }

    /// The lab's folder on the host.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// The number of the lab's first process, as the host sees it.
    pub fn init_pid(&self) -> i32 {
        self.inner.state.init.map_or(0, |init| init.pid)
    }

    /// The names of the nodes, GPU nodes first.
    pub fn node_names(&self) -> Vec<String> {
        self.inner.plan.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// A path of the lab's file system, as the host reaches it while the lab runs.
    pub fn inside(&self, path: &str) -> PathBuf {
        inside(&self.inner.state, path)
    }

    pub(crate) async fn ask(&self, request: &Request) -> Result<Answer> {
        control::ask(self.name(), &self.inside(SOCKET), request).await
    }

    /// Status of control plane and nodes.
    pub async fn status(&self) -> Result<Status> {
        match self.ask(&Request::Status).await? {
            Answer::Status(status) => Ok(status),
            other => Err(Error::Refused { lab: self.name().to_owned(), message: format!("answered {other:?}") }),
        }
    }

    pub(crate) async fn node_status(&self, node: &str) -> Result<NodeStatus> {
        Ok(self.status().await?.nodes.remove(node).unwrap_or_default())
    }

    /// Stops a component of the control plane (`kube-apiserver`, `kube-scheduler`, `etcd`, …) until it is started again.
    pub async fn stop_component(&self, name: &str) -> Result<()> {
        self.ask(&Request::Stop(name.to_owned())).await.map(drop)
    }

    /// Starts a stopped component of the control plane.
    pub async fn start_component(&self, name: &str) -> Result<()> {
        self.ask(&Request::Start(name.to_owned())).await.map(drop)
    }

    /// Kills a component of the control plane; it is started again.
    pub async fn kill_component(&self, name: &str) -> Result<()> {
        self.ask(&Request::Kill(name.to_owned())).await.map(drop)
    }

    /// Stops the API server.
    pub async fn stop_apiserver(&self) -> Result<()> {
        self.stop_component("kube-apiserver").await
    }

    /// A command that runs in the lab's root namespaces, with the control plane.
    pub fn command(&self, argv: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.enter();
        command.args(argv);
        command
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init_pid().to_string(), "-m", "-n", "-p", "-u", "-i", "-C", "--"]);
        command.args(self.environment("/run/lab/pki/admin.kubeconfig"));
        command
    }

    /// Runs a command in the lab's root namespaces.
    pub async fn exec(&self, argv: &[impl AsRef<OsStr>]) -> Result<command::Output> {
        command::output(&mut self.command(argv)).await
    }

    /// `env …` for commands inside the lab.
    fn environment(&self, kubeconfig: &str) -> Vec<String> {
        let bin = self.inner.plan.toolset.join("bin");
        let path = format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
        vec![
            "env".into(),
            "-i".into(),
            path,
            "HOME=/run/lab/home".into(),
            format!("KUBECONFIG={kubeconfig}"),
            "TERM=dumb".into(),
        ]
    }

    /// A command that runs inside the node whose first process has this number in the lab.
    pub(crate) fn node_command(&self, pid: i32, argv: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.enter();
        command.args(["nsenter", "-t", &pid.to_string(), "-m", "-n", "-p", "-u", "-i", "-C", "--"]);
        command.args(self.environment("/run/lab/pki/kubelet.kubeconfig")).args(argv);
        command
    }

    /// A program of the toolset on the host, configured for this lab's API server, with a temporary home.
    pub fn host_command(&self, tool: &str) -> Result<Command> {
        let program = self.inner.folders.tool(tool)?;
        let home = self.inner.folder.join("home");
        fs::create_dir_all(&home).during(|| format!("creating {}", home.display()))?;
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.kubeconfig_path()).env("HOME", home);
        for variable in [
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
            "HELM_CACHE_HOME",
            "HELM_CONFIG_HOME",
            "HELM_DATA_HOME",
        ] {
            command.env_remove(variable);
        }
        Ok(command)
    }

    /// Runs kubectl; its standard output.
    pub async fn kubectl(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        self.host("kubectl", arguments).await
    }

    /// Runs helm; its standard output.
    pub async fn helm(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        self.host("helm", arguments).await
    }

    async fn host(&self, tool: &str, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let mut command = self.host_command(tool)?;
        command.args(arguments);
        let line = command::words(&command);
        command::output(&mut command).await?.success(&line)
    }

    /// `kubectl apply --server-side` of YAML or JSON text.
    pub async fn apply(&self, text: &str) -> Result<String> {
        let file = tempfile::Builder::new().prefix("apply").suffix(".yaml").tempfile_in(&self.inner.folder);
        let file = file.during(|| "writing the objects to apply".to_owned())?;
        fs::write(file.path(), text).during(|| "writing the objects to apply".to_owned())?;
        let path = file.path().display().to_string();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &path]).await
    }

    /// The API server's own metrics, as text.
    pub async fn apiserver_metrics(&self) -> Result<String> {
        let request = http::Request::get("/metrics").body(Vec::new());
        let request =
            request.map_err(|error| Error::Invalid { what: "/metrics".to_owned(), why: error.to_string() })?;
        self.inner.client.request_text(request).await.asking(|| "reading the API server's metrics".to_owned())
    }

    /// Stops the lab and removes everything except collected artifacts.
    pub async fn down(self) -> Result<()> {
        let ended = tokio::task::spawn_blocking(move || down(&self.inner.folders, self.name()));
        ended.await.during(|| "ending the lab".to_owned())?
    }
}

pub(crate) fn inside(state: &State, path: &str) -> PathBuf {
    let pid = state.init.map_or(0, |init| init.pid);
    PathBuf::from(format!("/proc/{pid}/root{path}"))
}

/// Copies the kubeconfig from the lab to the host.
pub(crate) fn fetch_kubeconfig(state: &State, folder: &Path) -> Result<()> {
    let from = inside(state, HOST_KUBECONFIG);
    let text = fs::read_to_string(&from).during(|| format!("reading {}", from.display()))?;
    crate::pki::write_private(&folder.join("kubeconfig"), &text)
}

/// Stops the lab of this name, or removes the remains of a crashed one. A missing lab is no error.
pub fn down(folders: &Folders, name: &str) -> Result<()> {
    let folder = folders.lab(name);
    let Some(state) = State::read(&folder)? else {
        for file in keeper::FILES {
            let _ = fs::remove_file(folder.join(file));
        }
        let _ = fs::remove_dir_all(folder.join("home"));
        let _ = fs::remove_dir(&folder);
        return Ok(());
    };
    // the keeper cleans up when the lab has ended
    if let Some(init) = state.init {
        init.kill();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while state.keeper.alive() && state.init.is_some() && std::time::Instant::now() < deadline {
        std::thread::sleep(crate::process::LOOK);
    }
    state.keeper.kill();
    if !keeper::clean(&folder, &state, true) {
        let left: Vec<_> =
            state.groups.iter().filter(|group| group.exists()).map(|group| group.display().to_string()).collect();
        return Err(Error::Missing(format!(
            "lab {name} has ended, but these control groups are still in use: {}",
            left.join(" ")
        )));
    }
    Ok(())
}
