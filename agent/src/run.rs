//! Wiring: who tells whom, and in which order all of it stops.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{FusedFuture, FutureExt};
use gputenancy_crds::GpuNode;
use gputenancy_service::{endpoints, events::Publisher, logging, shutdown};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, Config};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    args::Args,
    carve::{Carved, Shell},
    device::{DeviceView, KubeletView},
    environment::{Guard, Suspects, runtime::Runtime},
    gpu::{
        Calls, Deadlines, Depth, Silicon,
        origin::{LOGS, Origins},
    },
    health::{Health, Heartbeat},
    kubelet,
    metrics::Metrics,
    report::{
        Sources,
        object::{self, Watched},
        status, without_inventory,
        writer::{BURST, Pace, Writer, Written},
    },
    rights,
};

/// Between two looks at rest.
const REST: Duration = Duration::from_secs(2);
/// Between two looks while something is waited for.
const BUSY: Duration = Duration::from_millis(50);
/// The pause is so many times as long as a look took at least: where thousands of processes have files open a look is dear.
const LEISURE: u32 = 4;
/// Between two looks while devices are held, after [`SOON`] looks without news: a drain may take hours.
const DRAIN: Duration = Duration::from_secs(1);
/// So many looks after the last news it is still likely that what is held will be left at any moment.
const SOON: u32 = 300;
/// Of the looks at rest, every so many is a deep one: it finds what others did behind our back.
const DEEP_EVERY: u32 = 15;
/// A hanging call is noticed although nothing changes.
const REPORT_AT_LEAST: Duration = Duration::from_secs(5);
/// After a status that could not be written.
const REPORT_AGAIN: Duration = Duration::from_secs(3);
/// Kubelet's side lowers the node's allocatable before it goes; its own limit is shorter.
const FAREWELL: Duration = Duration::from_secs(24);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No cluster configuration.
    #[error("no way to the API server: {0}")]
    Cluster(#[from] kube::Error),
    /// The cluster's configuration cannot be read.
    #[error("no way to the API server: {0}")]
    Config(#[from] kube::config::InferConfigError),
    /// Something is missing that the agent needs.
    #[error("{0}")]
    Rights(String),
    /// The filter of the log is not valid.
    #[error(transparent)]
    Log(#[from] logging::Error),
    /// Health and metrics cannot be served.
    #[error(transparent)]
    Serve(#[from] endpoints::Error),
    /// Signals cannot be caught.
    #[error(transparent)]
    Signal(#[from] shutdown::Error),
    /// The thread for NVML cannot be started.
    #[error("starting the thread for NVML: {0}")]
    Thread(#[from] io::Error),
}

/// Prints which rights the agent needs, and whether it has them.
///
/// # Errors
/// When something is missing, or there is no cluster to ask.
pub async fn rights() -> Result<(), Error> {
    let missing = gputenancy_rights::print(&Client::try_default().await?, &rights::rights()).await;
    if missing.is_empty() { Ok(()) } else { Err(Error::Rights(missing.join("\n"))) }
}

/// What the parts tell each other.
struct Channels {
    watched: watch::Sender<Watched>,
    view: watch::Sender<DeviceView>,
    kubelet: watch::Sender<KubeletView>,
    carved: watch::Sender<Carved>,
    suspects: watch::Sender<Suspects>,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When something is missing without which there is no agent.
pub async fn run(args: Args) -> Result<(), Error> {
    args.log.init()?;
    let (config, refused) = (Config::infer().await?, Arc::new(Notify::new()));
    let asking = Client::try_from(config.clone())?;
    let client = gputenancy_rights::client(config, refused.clone())?;
    let lacks = watch::Sender::default();
    let (metrics, heartbeat) = (Metrics::default(), Heartbeat::default());
    let calls = Calls::new(metrics.clone());
    let silicon = Silicon::start(args.places(), calls.clone(), Deadlines::default())?;
    let channels = Channels {
        watched: watch::Sender::default(),
        view: watch::Sender::default(),
        kubelet: watch::Sender::default(),
        carved: watch::Sender::default(),
        suspects: watch::Sender::default(),
    };
    let boot_id = boot_id(&args.host_root);
    let health = Health {
        heartbeat: heartbeat.clone(),
        carved: channels.carved.subscribe(),
        lacks: lacks.subscribe(),
        metrics: metrics.clone(),
    };
    let (kubelet, view, carved) = (channels.kubelet.subscribe(), channels.view.clone(), channels.carved.clone());
    let shell = Shell::new(silicon, metrics.clone(), kubelet, view, carved);
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone())?;
    let mut plugin = std::pin::pin!(plugin(&args, &client, &channels, metrics.clone(), stop.clone()).fuse());
    tokio::select! {
        () = object::watch(client.clone(), &args.node_name, &boot_id, &channels.watched) => {}
        () = carve(shell, &channels, &heartbeat) => {}
        () = report(&args, &client, &channels, (&calls, &metrics), &boot_id) => {}
        () = guard(&args, &client, &channels, &metrics) => {}
        () = rights::keep(asking, refused, lacks, metrics.clone()) => {}
        served = endpoints::serve(args.http, health, stop.clone()) => served?,
        () = &mut plugin => {}
        () = stop.cancelled() => {}
    }
    // From here on nothing is carved: what kubelet is told last stays true.
    stop.cancel();
    if !plugin.is_terminated() && timeout(FAREWELL, plugin).await.is_err() {
        tracing::warn!("kubelet's side did not stop in time");
    }
    Ok(())
}

async fn carve(mut shell: Shell, channels: &Channels, heartbeat: &Heartbeat) {
    let (mut watched, mut kubelet) = (channels.watched.subscribe(), channels.kubelet.subscribe());
    let (mut depth, mut looks, mut quiet) = (Depth::Deep, 0_u32, 0_u32);
    loop {
        heartbeat.beat();
        let wanted = watched.borrow_and_update().wanted.clone();
        kubelet.mark_unchanged();
        if shell.pass(wanted.as_ref(), depth).await {
            depth = Depth::Deep;
            continue;
        }
        let waiting = channels.carved.borrow().is_waiting();
        let draining = wanted.is_some_and(|wanted| wanted.holds());
        let busy = BUSY.max(shell.look_took() * LEISURE);
        let pause = match (waiting, draining) {
            (true, _) => busy.min(shell.until_proven().unwrap_or(busy)),
            (false, true) if quiet < SOON => busy,
            (false, true) => DRAIN.max(busy),
            (false, false) => REST,
        };
        quiet = quiet.saturating_add(1);
        depth = tokio::select! {
            Ok(()) = watched.changed() => {
                quiet = 0;
                Depth::Deep
            }
            Ok(()) = kubelet.changed() => {
                quiet = 0;
                if waiting || draining {
                    Depth::Shallow
                } else {
                    // who has come or gone is told with what NVML shows after it; many who come are one look
                    sleep(busy).await;
                    glance(&mut looks)
                }
            }
            () = sleep(pause) => glance(&mut looks),
        };
    }
}

/// How deep the next look is, when nothing calls for a deep one.
fn glance(looks: &mut u32) -> Depth {
    *looks = looks.wrapping_add(1);
    if looks.is_multiple_of(DEEP_EVERY) { Depth::Deep } else { Depth::Shallow }
}

async fn report(
    args: &Args,
    client: &Client,
    channels: &Channels,
    (calls, metrics): (&Calls, &Metrics),
    boot_id: &str,
) {
    let (mut carved, mut view) = (channels.carved.subscribe(), channels.view.subscribe());
    let (mut kubelet, mut watched) = (channels.kubelet.subscribe(), channels.watched.subscribe());
    let known = watched.wait_for(|watched| watched.wanted.is_some()).await;
    let Ok(first) = known.map(|watched| watched.first_status.clone()) else { return };
    let mut conditions = first.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let api: Api<GpuNode> = Api::all(client.clone());
    let earlier = first.clone().unwrap_or_default();
    let mut writer = Writer::new(api, &args.node_name, metrics.clone(), first);
    let mut pace = Pace::new(Instant::now());
    let origins = Origins { proc_root: "/proc".into(), logs: args.host_root.join(LOGS) };
    let origin = |pid: u32| (origins.command(pid), origins.of(pid));
    loop {
        let next = {
            let carved = carved.borrow_and_update();
            let sources = Sources {
                carved: &carved,
                view: &view.borrow_and_update(),
                kubelet: &kubelet.borrow_and_update(),
                under_way: calls.under_way(),
                origin: &origin,
                boot_id,
                simulated: simulated(&carved),
                old: &conditions,
                earlier: &earlier,
            };
            let now = Timestamp::now();
            match (&carved.inventory, &carved.trouble) {
                // Until it is known what shall be, the last run's status is truer than "unmanaged".
                (Some(_), None) if carved.generation.is_none() => None,
                (Some(_), _) => Some(status(&sources, now)),
                (None, Some(_)) => Some(without_inventory(&sources, now)),
                (None, None) => None,
            }
        };
        let mut pause = REPORT_AT_LEAST;
        let written = match next {
            Some(status) => {
                conditions.clone_from(&status.conditions);
                match writer.may_wait(&status, Instant::now()) {
                    Some(later) => {
                        pause = later;
                        Written::Same
                    }
                    None => writer.write(status).await,
                }
            }
            None => Written::Same,
        };
        match written {
            Written::Same => {}
            Written::New => sleep(pace.after_write(Instant::now())).await,
            Written::Failed => sleep(REPORT_AGAIN).await,
        }
        if written != Written::Failed {
            tokio::select! {
                Ok(()) = carved.changed() => {}
                Ok(()) = view.changed() => {}
                Ok(()) = kubelet.changed() => {}
                () = sleep(pause) => {}
            }
            sleep(BURST).await;
        }
    }
}

/// Kubelet's side, from the moment that the driver's place is known.
async fn plugin(args: &Args, client: &Client, channels: &Channels, metrics: Metrics, stop: CancellationToken) {
    let mut carved = channels.carved.subscribe();
    let driver_root = |carved: &Carved| carved.inventory.as_ref()?.driver_root.clone();
    let found = tokio::select! {
        found = carved.wait_for(|carved| driver_root(carved).is_some()) => found.ok().and_then(|carved| driver_root(&carved)),
        () = stop.cancelled() => None,
    };
    let Some(driver_root) = found else { return };
    let config = kubelet::Config {
        node_name: args.node_name.clone(),
        kubelet_dir: args.kubelet_dir.clone(),
        cdi_dir: args.cdi_dir.clone(),
        driver_root: driver_root.host,
        host_root: args.host_root.clone(),
        dev: args.dev_root.clone(),
        extra_cdi_devices: args.extra_cdi_devices.clone(),
        allocation: args.allocate.into(),
    };
    let (view, report) = (channels.view.subscribe(), channels.kubelet.clone());
    kubelet::run(config, client.clone(), view, report, &channels.suspects, metrics, stop).await;
}

/// Looks at what containers were started with, where that is asked for.
async fn guard(args: &Args, client: &Client, channels: &Channels, metrics: &Metrics) {
    let Some(answer) = args.hidden_variables else { return std::future::pending().await };
    let guard = Guard {
        answer,
        capabilities: args.driver_capabilities.clone(),
        runtime: Runtime::new(&args.host_root, args.runtime_socket.as_deref()),
        pod_resources: args.kubelet_dir.join("pod-resources/kubelet.sock"),
        view: channels.view.subscribe(),
        client: client.clone(),
        publisher: Publisher::new(client.clone(), "gputenancy.io/agent", &args.node_name),
        metrics: metrics.clone(),
    };
    guard.keep(channels.suspects.subscribe()).await;
}

/// The simulated driver keeps its state below its own root; a real one has nothing there.
fn simulated(carved: &Carved) -> bool {
    let root = carved.inventory.as_ref().and_then(|inventory| inventory.driver_root.as_ref());
    root.is_some_and(|root| root.seen.join("run/nvsim").is_dir())
}

/// A container's own `/proc` may tell another boot than the node's.
fn boot_id(host_root: &Path) -> String {
    let file = "proc/sys/kernel/random/boot_id";
    let read = |root: &Path| std::fs::read_to_string(root.join(file));
    let id = read(host_root).or_else(|_| read(Path::new("/"))).unwrap_or_default();
    id.trim().to_owned()
}
