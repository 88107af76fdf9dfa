//! The lab's root process, in the lab's namespaces: it builds the lab and keeps the control plane running.

use crate::address::{API, API_PORT, NODE_PREFIX, SERVICE_NETWORK};
use crate::cgroup;
use crate::command::line;
use crate::component::{self, Component};
use crate::control::{self, Answer, Request, Status};
use crate::error::{During, Error, Result};
use crate::pki::{ControlPlane, kubeconfig, write_private};
use crate::place::{LAB, node_share};
use crate::power::Machines;
use crate::spec::Plan;
use crate::supervise::Supervisor;
use crate::{mount, node_root, render};
use futures::future::try_join_all;
use nix::mount::MsFlags;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// The socket of [`control`].
pub const SOCKET: &str = "/run/lab/control.sock";
/// The kubeconfig for programs on the host.
pub const HOST_KUBECONFIG: &str = "/run/lab/host.kubeconfig";

/// Runs the lab until it is killed. Standard input is the listening socket of the host's loopback port: it was created in
/// the host's network namespace, so it accepts connections of the host, and it closes with the lab.
pub async fn run(plan: &Path) -> Result<()> {
    let listener = listener()?;
    let text = fs::read_to_string(plan).during(|| format!("reading {}", plan.display()))?;
    let plan: Plan = serde_json::from_str(&text).during(|| format!("reading {}", plan.display()))?;
    let plan = Arc::new(plan);
    let hierarchies = cgroup::hierarchies()?;
    file_systems(&hierarchies)?;
    fs::write("/run/lab/plan.json", &text).during(|| "writing the plan".to_owned())?;
    nix::unistd::sethostname(&plan.name).during(|| "setting the host name".to_owned())?;
    network(&plan).await?;
    keys(&plan)?;
    tokio::spawn(forward(listener));

    let path = format!("{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", plan.toolset.display());
    let supervisor = Supervisor::new(&Path::new(LAB).join("log"), path)?;
    supervisor.keep(component::etcd(&plan));
    supervisor.keep(component::apiserver(&plan));
    let machines = Arc::new(Machines::new(plan.clone(), hierarchies));
    try_join_all(plan.nodes.iter().map(|node| machines.power_on(&node.name))).await?;
    tokio::spawn(start_clients(plan.clone(), supervisor.clone()));

    control::serve(Path::new(SOCKET), move |request| {
        let (plan, supervisor, machines) = (plan.clone(), supervisor.clone(), machines.clone());
        async move { answer(&plan, &supervisor, &machines, request).await }
    })
    .await
}

fn listener() -> Result<TcpListener> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().during(|| "taking over the port".to_owned())?;
    let socket = std::net::TcpListener::from(socket);
    socket.set_nonblocking(true).during(|| "taking over the port".to_owned())?;
    TcpListener::from_std(socket).during(|| "taking over the port".to_owned())
}

fn file_systems(hierarchies: &[cgroup::Hierarchy]) -> Result<()> {
    let program = fs::read("/proc/self/exe").during(|| "reading this program".to_owned())?;
    mount::new("tmpfs", Path::new("/run"), MsFlags::MS_NOSUID, "mode=755,size=64m")?;
    // image layers and containers of all nodes: tmpfs' default limit of half the machine's memory suffices
    mount::new("tmpfs", Path::new(LAB), MsFlags::empty(), "mode=755")?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount::new("sysfs", Path::new("/sys"), quiet, "")?;
    node_root::cgroups(Path::new(cgroup::ROOT), hierarchies)?;
    // a build that replaces the program on disk must not change what a later power-on runs
    let copy = Path::new(LAB).join("lab");
    fs::write(&copy, program).during(|| format!("writing {}", copy.display()))?;
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&copy, all).during(|| format!("writing {}", copy.display()))?;
    fs::create_dir_all("/run/netns").during(|| "creating /run/netns".to_owned())
}

async fn network(plan: &Plan) -> Result<()> {
    line("ip link set lo up").await?;
    line("ip link add br0 type bridge").await?;
    line(&format!("ip addr add {API}/{NODE_PREFIX} dev br0")).await?;
    line("ip link set br0 up").await?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").during(|| "switching on forwarding".to_owned())?;
    // kube-proxy rewrites ClusterIPs on output: a route must exist before that
    line(&format!("ip route add {SERVICE_NETWORK} dev br0")).await?;
    for node in &plan.nodes {
        line(&format!("ip route add {} via {}", node.place.pods(), node.place.node())).await?;
    }
    Ok(())
}

