//! Wiring of the tasks, and their shutdown.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{FusedFuture, FutureExt};
use gputenancy_cluster::{
    client,
    error::sentence,
    events::Publisher,
    service::{endpoints, shutdown},
};
use gputenancy_crds::GpuNode;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, Config};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    args::Args,
    attribution::{Attributed, Attributor, tenants},
    audit::{Auditor, Bypasses},
    device::{Device, DeviceOwner, DeviceView, DriverLimits, KubeletView, Owners},
    enforcement::{
        Arbitration, OtherLimits, PodCompute, Resizer, SHARES, ShareSizes,
        driver::{Cgroups, DriverLimiter},
    },
    event,
    gpu::{
        Calls, Deadlines, Inventory, NvmlThread, Scan,
        processes::process_origin::{LOGS, Origins, command},
    },
    grpc::pod_resources::PodResources,
    handover::{HandoverCheck, Policy, ProcessPolicy, Terminator},
    health::Health,
    host_folders, incidents,
    kubelet::{
        self,
        config::{Allocation, MemoryLimits},
        node::{
            requests::PodRequests,
            runtime_classes::{self, RuntimeClasses},
            sandbox::Sandboxes,
        },
        plugin::owner_lookup::OwnerLookup,
    },
    metrics::Metrics,
    mps::{
        Mps,
        host::{self, Host},
    },
    partition::{PartitionState, Reconciler, ServedLayouts},
    past_grace::{OverdueStopper, TerminatingPods},
    pod_watch::{self, PodIndexes},
    report::{
        StatusInput,
        gpu_node::{self, Watched},
        node_condition::DevicesReady,
        status, without_inventory,
        writer::{DEBOUNCE, RateLimit, WriteOutcome, Writer},
    },
    rights,
    seen_pods::SeenPods,
    unlimited,
    variables::{EnvFromContainers, EnvironmentChecker, runtime::Runtime},
    warm_up::WarmUp,
};

/// Interval of scans when nothing is expected to change.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of scans while a GPU is in progress.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);
/// The pause between scans is at least this multiple of a scan's duration: with thousands of open files a scan is expensive.
const DUTY_CYCLE: u32 = 4;
/// Interval of scans while devices are withdrawn, after [`BUSY_SCANS`] scans without a change: a drain may take hours.
const DRAIN_INTERVAL: Duration = Duration::from_secs(1);
/// Scans after the latest change at which a withdrawn device is likely to become unused soon.
const BUSY_SCANS: u32 = 300;
/// Every so many idle scans one is full, which finds the changes of other programs.
const FULL_SCAN_EVERY: u32 = 15;
/// Interval of reports without a change, which notice a hanging call.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Delay after a status that was not written.
const REPORT_RETRY: Duration = Duration::from_secs(3);
/// Limit for the device plugin's shutdown, which lowers the node's allocatable; the plugin's own limit is shorter.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(24);

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Why the agent cannot run.
pub type Error = Box<dyn std::error::Error>;

/// Prints which rights the agent needs; fails if any is missing.
pub async fn rights() -> Result<(), Error> {
    let missing = gputenancy_cluster::rights::print(&Client::try_default().await?, &rights::rights()).await;
    if missing.is_empty() { Ok(()) } else { Err(missing.join("\n").into()) }
}

