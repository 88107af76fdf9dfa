//! Starting a lab, from nothing to ready nodes.

use crate::control::{self, Request};
use crate::error::{Asking, During, Error, Result};
use crate::image;
use crate::init::SOCKET;
use crate::keeper::State;
use crate::lab::{Lab, fetch_kubeconfig, inside};
use crate::place::Folders;
use crate::process::LOOK;
use crate::progress::Progress;
use crate::spec::{LabSpec, Plan};
use crate::wait::{PATIENCE, wait_api};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Objects that the lab applies to its cluster.
const ADDONS: &str = concat!(include_str!("conf/coredns.yaml"), "\n---\n", include_str!("conf/kube-proxy-rights.yaml"));

impl Lab {
    /// Starts a lab and waits until its nodes and its DNS are ready.
    pub async fn start(spec: LabSpec) -> Result<Self> {
        let mut progress = Progress::new(spec.verbose);
        let folders = Folders::find()?;
        crate::prerequisites::check(&folders)?;
        let nodes = spec.nodes()?;
        crate::prerequisites::check_watchers(nodes.len())?;
        let folder = folders.lab(&spec.name);
        fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;
        if State::read(&folder)?.is_some_and(|state| state.alive()) {
            return Err(Error::Missing(format!(
                "lab {} runs already: attach to it, or `lab down --name {}`",
                spec.name, spec.name
            )));
        }
        crate::lab::down(&folders, &spec.name)?;
        fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;

        let images = image::build_all(&folders, spec.profile, spec.require_images, &mut progress).await?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).during(|| "taking a loopback port".to_owned())?;
        let port = listener.local_addr().during(|| "taking a loopback port".to_owned())?.port();
        let plan = Plan {
            name: spec.name.clone(),
            nodes,
            port,
            toolset: folders.toolset.clone(),
            shown: vec![
                folders.root.join("integration"),
                folders.root.join("target"),
                folders.target.clone(),
                folders.cache.clone(),
            ],
            images,
            node_memory_mib: spec.node_memory_mib,
            apiserver_flags: spec.apiserver_flags,
            kubelet_flags: spec.kubelet_flags,
        };
        let text = serde_json::to_vec_pretty(&plan).during(|| "writing the plan".to_owned())?;
        fs::write(folder.join("plan.json"), text).during(|| "writing the plan".to_owned())?;
        let outcome = bring_up(&spec.name, &folder, listener, &mut progress).await;
        if outcome.is_err() {
            progress.step(&format!(
                "the lab did not start; inspect it: lab logs --name {0}, lab down --name {0}",
                spec.name
            ));
        }
        outcome
    }
}

async fn bring_up(name: &str, folder: &Path, listener: TcpListener, progress: &mut Progress) -> Result<Lab> {
    spawn_keeper(name, folder, listener)?;
    let state = wait_init(name, folder).await?;
    progress.step("namespaces, network and keys created; etcd, kube-apiserver and the nodes' containerd are starting");
    fetch_kubeconfig(&state, folder)?;
    wait_api(folder, &state, PATIENCE).await?;
    progress.step(&format!(
        "the API server is ready (on the host: export KUBECONFIG={})",
        folder.join("kubeconfig").display()
    ));
    let lab = Lab::attach(name).await?;
    lab.apply_addons().await?;
    lab.nodes_ready().await?;
    progress.step(&format!("nodes are ready: {}", lab.node_names().join(" ")));
    if !lab.node_names().is_empty() {
        lab.deployment_ready("kube-system", "coredns").await?;
        progress.step("cluster DNS answers");
    }
    fs::write(folder.join("up"), "").during(|| "noting that the lab is up".to_owned())?;
    Ok(lab)
}

/// The `lab` program: next to the running test or example, or the running program itself.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPUTENANCY_LAB").map(PathBuf::from) {
        return Ok(path);
    }
    let own = std::env::current_exe().during(|| "finding this program".to_owned())?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("lab")).find(|path| path.is_file());
    beside.ok_or_else(|| {
        Error::Missing(format!("the lab program is not next to {}: run `cargo build -p lab`", own.display()))
    })
}

fn spawn_keeper(name: &str, folder: &Path, listener: TcpListener) -> Result<()> {
    let log = folder.join("lab.log");
    let out = fs::File::create(&log).during(|| format!("creating {}", log.display()))?;
    let errors = out.try_clone().during(|| format!("creating {}", log.display()))?;
    // a separate session: neither an interrupt nor the end of the caller's terminal reaches the lab
    let mut command = tokio::process::Command::new("setsid");
    command.arg(program()?).arg("keeper").arg(folder).arg(name);
    command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(out).stderr(errors).current_dir("/");
    command.spawn().during(|| "starting the lab".to_owned()).map(drop)
}

/// Waits until the lab's first process responds.
async fn wait_init(name: &str, folder: &Path) -> Result<State> {
    let log = folder.join("lab.log");
    let answers = async {
        let mut seen = false;
        loop {
            match State::read(folder)? {
                Some(state) if state.alive() => {
                    if control::ask(name, &inside(&state, SOCKET), &Request::Status).await.is_ok() {
                        return Ok(state);
                    }
                    seen = true;
                }
                Some(state) if state.keeper.alive() => {}
                None if !seen => {}
                _ => {
                    let text = fs::read_to_string(&log).unwrap_or_default();
                    return Err(Error::Missing(format!(
                        "lab {name} ended while it was being started:\n{}",
                        text.trim()
                    )));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let limit = Duration::from_mins(5);
    let late = |_| Error::Timeout { what: format!("lab {name} to answer"), after: limit, log: Some(log.clone()) };
    tokio::time::timeout(limit, answers).await.map_err(late)?
}

impl Lab {
    async fn apply_addons(&self) -> Result<()> {
        let objects: Vec<DynamicObject> = serde_saphyr::from_multiple(ADDONS)
            .map_err(|error| Error::Invalid { what: "the lab's add-ons".to_owned(), why: error.to_string() })?;
        for object in objects {
            self.apply_one(object).await?;
        }
        Ok(())
    }

    async fn apply_one(&self, object: DynamicObject) -> Result<()> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let types = object.types.clone().unwrap_or_default();
        let kind = GroupVersionKind::try_from(&types)
            .map_err(|error| Error::Invalid { what: name.clone(), why: error.to_string() })?;
        let resource = ApiResource::from_gvk(&kind);
        let api = match &object.metadata.namespace {
            Some(namespace) => Api::<DynamicObject>::namespaced_with(self.client(), namespace, &resource),
            None => Api::all_with(self.client(), &resource),
        };
        let params = PatchParams::apply("lab").force();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .asking(|| format!("applying {} {name}", types.kind))
            .map(drop)
    }
}
