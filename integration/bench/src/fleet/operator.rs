//! The measured operator: a process of the release build outside the cluster, with the account of the deployed one.

use std::{
    fs::{self, File},
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use e2e::{
    Error, Result, World, product,
    wait::{PATIENCE, eventually},
};
use kube::config::{AuthInfo, Kubeconfig};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
};

use crate::requests::Requests;

/// Its identity in the lease.
pub const IDENTITY: &str = "bench-fleet";
/// Its service account, and the name of the lease.
pub const ACCOUNT: &str = "gputenancy-operator";
/// Counts its requests.
pub const REQUESTS: Requests = Requests { flow: "gputenancy-bench-fleet", account: ACCOUNT };
/// `USER_HZ`, the unit of `/proc/PID/stat`: 100 on Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// Pause before it is started again.
const RESTART: Duration = Duration::from_secs(2);

/// A running operator, which is started again when it ends, as a kubelet does; dropping it kills the process.
pub struct Operator {
    keeper: JoinSet<()>,
    kept: Arc<Kept>,
    _kubeconfig: NamedTempFile,
    /// Where health and metrics are served.
    pub address: SocketAddr,
}

/// What its keeper says of the process.
#[derive(Default)]
struct Kept {
    pid: AtomicU32,
    restarts: AtomicUsize,
    stopping: AtomicBool,
}

/// Counters of an operator at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Seconds of processor time.
    pub cpu: f64,
    /// Reconciles of the fleet.
    pub reconciles: f64,
    /// Their seconds.
    pub seconds: f64,
    /// Writes to the API server.
    pub writes: f64,
}

/// Resident memory in MiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Now.
    pub now: f64,
    /// The highest since the start.
    pub peak: f64,
}

impl Operator {
    /// Starts the operator and waits until it leads.
    pub async fn start(world: &World) -> Result<Self> {
        let program = product::root().join("target/release/gputenancy-operator");
        if !program.exists() {
            let why = format!("{} is missing: `cargo build --release -p gputenancy-operator`", program.display());
            return Err(Error::Wrong(why));
        }
        let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr());
        let address = free.map_err(|source| Error::Io { what: "finding a free port".into(), source })?;
        let log = world.lab.folder().join("bench-fleet-operator.log");
        let io =
            |source| Error::Io { what: format!("running {}, log in {}", program.display(), log.display()), source };
        let output = File::options().create(true).append(true).open(&log).map_err(io)?;
        let kubeconfig = kubeconfig(world).await?;
        let mut command = Command::new(&program);
        command
            .env("KUBECONFIG", kubeconfig.path())
            .env("POD_NAME", IDENTITY)
            .env("POD_NAMESPACE", product::NAMESPACE)
            .env("LISTEN_ADDRESS", address.to_string())
            // no pods of agents exist for the simulated nodes
            .env("AGENT_SELECTOR", "")
            .stdin(Stdio::null())
            .stderr(output.try_clone().map_err(io)?)
            .stdout(output)
            .kill_on_drop(true);
        let process = command.spawn().map_err(io)?;
        let kept = Arc::new(Kept { pid: process.id().unwrap_or_default().into(), ..Kept::default() });
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(command, process, Arc::clone(&kept)));
        let operator = Self { keeper, kept, _kubeconfig: kubeconfig, address };
        operator.lead(&log).await?;
        Ok(operator)
    }

    async fn lead(&self, log: &Path) -> Result<()> {
        eventually(&format!("an operator that leads, log in {}", log.display()), PATIENCE * 2, || async {
            Ok(if self.leads().await { Ok(()) } else { Err("it does not lead".into()) })
        })
        .await
    }

    /// How often it has ended by itself, as after a lost lease, and was started again.
    pub fn restarts(&self) -> usize {
        self.kept.restarts.load(Ordering::Relaxed)
    }

    async fn leads(&self) -> bool {
        let metrics = get(self.address, "/metrics").await;
        metrics.is_ok_and(|text| text.lines().any(|l| l == "gputenancy_operator_leader 1"))
    }

    /// Its counters.
    pub async fn reading(&self) -> Result<Reading> {
        let text = get(self.address, "/metrics").await?;
        let sum = |prefix: &str| -> f64 {
            let of = text.lines().filter(|l| l.starts_with(prefix));
            of.filter_map(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        Ok(Reading {
            cpu: self.cpu()?,
            reconciles: sum("gputenancy_operator_reconcile_seconds_count{controller=\"fleet\"}"),
            seconds: sum("gputenancy_operator_reconcile_seconds_sum{controller=\"fleet\"}"),
            writes: sum("gputenancy_operator_api_writes_total{"),
        })
    }

    fn cpu(&self) -> Result<f64> {
        let stat = self.proc("stat")?;
        // the name, in parentheses, may contain spaces
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: f64 = fields.skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
        Ok(ticks / TICKS_PER_SECOND)
    }

    /// Its memory.
    pub fn memory(&self) -> Result<Memory> {
        let status = self.proc("status")?;
        let mib = |field: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(field));
            line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or_default() / 1024.0
        };
        Ok(Memory { now: mib("VmRSS:"), peak: mib("VmHWM:") })
    }

    fn proc(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.kept.pid.load(Ordering::Relaxed));
        fs::read_to_string(&path)
            .map_err(|source| Error::Io { what: format!("the operator has ended: {path}"), source })
    }

    /// Ends it as a kubelet does, so that it releases the lease.
    pub async fn stop(mut self) -> Result<()> {
        let io = |source| Error::Io { what: "ending the operator".into(), source };
        self.kept.stopping.store(true, Ordering::Relaxed);
        Command::new("kill").arg(self.kept.pid.load(Ordering::Relaxed).to_string()).status().await.map_err(io)?;
        // past the limit the process is killed with the keeper
        let _ = tokio::time::timeout(Duration::from_secs(20), self.keeper.join_next()).await;
        Ok(())
    }
}