/// Latest state of each task.
#[derive(Default)]
struct Channels {
    watched: watch::Sender<Watched>,
    view: watch::Sender<DeviceView>,
    kubelet: watch::Sender<KubeletView>,
    state: watch::Sender<PartitionState>,
    requests: watch::Sender<Option<PodRequests>>,
    containers: watch::Sender<EnvFromContainers>,
    attributed: watch::Sender<Attributed>,
    classes: watch::Sender<Option<RuntimeClasses>>,
    bypasses: watch::Sender<Bypasses>,
    driver_limits: watch::Sender<DriverLimits>,
    other_limits: watch::Sender<OtherLimits>,
    compute: watch::Sender<Option<PodCompute>>,
    sizes: watch::Sender<ShareSizes>,
    terminating: watch::Sender<TerminatingPods>,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(args: Args) -> Result<(), Error> {
    args.log.init()?;
    let config = Config::infer().await.map_err(|error| format!("no cluster: {error}"))?;
    let refused = Arc::new(Notify::new());
    let asking = client::named(config.clone(), "").map_err(|error| sentence(&error))?;
    let client = gputenancy_cluster::rights::client(config, refused.clone()).map_err(|error| sentence(&error))?;
    let lacks = watch::Sender::default();
    let (metrics, heartbeat) = (Metrics::default(), watch::Sender::new(Instant::now()));
    let calls = Calls::new(metrics.clone());
    let nvml = NvmlThread::start(args.paths(), calls.clone(), Deadlines::default());
    let nvml = nvml.map_err(|error| format!("starting the thread for NVML: {error}"))?;
    let (channels, node_name) = (Channels::default(), &args.plugin.node_name);
    let boot_id = boot_id(&args.plugin.host_root);
    let health = Health {
        heartbeat: heartbeat.subscribe(),
        state: channels.state.subscribe(),
        lacks: lacks.subscribe(),
        metrics: metrics.clone(),
    };
    let (kubelet, view, state) = (channels.kubelet.subscribe(), channels.view.clone(), channels.state.clone());
    let seen = SeenPods::default();
    let logs = args.plugin.host_root.join(LOGS);
    let origins = Origins { proc_root: "/proc".into(), logs, pods: seen.clone() };
    let processes = process_policy(&args, &origins, &metrics);
    let warm_up = WarmUp::default();
    let publish = event::publish(Publisher::new(client.clone(), "gputenancy.io/agent", node_name));
    let mps = Mps::new(Host {
        root: args.plugin.mps_dir.clone(),
        proc_root: origins.proc_root.clone(),
        cgroup_root: CGROUPS.into(),
        inventory: inventory(channels.state.subscribe()),
        owners: mps_owners(&args, &channels, &warm_up),
        tenant: host::tenant(client.clone()),
        set_exclusive: host::set_exclusive(nvml.clone()),
        publish: publish.clone(),
        node: node_name.clone(),
    });
    let reconciler = Reconciler::new(nvml.clone(), metrics.clone(), kubelet, view, state, processes);
    let layouts = ServedLayouts::in_folder(&args.plugin.enforcement_dir);
    let reconciler = reconciler.with_mps(mps.subscribe()).with_layouts(layouts);
    let limiter = driver_limiter(&args, &origins, nvml.clone());
    let handover = HandoverCheck::through(nvml, origins.clone());
    let sandboxes = sandboxes(&args, &channels);
    let auditor = auditor(&args, &channels, (&handover, &sandboxes), &metrics, &publish);
    let files = unlimited::Files::new(cgroups(&args, &origins), origins.proc_root.clone());
    let unserved = report_unserved(sandboxes.clone(), &client, &channels, files, (node_name, &metrics, &publish));
    let tenants = tenants::by_grant(client.clone());
    let attributor = Attributor { origins: &origins, tenants, metrics: &metrics, publish: &publish, node: node_name };
    let resizer = resizer(&args, &channels, &publish);
    let arbitration = arbitration(&args, &channels, &metrics, &publish);
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone())?;
    let mut writer = Writer::new(Api::<GpuNode>::all(client.clone()), node_name, metrics.clone());
    let serving = plugin(
        &args,
        &client,
        &channels,
        (handover, mps.clone(), &seen, sandboxes.clone()),
        (&warm_up, &boot_id),
        metrics.clone(),
        stop.clone(),
    );
    let mut condition = DevicesReady::new(client.clone(), node_name);
    let mut plugin = std::pin::pin!(serving.fuse());
    let folders = args.plugin.host_folders();
    let mut outcome = Ok(());
    tokio::select! {
        () = gpu_node::watch(client.clone(), node_name, &boot_id, &channels.watched) => {}
        () = partition(reconciler, &channels, &heartbeat) => {}
        () = report((&origins, &sandboxes), &channels, &calls, &mps, &mut writer, &boot_id) => {}
        () = condition.run(channels.watched.subscribe(), channels.state.subscribe(), channels.view.subscribe()) => {}
        () = mps.run(channels.view.subscribe()) => {}
        () = incidents::run(channels.state.subscribe(), node_name, &metrics, &publish) => {}
        () = attributor.run(channels.state.subscribe(), &channels.attributed) => {}
        () = unserved => {}
        () = audit(auditor, &channels) => {}
        () = limit(limiter, &channels) => {}
        () = resizer.run(&channels.sizes) => {}
        () = arbitrate(arbitration) => {}
        () = check_environments(&args, &client, &channels, (&warm_up, &metrics)) => {}
        () = stop_overdue(&args, &client, &channels, (&metrics, &publish)) => {}
        () = rights::keep(asking, refused, lacks, metrics.clone()) => {}
        served = endpoints::serve(args.http, health, stop.clone()) => served?,
        () = &mut plugin => {}
        reason = host_folders::replaced(&folders, &args.plugin.host_root) => {
            // also before the devices are withdrawn, which takes seconds
            tracing::error!(reason, "shutting down");
            outcome = Err(reason.into());
        }
        () = stop.cancelled() => {}
    }
    // no operation is executed any more, so kubelet's last device list stays correct
    stop.cancel();
    if !plugin.is_terminated() && timeout(SHUTDOWN_LIMIT, plugin).await.is_err() {
        tracing::warn!("device plugin did not stop in time");
    }
    // last: the plugin lowers the node's allocatable, which is more urgent
    tokio::join!(writer.write_stopped(Timestamp::now()), condition.remove());
    outcome
}