fn keys(plan: &Plan) -> Result<()> {
    let folder = Path::new(LAB).join("pki");
    fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;
    let keys = ControlPlane::new()?;
    keys.write(&folder)?;
    let ca = &keys.ca.pair.cert;
    let server = format!("https://{API}:{API_PORT}");
    for name in ["admin", "controller-manager", "scheduler", "proxy"] {
        let text = kubeconfig(&server, ca, keys.pair(name)?);
        write_private(&folder.join(format!("{name}.kubeconfig")), &text)?;
    }
    let local = format!("https://127.0.0.1:{}", plan.port);
    write_private(Path::new(HOST_KUBECONFIG), &kubeconfig(&local, ca, keys.pair("admin")?))?;
    let proxy = render::kube_proxy(API, &folder.join("proxy.kubeconfig"));
    write_private(&folder.join("kube-proxy.yaml"), &proxy)?;
    for node in &plan.nodes {
        let share = node_share(&node.name);
        for folder in [share.join("pki"), share.join("log")] {
            fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;
        }
        let pki = share.join("pki");
        let (client, serving) = keys.node(&node.name, node.place)?;
        write_private(&pki.join("ca.crt"), ca)?;
        write_private(&pki.join("kubelet.kubeconfig"), &kubeconfig(&server, ca, &client))?;
        write_private(&pki.join("proxy.kubeconfig"), &kubeconfig(&server, ca, keys.pair("proxy")?))?;
        serving.write(&pki, "serving")?;
    }
    Ok(())
}

/// Forwards connections from the host's loopback port to the API server.
async fn forward(listener: TcpListener) {
    while let Ok((mut outer, _)) = listener.accept().await {
        tokio::spawn(async move {
            if let Ok(mut inner) = TcpStream::connect((API, API_PORT)).await {
                // otherwise a message in two segments waits 40 ms for the acknowledgement of the first
                let _ = (outer.set_nodelay(true), inner.set_nodelay(true));
                let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
            }
        });
    }
}

/// Programs that exit without an API server.
async fn start_clients(plan: Arc<Plan>, supervisor: Supervisor) {
    let kubeconfig = PathBuf::from(LAB).join("pki/admin.kubeconfig");
    while !matches!(ready(&kubeconfig).await, Ok(true)) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    supervisor.keep(component::controller_manager(&plan));
    supervisor.keep(component::scheduler(&plan));
    // the API server calls webhooks by ClusterIP; kube-proxy needs the name of a node
    if let Some(node) = plan.nodes.last() {
        supervisor.keep(component::kube_proxy(&plan, &node.name, &Path::new(LAB).join("pki/kube-proxy.yaml")));
    }
}

/// Whether the API server reports ready.
pub(crate) async fn ready(kubeconfig: &Path) -> Result<bool> {
    let client = crate::client::from_file(kubeconfig).await?;
    let request = http::Request::get("/readyz").body(Vec::new());
    let request = request.map_err(|error| Error::Invalid { what: "/readyz".to_owned(), why: error.to_string() })?;
    Ok(client.request_text(request).await.is_ok_and(|text| text == "ok"))
}

async fn answer(plan: &Plan, supervisor: &Supervisor, machines: &Machines, request: Request) -> Result<Answer> {
    match request {
        Request::Status => {
            let (components, nodes) = (supervisor.status(), machines.status().await);
            return Ok(Answer::Status(Status { components, nodes, booted: true }));
        }
        Request::PowerOff(node) => machines.power_off(&node).await?,
        Request::PowerOn(node) => machines.power_on(&node).await?,
        Request::Cut(node) => machines.set_cut(&node, true).await?,
        Request::Restore(node) => machines.set_cut(&node, false).await?,
        Request::Stop(name) => supervisor.stop(&name).await?,
        Request::Start(name) => supervisor.start(&name).await?,
        Request::Kill(name) => supervisor.kill(&name).await?,
        Request::Kwok => {
            let kwok: Component = component::kwok(plan);
            let program = plan.tool("kwok");
            if !program.exists() {
                return Err(Error::Missing(format!("{} has not been built: run `make tools`", program.display())));
            }
            let stages = Path::new(LAB).join("kwok.yaml");
            fs::write(&stages, include_str!("conf/kwok.yaml")).during(|| format!("writing {}", stages.display()))?;
            supervisor.keep(kwok);
        }
    }
    Ok(Answer::Done)
}