/// Starts the operator again whenever it ends before it is stopped.
async fn keep(mut command: Command, mut process: Child, kept: Arc<Kept>) {
    loop {
        let ended = process.wait().await;
        if kept.stopping.load(Ordering::Relaxed) {
            return;
        }
        eprintln!("fleet: the operator has ended ({ended:?}) and is started again");
        tokio::time::sleep(RESTART).await;
        match command.spawn() {
            Ok(started) => process = started,
            Err(error) => return eprintln!("fleet: the operator does not start: {error}"),
        }
        kept.pid.store(process.id().unwrap_or_default(), Ordering::Relaxed);
        kept.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

/// A kubeconfig with a token of the operator's account: its rights and policies hold as in a pod.
async fn kubeconfig(world: &World) -> Result<NamedTempFile> {
    let token = ["create", "token", ACCOUNT, "-n", product::NAMESPACE, "--duration=12h"];
    let token = world.kubectl(&token).await?;
    let text = |e: &dyn std::fmt::Display| Error::Text { what: "a kubeconfig".into(), why: e.to_string() };
    let mut config = Kubeconfig::read_from(world.lab.kubeconfig_path()).map_err(|e| text(&e))?;
    let auth: AuthInfo = serde_json::from_value(json!({"token": token.trim()})).map_err(|e| text(&e))?;
    config.auth_infos.iter_mut().for_each(|user| user.auth_info = Some(auth.clone()));
    let io = |source| Error::Io { what: "writing a kubeconfig".into(), source };
    let mut file = NamedTempFile::new().map_err(io)?;
    let config = serde_json::to_string(&config).map_err(|e| text(&e))?;
    file.write_all(config.as_bytes()).map_err(io)?;
    Ok(file)
}

/// Body of an answer over HTTP with status 200.
pub async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let io = |source| Error::Io { what: format!("requesting {address}{path}"), source };
    let mut stream = TcpStream::connect(address).await.map_err(io)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(io)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(io)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(Error::Wrong(format!("{address}{path}: {}", answer.lines().next().unwrap_or_default()))),
    }
}