/// Owners of MPS shares, as kubelet reports them now, with those that it has forgotten.
fn mps_owners(args: &Args, channels: &Channels, warm_up: &WarmUp) -> host::Call<(), Owners> {
    let lookup = OwnerLookup::new(&args.plugin, channels.requests.subscribe(), warm_up.clone());
    host::owners(move || {
        let lookup = lookup.clone();
        async move { lookup.owners().await }
    })
}

/// Driver and boards, as NVML reported them last.
fn inventory(state: watch::Receiver<PartitionState>) -> Arc<dyn Fn() -> Option<Inventory> + Send + Sync> {
    Arc::new(move || state.borrow().inventory.clone())
}

/// How processes are found, and whether those that keep a device are ended.
fn process_policy(args: &Args, origins: &Origins, metrics: &Metrics) -> ProcessPolicy {
    let terminator = || Terminator {
        deadline: args.unattributed_deadline,
        origins: origins.clone(),
        pod_resources: PodResources::at(&args.plugin.pod_resources_socket()),
        metrics: metrics.clone(),
    };
    ProcessPolicy {
        origins: origins.clone(),
        terminator: (args.unattributed_processes == Policy::Terminate).then(terminator),
    }
}

/// The audit of shares; none where the agent does not limit their memory.
fn auditor(
    args: &Args,
    channels: &Channels,
    (handover, sandboxes): (&HandoverCheck, &Option<Sandboxes>),
    metrics: &Metrics,
    publish: &event::Publish,
) -> Option<Auditor> {
    let plugin = &args.plugin;
    let limited = plugin.memory_limits == MemoryLimits::Shim && plugin.allocate == Allocation::Cdi;
    limited.then(|| Auditor {
        shares: plugin.enforcement_dir.join(SHARES),
        view: channels.view.subscribe(),
        kubelet: channels.kubelet.subscribe(),
        processes: handover.clone(),
        sandboxes: sandboxes.clone(),
        publish: publish.clone(),
        metrics: metrics.clone(),
        node: plugin.node_name.clone(),
    })
}

/// Which pods run in a sandbox; none where no container gets the library that limits memory.
fn sandboxes(args: &Args, channels: &Channels) -> Option<Sandboxes> {
    let plugin = &args.plugin;
    let limited = plugin.memory_limits == MemoryLimits::Shim && plugin.allocate == Allocation::Cdi;
    limited.then(|| Sandboxes {
        handlers: plugin.sandboxed_handlers.as_slice().into(),
        classes: channels.classes.subscribe(),
        requests: channels.requests.subscribe(),
        view: channels.view.subscribe(),
        kubelet: channels.kubelet.subscribe(),
    })
}

