//! A node's root process: it enters the node's root and keeps the node's programs running.

use crate::address::{API, API_PORT};
use crate::cgroup;
use crate::command::run as command;
use crate::component;
use crate::control::{self, Answer, Request, Status};
use crate::error::{During, Error, Result};
use crate::place::{LAB, SHARE};
use crate::spec::{NodePlan, Plan};
use crate::supervise::Supervisor;
use crate::{firewall, node_root, render};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// File that lists images already in the node's containerd.
pub(crate) const IMPORTED: &str = "/var/lib/containerd/lab-images";
/// The command that imports one.
pub(crate) const IMPORT: [&str; 6] =
    ["ctr", "--namespace=k8s.io", "images", "import", "--local", "--discard-unpacked-layers"];
const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// Runs the node until it is killed.
pub async fn run(name: &str) -> Result<()> {
    let file = Path::new(LAB).join("plan.json");
    let text = fs::read_to_string(&file).during(|| format!("reading {}", file.display()))?;
    let plan: Plan = serde_json::from_str(&text).during(|| format!("reading {}", file.display()))?;
    let node = plan.node(name).cloned().ok_or_else(|| Error::Missing(format!("the plan has no node {name}")))?;
    nix::unistd::sethostname(name).during(|| "setting the host name".to_owned())?;
    node_root::enter(&plan, name, &cgroup::hierarchies()?)?;
    files(&plan, &node)?;
    settings();

    let bin = plan.toolset.join("bin");
    let path = format!("{}:{}/cni:/usr/sbin:/usr/bin:/sbin:/bin", bin.display(), plan.toolset.display());
    let supervisor = Supervisor::new(&Path::new(SHARE).join("log"), path)?;
    let booted = Arc::new(AtomicBool::new(false));
    let (for_control, done) = (supervisor.clone(), booted.clone());
    let serving = tokio::spawn(async move {
        let socket = Path::new(SHARE).join("control.sock");
        control::serve(&socket, move |request| {
            let (supervisor, done) = (for_control.clone(), done.clone());
            async move { answer(&supervisor, &done, request).await }
        })
        .await
    });
    boot(&plan, &node, &supervisor).await?;
    booted.store(true, Ordering::Release);
    serving.await.map_err(|error| Error::Missing(format!("the control socket ended: {error}")))?
}

fn files(plan: &Plan, node: &NodePlan) -> Result<()> {
    let write = |path: &str, content: &str| {
        // the host's file may be a link into /run
        let _ = fs::remove_file(path);
        fs::write(path, content).during(|| format!("writing {path}"))
    };
    for folder in ["/etc/cni/net.d", "/etc/containerd", "/etc/cdi", "/var/run/cdi"] {
        fs::create_dir_all(folder).during(|| format!("creating {folder}"))?;
    }
    for entry in fs::read_dir("/etc/cni/net.d").into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    write("/etc/hostname", &format!("{}\n", node.name))?;
    // a name server that no lab reaches (RFC 5737): CoreDNS does not start without any
    write("/etc/resolv.conf", "nameserver 192.0.2.53\n")?;
    write("/etc/hosts", &format!("127.0.0.1 localhost\n{} {}\n", node.place.node(), node.name))?;
    write("/etc/cni/net.d/10-lab.conflist", &render::cni(node.place))?;
    write("/etc/containerd/config.toml", &render::containerd(&plan.toolset))?;
    write("/etc/kubelet.yaml", &render::kubelet(node.place))?;
    write("/etc/kube-proxy.yaml", &render::kube_proxy(node.place.node(), &proxy_kubeconfig()))
}

/// Starts kube-proxy and the firewall.
fn proxy_kubeconfig() -> PathBuf {
    Path::new(SHARE).join("pki/proxy.kubeconfig")
}

/// Settings of the node's own network namespace. Kernels without the bridge filter lack one of them.
fn settings() {
    for name in ["ipv4/ip_forward", "ipv4/conf/all/route_localnet", "bridge/bridge-nf-call-iptables"] {
        if let Err(error) = fs::write(format!("/proc/sys/net/{name}"), "1") {
            eprintln!("net/{name} is unchanged: {error}");
        }
    }
}

async fn boot(plan: &Plan, node: &NodePlan, supervisor: &Supervisor) -> Result<()> {
    supervisor.keep(component::containerd(plan));
    while UnixStream::connect(CONTAINERD).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for image in &plan.images {
        import(&plan.tool("ctr"), image).await?;
    }
    // a kubelet without an API server waits 7 s before it retries, so wait for the API server at the lab's start, but not
    // without limit: kubelet must also start during an outage
    let reached = async {
        while TcpStream::connect((API, API_PORT)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(20), reached).await;
    let name = node.name.clone();
    tokio::spawn(async move { firewall::follow(&name, &proxy_kubeconfig()).await });
    supervisor.keep(component::kube_proxy(plan, &node.name, Path::new("/etc/kube-proxy.yaml")));
    supervisor.keep(component::kubelet(plan, node));
    Ok(())
}

/// Is this tar the last of its image in the list? All tars of an image are in one folder, and its tag stays with the last one imported.
pub fn is_imported(list: &str, tar: &Path) -> bool {
    list.lines().map(Path::new).rfind(|known| known.parent() == tar.parent()) == Some(tar)
}

/// Loads an image tar into the node's containerd, unless the same tar was loaded before.
pub async fn import(ctr: &Path, image: &Path) -> Result<()> {
    let known = fs::read_to_string(IMPORTED).unwrap_or_default();
    if is_imported(&known, image) {
        return Ok(());
    }
    let tar = image.display().to_string();
    let (_, flags) = IMPORT.split_at(1);
    command(ctr, &[flags, &[&tar]].concat()).await?;
    fs::write(IMPORTED, format!("{known}{tar}\n")).during(|| format!("writing {IMPORTED}"))
}

async fn answer(supervisor: &Supervisor, booted: &AtomicBool, request: Request) -> Result<Answer> {
    match request {
        Request::Status => {
            let (components, booted) = (supervisor.status(), booted.load(Ordering::Acquire));
            return Ok(Answer::Status(Status { components, booted, ..Status::default() }));
        }
        Request::Stop(name) => supervisor.stop(&name).await?,
        Request::Start(name) => supervisor.start(&name).await?,
        Request::Kill(name) => supervisor.kill(&name).await?,
        other => return Err(Error::Missing(format!("a node cannot {other:?}"))),
    }
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_that_another_build_has_replaced_is_imported_again() {
        let list = "/c/agent/a.tar\n/c/operator/x.tar\n/c/agent/b.tar\n";
        assert!(is_imported(list, Path::new("/c/agent/b.tar")) && is_imported(list, Path::new("/c/operator/x.tar")));
        assert!(!is_imported(list, Path::new("/c/agent/a.tar")) && !is_imported("", Path::new("/c/agent/a.tar")));
    }
}