/// Reports containers that the library cannot limit.
async fn report_unserved(
    sandboxes: Option<Sandboxes>,
    client: &Client,
    channels: &Channels,
    files: unlimited::Files,
    (node, metrics, publish): (&str, &Metrics, &event::Publish),
) {
    let Some(sandboxes) = sandboxes else { return std::future::pending().await };
    let (publish, metrics) = (publish.clone(), metrics.clone());
    let reporter = unlimited::Reporter { sandboxes, publish, metrics, node: node.to_owned() };
    tokio::select! {
        () = runtime_classes::watch(client.clone(), &channels.classes) => {}
        () = reporter.run(files, channels.view.subscribe(), channels.kubelet.subscribe()) => {}
    }
}

/// Finds the cgroups of containers.
fn cgroups(args: &Args, origins: &Origins) -> Cgroups {
    // the agent's own mount has the host's cgroups with version 2; with version 1 only the host's root has
    let roots = vec![CGROUPS.into(), args.plugin.host_root.join(CGROUPS.trim_start_matches('/'))];
    Cgroups::new(roots, origins.logs.clone())
}

/// What gives running containers the new size of their fraction.
fn resizer(args: &Args, channels: &Channels, publish: &event::Publish) -> Resizer {
    Resizer {
        shares: args.plugin.enforcement_dir.join(SHARES),
        view: channels.view.subscribe(),
        kubelet: channels.kubelet.subscribe(),
        publish: publish.clone(),
        node: args.plugin.node_name.clone(),
    }
}

/// The compute limits of shares; none where the agent limits nothing.
fn arbitration(args: &Args, channels: &Channels, metrics: &Metrics, publish: &event::Publish) -> Option<Arbitration> {
    let plugin = &args.plugin;
    let limited = plugin.memory_limits == MemoryLimits::Shim && plugin.allocate == Allocation::Cdi;
    limited.then(|| Arbitration {
        shares: plugin.enforcement_dir.join(SHARES),
        view: channels.view.subscribe(),
        kubelet: channels.kubelet.subscribe(),
        pods: channels.compute.subscribe(),
        publish: publish.clone(),
        metrics: metrics.clone(),
        node: plugin.node_name.clone(),
    })
}

async fn arbitrate(arbitration: Option<Arbitration>) {
    match arbitration {
        Some(arbitration) => arbitration.run().await,
        None => std::future::pending().await,
    }
}

async fn audit(auditor: Option<Auditor>, channels: &Channels) {
    match auditor {
        Some(auditor) => auditor.run(&channels.bypasses).await,
        None => std::future::pending().await,
    }
}

/// The limits in the driver, which end where the agent does not limit memory.
fn driver_limiter(args: &Args, origins: &Origins, nvml: NvmlThread) -> DriverLimiter {
    let plugin = &args.plugin;
    DriverLimiter::new(
        plugin.memory_limits == MemoryLimits::Shim,
        &plugin.enforcement_dir,
        cgroups(args, origins),
        nvml,
    )
}

async fn limit(limiter: DriverLimiter, channels: &Channels) {
    let inventory = channels.state.subscribe();
    let inventory = move || inventory.borrow().inventory.clone();
    let (view, kubelet, sizes) = (channels.view.subscribe(), channels.kubelet.subscribe(), channels.sizes.subscribe());
    limiter.run(view, kubelet, sizes, inventory, &channels.driver_limits).await;
}

async fn partition(mut reconciler: Reconciler, channels: &Channels, heartbeat: &watch::Sender<Instant>) {
    let (mut watched, mut kubelet) = (channels.watched.subscribe(), channels.kubelet.subscribe());
    let (mut scan, mut scans, mut unchanged) = (Scan::Full, 0_u32, 0_u32);
    loop {
        heartbeat.send_replace(Instant::now());
        let desired = watched.borrow_and_update().desired.clone();
        kubelet.mark_unchanged();
        if reconciler.reconcile(desired.as_ref(), scan).await {
            scan = Scan::Full;
            continue;
        }
        let in_progress = channels.state.borrow().is_in_progress();
        let draining = desired.is_some_and(|desired| desired.has_withdrawn());
        let busy = BUSY_INTERVAL.max(reconciler.scan_took() * DUTY_CYCLE);
        let pause = match (in_progress, draining) {
            (true, _) => busy.min(reconciler.until_proven().unwrap_or(busy)),
            (false, true) if unchanged < BUSY_SCANS => busy,
            (false, true) => DRAIN_INTERVAL.max(busy),
            (false, false) => IDLE_INTERVAL,
        };
        unchanged = unchanged.saturating_add(1);
        scan = tokio::select! {
            Ok(()) = watched.changed() => {
                unchanged = 0;
                Scan::Full
            }
            Ok(()) = kubelet.changed() => {
                unchanged = 0;
                if in_progress || draining {
                    Scan::Quick
                } else {
                    // owners are published with a scan after them; this makes one scan of many pods
                    sleep(busy).await;
                    idle_scan(&mut scans)
                }
            }
            () = sleep(pause) => idle_scan(&mut scans),
        };
    }
}

fn idle_scan(scans: &mut u32) -> Scan {
    *scans = scans.wrapping_add(1);
    if scans.is_multiple_of(FULL_SCAN_EVERY) { Scan::Full } else { Scan::Quick }
}

async fn report(
    (origins, sandboxes): (&Origins, &Option<Sandboxes>),
    channels: &Channels,
    calls: &Calls,
    mps: &Mps,
    writer: &mut Writer,
    boot_id: &str,
) {
    let mut mps = mps.subscribe();
    let (mut state, mut view) = (channels.state.subscribe(), channels.view.subscribe());
    let (mut kubelet, mut watched) = (channels.kubelet.subscribe(), channels.watched.subscribe());
    let (mut attributed, mut bypasses) = (channels.attributed.subscribe(), channels.bypasses.subscribe());
    let (mut other_limits, mut sizes) = (channels.other_limits.subscribe(), channels.sizes.subscribe());
    let known = watched.wait_for(|watched| watched.desired.is_some()).await;
    let Ok(first) = known.map(|watched| watched.first_status.clone()) else { return };
    let earlier = first.clone().unwrap_or_default();
    let mut conditions = earlier.conditions.clone();
    writer.continue_from(first);
    let (mut limit, mut overwritten) = (RateLimit::new(Instant::now()), 0);
    let origin = |pid: u32| (command(&origins.proc_root, pid), origins.of(pid));
    let sandbox = |device: &Device, owner: &DeviceOwner| sandboxes.as_ref()?.of(device, owner);
    loop {
        let next = {
            let state = state.borrow_and_update();
            let input = StatusInput {
                state: &state,
                view: &view.borrow_and_update(),
                mps: &mps.borrow_and_update(),
                kubelet: &kubelet.borrow_and_update(),
                processes: &attributed.borrow_and_update(),
                sandbox: &sandbox,
                bypasses: &bypasses.borrow_and_update(),
                sizes: &sizes.borrow_and_update(),
                other_limits: &other_limits.borrow_and_update(),
                nvml_call: calls.in_progress(),
                origin: &origin,
                boot_id,
                simulated: simulated(&state),
                old: &conditions,
                earlier: &earlier,
            };
            match (&state.inventory, &state.nvml_error) {
                // before the first spec the earlier status is better than "unmanaged"
                (Some(_), None) if state.generation.is_none() => None,
                (Some(_), _) => Some(status(&input, Timestamp::now())),
                (None, Some(_)) => Some(without_inventory(&input, Timestamp::now())),
                (None, None) => None,
            }
        };
        let (mut pause, mut outcome) = (REPORT_INTERVAL, WriteOutcome::Unchanged);
        if let Some(status) = next {
            conditions.clone_from(&status.conditions);
            match writer.delay(&status, Instant::now()) {
                Some(delay) => pause = delay,
                None => outcome = writer.write(status).await,
            }
        }
        match outcome {
            WriteOutcome::Unchanged => {}
            WriteOutcome::Written => sleep(limit.after_write(Instant::now())).await,
            WriteOutcome::Failed => {
                sleep(REPORT_RETRY).await;
                continue;
            }
        }
        tokio::select! {
            Ok(()) = state.changed() => {}
            Ok(()) = view.changed() => {}
            Ok(()) = kubelet.changed() => {}
            Ok(()) = mps.changed() => {}
            Ok(()) = attributed.changed() => {}
            Ok(()) = bypasses.changed() => {}
            Ok(()) = other_limits.changed() => {}
            Ok(()) = sizes.changed() => {}
            Ok(()) = watched.changed() => {
                let now = watched.borrow_and_update().overwritten;
                if std::mem::replace(&mut overwritten, now) != now {
                    writer.forget();
                }
            }
            () = sleep(pause) => {}
        }
        sleep(DEBOUNCE).await;
    }
}

/// The device plugin, once the driver is found.
async fn plugin(
    args: &Args,
    client: &Client,
    channels: &Channels,
    (handover, mps, seen, sandboxes): (HandoverCheck, Mps, &SeenPods, Option<Sandboxes>),
    (warm_up, boot_id): (&WarmUp, &str),
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut state = channels.state.subscribe();
    let driver_root = |state: &PartitionState| state.inventory.as_ref()?.driver_root.clone();
    let found = stop.run_until_cancelled(state.wait_for(|state| driver_root(state).is_some())).await;
    let Some(driver_root) = found.and_then(|found| driver_root(&*found.ok()?)) else { return };
    let exchange = kubelet::Channels {
        devices: channels.view.subscribe(),
        requests: channels.requests.subscribe(),
        kubelet: channels.kubelet.clone(),
        handover,
        mps: Some(mps),
        driver_limits: channels.driver_limits.subscribe(),
        sandboxes,
        warm_up: warm_up.clone(),
    };
    let serving = async {
        // nothing is withdrawn, and no allocatable is lowered, before the owners are known that an earlier run has reported
        let mut watched = channels.watched.subscribe();
        let known = watched.wait_for(|watched| watched.desired.is_some());
        let Some(Ok(known)) = stop.run_until_cancelled(known).await else { return };
        warm_up.own_status(known.first_status.as_ref(), boot_id);
        drop(known);
        kubelet::run(args.plugin.clone(), driver_root.host, client.clone(), exchange, metrics, stop.clone()).await;
    };
    tokio::select! {
        () = serving => {}
        () = watch_pods(args, client, channels, seen) => {}
    }
}

async fn watch_pods(args: &Args, client: &Client, channels: &Channels, seen: &SeenPods) {
    let Channels { requests, containers, other_limits: limits, compute, terminating, .. } = channels;
    let indexes = PodIndexes { requests, containers, limits, compute, terminating, seen };
    pod_watch::watch(client.clone(), &args.plugin.node_name, indexes).await;
}

/// Checks the variables of containers, if enabled.
async fn check_environments(
    args: &Args,
    client: &Client,
    channels: &Channels,
    (warm_up, metrics): (&WarmUp, &Metrics),
) {
    let Some(enforcement) = args.hidden_variables else { return std::future::pending().await };
    let checker = EnvironmentChecker {
        enforcement,
        capabilities: args.driver_capabilities.clone(),
        runtime: runtime(args),
        lookup: OwnerLookup::new(&args.plugin, channels.requests.subscribe(), warm_up.clone()),
        view: channels.view.subscribe(),
        client: client.clone(),
        publisher: Publisher::new(client.clone(), "gputenancy.io/agent", &args.plugin.node_name),
        metrics: metrics.clone(),
    };
    checker.run(channels.containers.subscribe()).await;
}

/// Stops what outlives the deletion of its pod.
async fn stop_overdue(
    args: &Args,
    client: &Client,
    channels: &Channels,
    (metrics, publish): (&Metrics, &event::Publish),
) {
    let (client, publish, metrics) = (client.clone(), publish.clone(), metrics.clone());
    let stopper = OverdueStopper { runtime: runtime(args), client, publish, metrics };
    stopper.run(channels.terminating.subscribe()).await;
}

/// The container runtime of this node.
fn runtime(args: &Args) -> Runtime {
    Runtime::new(&args.plugin.host_root, args.runtime_socket.as_deref())
}

/// The simulated driver keeps its state below its own root.
fn simulated(state: &PartitionState) -> bool {
    let root = state.inventory.as_ref().and_then(|inventory| inventory.driver_root.as_ref());
    root.is_some_and(|root| root.local.join("run/nvsim").is_dir())
}

/// The node's boot id; a container's own `/proc` may have another.
fn boot_id(host_root: &Path) -> String {
    let file = "proc/sys/kernel/random/boot_id";
    let read = |root: &Path| std::fs::read_to_string(root.join(file));
    let id = read(host_root).or_else(|_| read(Path::new("/"))).unwrap_or_default();
    id.trim().to_owned()
}
