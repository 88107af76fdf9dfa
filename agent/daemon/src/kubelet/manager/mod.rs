//! The loop that observes kubelet and the node, decides by [`super::allocatable`], and executes the actions.

mod error;
mod stale;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use gputenancy_crds::names::is_device_resource;
use kube::Client;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::error::Error;
use super::{
    cdi::{self, Driver, SpecFile},
    config::{Allocation, Config, MemoryLimits},
    device_list::{DeviceList, DeviceLists, device_lists},
    node::{
        allocatable::{self, Action, InFlightPods, Observation, State, Step},
        own_node::{Allocatable, OwnNode},
        poll::{self, ACTIVE, ACTIVE_FOR, BUSY, Outcome, PollState},
        requests::PodRequests,
        sandbox::Sandboxes,
        stale_names::StaleNames,
    },
    plugin::{Plugin, journal::AllocationJournal, owner_lookup::OwnerLookup, serve::serve, watchers::ListWatchers},
};
use crate::{
    device::{Device, DeviceId, DeviceView, DriverLimits, KubeletView, Limiters, OtherLimiter, Owners, ShimState},
    enforcement::{Library, ShareFiles, install, means_of, other_limiter},
    grpc::{pod_resources::ByResource, uds},
    handover::HandoverCheck,
    metrics::Metrics,
    mps::Mps,
    send_if_changed,
    warm_up::WarmUp,
};

/// Events within this time are one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Limit for lowering allocatable before the agent exits, of the 30 seconds that its pod has: longer than
/// [`allocatable::IN_FLIGHT_TIMEOUT`].
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);
/// NVIDIA's plugin is restarted in each change, and lists its devices again within this time.
const OTHER_PLUGIN_RESTARTS: Duration = Duration::from_secs(45);

/// What the device plugin exchanges with other tasks.
pub struct Channels {
    /// The devices of this node.
    pub devices: watch::Receiver<DeviceView>,
    /// Requests of the node's pods; none without the right to read pods.
    pub requests: watch::Receiver<Option<PodRequests>>,
    /// How kubelet uses the devices.
    pub kubelet: watch::Sender<KubeletView>,
    /// Reads the processes on devices at each allocation.
    pub handover: HandoverCheck,
    /// Daemons of MPS shares.
    pub mps: Option<Mps>,
    /// Whether the driver limits memory.
    pub driver_limits: watch::Receiver<DriverLimits>,
    /// Which pods run in a sandbox.
    pub sandboxes: Option<Sandboxes>,
    /// Which answers of kubelet are believed.
    pub warm_up: WarmUp,
}

/// Serves kubelet until `stop`, then lowers allocatable to zero and returns. `driver_root` is the driver's root on the host.
pub async fn run(
    config: Config,
    driver_root: PathBuf,
    client: Client,
    channels: Channels,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let node = OwnNode::new(client, &config.node_name);
    let mut manager = Manager::new(Arc::new(config), &driver_root, &node, channels, metrics);
    let reconciles = async {
        loop {
            let view = manager.channels.devices.borrow_and_update().clone();
            let pause = manager.reconcile(&view, false).await;
            tokio::select! {
                Ok(()) = manager.channels.devices.changed() => {}
                Ok(()) = manager.channels.requests.changed() => {}
                Ok(()) = manager.channels.driver_limits.changed() => {}
                Ok(()) = manager.allocatable.changed() => {}
                () = manager.wake.notified() => {}
                () = sleep(pause) => continue,
                () = stop.cancelled() => break,
            }
            sleep(DEBOUNCE).await;
        }
        if timeout(SHUTDOWN_LIMIT, manager.drain()).await.is_err() {
            tracing::warn!("allocatable of the node not lowered in time");
        }
        manager.stop_servers().await;
    };
    tokio::select! {
        () = reconciles => {}
        () = node.watch() => {}
    }
}

/// Installs the libraries, if memory is to be limited. Without them shares are not limited, and the status of the node says so.
fn shim(config: &Config) -> Option<Library> {
    if config.memory_limits == MemoryLimits::None {
        return None;
    }
    match install(&config.shim, &config.nvml_view, &config.enforcement_dir) {
        Ok(library) => Some(library),
        Err(error) => {
            tracing::warn!(%error, "libraries that limit memory not installed");
            None
        }
    }
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Manager<'a> {
    config: Arc<Config>,
    driver_root: &'a Path,
    node: &'a OwnNode,
    channels: Channels,
    allocatable: watch::Receiver<Option<Allocatable>>,
    lookup: OwnerLookup,
    wake: Arc<Notify>,
    metrics: Metrics,
    stop: CancellationToken,
    servers: BTreeMap<String, Server>,
    tasks: JoinSet<()>,
    spec: SpecFile,
    /// The libraries that limit memory; none if that is off, or they could not be installed.
    shim: Option<Library>,
    /// Whether containers get it.
    shim_state: ShimState,
    /// Another product that limits memory: ours is off next to it.
    other_limiter: Option<OtherLimiter>,
    /// Generation of the view in the CDI specification.
    spec_generation: u64,
    state: State,
    stale: StaleNames,
    /// Stopped servers that may not have removed their socket yet.
    stopped: BTreeMap<String, CancellationToken>,
    /// See [`allocatable::propagation`].
    propagation: Duration,
    /// Owners, and whether kubelet has reported them.
    owners: Owners,
    answered: bool,
    /// Owners that may have devices from this agent, while another plugin advertises.
    served_owners: Option<Owners>,
    active_until: Instant,
    /// The latest reconcile failed.
    failed: bool,
    /// Since when kubelet lists no device of another plugin.
    nothing_since: Option<Instant>,
    may_exit: bool,
}

/// The plugin server of one resource.
struct Server {
    list: watch::Sender<DeviceList>,
    watchers: ListWatchers,
    /// Makes the server register again.
    register: Arc<Notify>,
    stop: CancellationToken,
    /// It has ended.
    ended: CancellationToken,
}

/// What was observed in one reconcile.
struct Observed {
    listed: Option<ByResource>,
    /// Unconfirmed allocations; none if kubelet did not report owners.
    unconfirmed: Option<BTreeSet<DeviceId>>,
    published: DeviceLists,
    watched: BTreeSet<String>,
    node: Option<Allocatable>,
}

impl<'a> Manager<'a> {
    fn new(
        config: Arc<Config>,
        driver_root: &'a Path,
        node: &'a OwnNode,
        channels: Channels,
        metrics: Metrics,
    ) -> Self {
        let lookup = OwnerLookup::new(&config, channels.requests.clone(), channels.warm_up.clone());
        Self {
            driver_root,
            node,
            channels,
            allocatable: node.latest(),
            lookup,
            wake: Arc::default(),
            metrics,
            stop: CancellationToken::new(),
            servers: BTreeMap::new(),
            tasks: JoinSet::new(),
            spec: SpecFile::in_folder(&config.cdi_dir),
            shim: shim(&config),
            shim_state: ShimState::default(),
            other_limiter: None,
            spec_generation: 0,
            state: State::default(),
            stale: StaleNames::default(),
            stopped: BTreeMap::new(),
            propagation: allocatable::MIN_PROPAGATION,
            owners: Owners::new(),
            answered: false,
            served_owners: None,
            active_until: Instant::now(),
            failed: false,
            nothing_since: None,
            may_exit: false,
            config,
        }
    }

    fn journal(&self) -> &AllocationJournal {
        &self.lookup.journal
    }

    /// Observes, decides, acts and reports; returns the longest delay until the next reconcile.
    async fn reconcile(&mut self, view: &DeviceView, stopping: bool) -> Duration {
        if !view.advertiser.is_agent() {
            return self.observe_other_plugin(view).await;
        }
        self.find_other_limiter();
        // a device that the runtime does not know must not be advertised
        let mut outcome = self.write_spec(view);
        let wanted = if outcome.is_ok() { device_lists(view) } else { self.journal().published() };
        let observed = self.observe().await;
        let step = self.decide(&observed, &wanted, stopping);
        for action in &step.actions {
            outcome = outcome.and(self.execute(action).await);
        }
        if !step.actions.is_empty() {
            self.active_until = Instant::now() + ACTIVE_FOR;
        }
        if view.generation > 0 && outcome.is_ok() && !stopping {
            self.drop_stale_names(&observed, &wanted).await;
        }
        let applied = outcome.is_ok() && self.applied(&observed, &step, &wanted).await;
        let poll_outcome = match (applied, outcome.is_ok()) {
            (true, _) => Outcome::Applied,
            (false, true) => Outcome::InProgress,
            (false, false) => Outcome::Failed,
        };
        let message = self.message(&step, outcome);
        self.report(view, observed, message, applied);
        let published = step.actions.iter().any(|action| matches!(action, Action::Publish(..)));
        self.poll_interval(poll_outcome, published)
    }

    fn poll_interval(&self, outcome: Outcome, published: bool) -> Duration {
        let now = Instant::now();
        let (due, active) = (self.state.due(self.propagation, now), now < self.active_until);
        poll::interval(&PollState { outcome, published, due, in_flight: &self.in_flight(), active }, now)
    }

    fn in_flight(&self) -> InFlightPods {
        let requests = self.channels.requests.borrow();
        requests.as_ref().map_or_else(InFlightPods::new, |requests| requests.in_flight(self.owners.values()))
    }

    /// Another plugin advertises the devices: kubelet is only queried for owners.
    async fn observe_other_plugin(&mut self, view: &DeviceView) -> Duration {
        self.retire().await;
        self.find_other_limiter();
        let listed = self.lookup.pod_resources.allocatable(is_device_resource).await;
        let complete = self.update_owners().await.is_some() && listed.is_ok();
        let removed = if self.has_served_pods() { Ok(()) } else { self.spec.remove() };
        let mut report = self.channels.kubelet.borrow().clone();
        report.other_limiter = self.other_limiter;
        report.message = match (&listed, removed) {
            (Err(status), _) => format!("kubelet's pod resources API does not answer: {}", status.message()),
            (_, Err(error)) => format!("removing the CDI specification: {error}"),
            _ => "another device plugin advertises the devices".to_owned(),
        };
        if complete {
            let devices = listed.into_iter().flatten();
            let devices = devices.flat_map(|(resource, ids)| ids.into_iter().map(move |id| (id, resource.clone())));
            report.elsewhere = devices.collect();
            report.applied_generation = view.generation;
        }
        report.allocatable = report.elsewhere.keys().cloned().collect();
        let nothing = complete && report.allocatable.is_empty();
        self.nothing_since = nothing.then(|| self.nothing_since.unwrap_or_else(Instant::now));
        report.nothing_listed = self.nothing_since.is_some_and(|since| since.elapsed() >= OTHER_PLUGIN_RESTARTS);
        report.plugin_ready = complete;
        self.count_enforcement(view);
        self.send(report);
        // no event reports what another plugin does
        self.poll_interval(if complete { Outcome::Applied } else { Outcome::Failed }, false).min(ACTIVE)
    }

    /// A pod may be left that got its device from this agent: the runtime resolves its CDI name at each start of its containers.
    fn has_served_pods(&mut self) -> bool {
        if !self.answered {
            return true;
        }
        let Self { owners, served_owners, .. } = self;
        let served = served_owners.get_or_insert_with(|| owners.clone());
        served.retain(|id, owner| owners.get(id) == Some(owner));
        !served.is_empty()
    }

    /// Stops the servers and forgets the published lists: kubelet and the other plugin set the node's allocatable from now on.
    async fn retire(&mut self) {
        self.may_exit = true;
        if self.servers.is_empty() {
            return;
        }
        self.stop_servers().await;
        self.stop = CancellationToken::new();
        self.servers.clear();
        self.lookup.journal = Arc::default();
        (self.state, self.spec_generation, self.served_owners) = (State::default(), 0, None);
        (self.stale, self.stopped) = (StaleNames::default(), BTreeMap::new());
        tracing::info!("another device plugin advertises the devices");
    }

    fn decide(&mut self, observed: &Observed, wanted: &DeviceLists, stopping: bool) -> Step {
        let requested = self.channels.requests.borrow().as_ref().map(PodRequests::total);
        let seen = Observation {
            wanted,
            published: &observed.published,
            watched: &observed.watched,
            kubelet: observed.listed.as_ref(),
            node: observed.node.as_ref().map(|node| &node.counts),
            requested: requested.as_ref(),
            in_flight: &self.in_flight(),
            stopping,
            readmits: observed.listed.is_none() || !self.channels.warm_up.kubelet_is_warm(Instant::now()),
            propagation: self.propagation,
            now: Instant::now(),
        };
        let (state, step) = allocatable::step(&self.state, &seen);
        (self.state, self.may_exit) = (state, step.may_exit);
        step
    }

    /// A sentence for the condition. A failure precedes, and is logged once.
    fn message(&mut self, step: &Step, outcome: Result<(), Error>) -> String {
        let failed_before = std::mem::replace(&mut self.failed, outcome.is_err());
        let Err(error) = outcome else { return step.waiting.join("; ") };
        if !failed_before {
            tracing::warn!(%error, "reconcile of device plugin failed");
        }
        error.to_string()
    }

    /// Searches for another product that limits memory; if it comes or goes, the CDI specification is written again.
    fn find_other_limiter(&mut self) {
        let fractioning = self.allocatable.borrow().as_ref().is_some_and(|node| node.fractioning);
        let found = other_limiter(&self.config.host_root).or_else(|| fractioning.then_some(OtherLimiter::Fractioning));
        if std::mem::replace(&mut self.other_limiter, found) != found {
            tracing::warn!(?found, "another product that limits memory came or went");
            self.spec_generation = 0;
        }
    }

    /// Writes the CDI specification: the runtime must know a device before kubelet does, and as long as a container may have it.
    fn write_spec(&mut self, view: &DeviceView) -> Result<(), Error> {
        if self.spec_generation == view.generation {
            // before the first view it is not known which devices there are
            if view.generation == 0 || !self.spec.is_changed() {
                return Ok(());
            }
            tracing::warn!("the CDI specification was changed by another program, and is written again");
        }
        let mut devices = self.journal().devices_in_use();
        devices.extend(view.devices.iter().map(|device| (device.id.clone(), device.clone())));
        let mut complete = true;
        for (device, files) in devices.values().filter_map(|device| Some((device, self.files(device)?))) {
            // a container that is restarted does not start without them; a new one gets new files, or is refused
            if let Err(error) = files.ensure(device) {
                tracing::warn!(%error, device = %device.id, "limits of share not written");
                complete = false;
            }
        }
        let shim = self.shim.clone().filter(|_| self.other_limiter.is_none());
        let driver = Driver::find(&self.config, self.driver_root).with_shim(shim);
        let wanted = self.config.memory_limits == MemoryLimits::Shim && self.config.allocate == Allocation::Cdi;
        let installed = complete && self.shim.is_some() && driver.cuda().next().is_some();
        self.shim_state = match (wanted, self.other_limiter, installed) {
            (false, ..) => ShimState::Off,
            (true, Some(other), _) => ShimState::Conflict(other),
            (true, None, true) => ShimState::Served,
            (true, None, false) => ShimState::NotInstalled,
        };
        let spec = cdi::render(devices.values(), &driver);
        self.spec.write(spec.as_ref()).map_err(Error::Spec)?;
        if let Some(shim) = &self.shim {
            shim.prune(devices.keys().map(DeviceId::uuid));
        }
        self.journal().set_devices(devices.values());
        self.journal().set_policy(view.allocation);
        // files that could not be written are tried again
        if complete {
            self.spec_generation = view.generation;
        }
        Ok(())
    }

    /// Files of a share whose memory is limited on this node.
    fn files(&self, device: &Device) -> Option<ShareFiles> {
        ShareFiles::of(device, &self.shim.as_ref()?.shares)
    }

    async fn observe(&mut self) -> Observed {
        let listed = self.lookup.pod_resources.allocatable(is_device_resource).await;
        let unconfirmed = self.update_owners().await;
        if let Err(status) = &listed {
            tracing::debug!(%status, "pod resources API does not answer");
        }
        let watched = self.servers.iter().filter(|(_, server)| server.watchers.any());
        Observed {
            listed: listed.ok(),
            unconfirmed,
            published: self.journal().published(),
            watched: watched.map(|(resource, _)| resource.clone()).collect(),
            node: self.allocatable.borrow_and_update().clone(),
        }
    }

    /// Notices a kubelet that has started.
    fn observe_kubelet(&self) {
        let socket = self.config.kubelet_socket();
        if let (Some(identity), Some(age)) = (uds::identity(&socket), uds::age(&socket)) {
            self.channels.warm_up.kubelet_socket(identity, age, Instant::now());
        }
    }

    /// Queries the owners, and returns the unconfirmed allocations. If kubelet does not answer, the owners stay.
    async fn update_owners(&mut self) -> Option<BTreeSet<DeviceId>> {
        self.observe_kubelet();
        let queried = Instant::now();
        let owners = match self.lookup.owners().await {
            Ok(owners) => owners,
            Err(status) => {
                tracing::debug!(%status, "kubelet reports no owners");
                return None;
            }
        };
        if owners != self.owners {
            self.active_until = Instant::now() + ACTIVE_FOR;
        }
        (self.owners, self.answered) = (owners, true);
        Some(self.journal().confirm(self.owners.keys().cloned().collect(), queried, Instant::now()))
    }

    async fn execute(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            Action::WriteAllocatable(counts) => {
                let begun = Instant::now();
                self.node.write(counts).await.map_err(Error::Allocatable)?;
                self.propagation = allocatable::propagation(begun.elapsed());
            }
            Action::Publish(resource, list) => self.publish(resource, list),
            Action::Register(resource) => {
                if let Some(server) = self.servers.get(resource) {
                    server.register.notify_one();
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, resource: &str, list: &DeviceList) {
        self.journal().publish(resource, list);
        if let Some(server) = self.servers.get(resource) {
            server.list.send_replace(list.clone());
        } else {
            let server = self.start_server(resource, list);
            self.servers.insert(resource.to_owned(), server);
        }
        tracing::info!(resource, devices = list.len(), "published device list");
    }

    fn start_server(&mut self, resource: &str, list: &DeviceList) -> Server {
        let (list, register) = (watch::Sender::new(list.clone()), Arc::default());
        let watchers = ListWatchers::new(self.wake.clone());
        let (stop, ended) = (self.stop.child_token(), CancellationToken::new());
        let plugin = Plugin {
            resource: resource.to_owned(),
            lookup: self.lookup.clone(),
            handover: self.channels.handover.clone(),
            mps: self.channels.mps.clone(),
            shim: self.shim.clone(),
            sandboxes: self.channels.sandboxes.clone(),
            requests: self.channels.requests.clone(),
            list: list.subscribe(),
            watchers: watchers.clone(),
            config: self.config.clone(),
            metrics: self.metrics.clone(),
            stop: stop.clone(),
        };
        // both have the same socket
        let before = self.stopped.remove(resource);
        let (served, on_end) = (serve(plugin, Arc::clone(&register)), ended.clone().drop_guard());
        self.tasks.spawn(async move {
            if let Some(before) = before {
                before.cancelled().await;
            }
            served.await;
            drop(on_end);
        });
        Server { list, watchers, register, stop, ended }
    }

    /// The view is applied: kubelet cannot allocate a device that it does not advertise, and every allocated device shows its owner.
    async fn applied(&mut self, observed: &Observed, step: &Step, wanted: &DeviceLists) -> bool {
        if !step.actions.is_empty() || !step.waiting.is_empty() {
            return false;
        }
        let advertised = |id: &DeviceId| wanted.values().any(|list| list.contains_key(id));
        // queried after the end of the withdrawal, so that no allocation comes in between
        let Some(ended) = self.journal().end_withdrawal() else { return false };
        let unconfirmed = if ended { self.update_owners().await } else { observed.unconfirmed.clone() };
        unconfirmed.is_some_and(|unconfirmed| unconfirmed.iter().all(advertised))
    }

    fn report(&self, view: &DeviceView, observed: Observed, message: String, applied: bool) {
        let registered = self.servers.keys().all(|resource| observed.watched.contains(resource));
        let mut report = KubeletView { elsewhere: BTreeMap::new(), message, ..self.channels.kubelet.borrow().clone() };
        report.plugin_ready = view.generation > 0 && registered && observed.listed.is_some();
        (report.limiters, report.other_limiter) = (self.limiters(), self.other_limiter);
        self.count_enforcement(view);
        if let Some(listed) = observed.listed {
            report.allocatable = listed.into_values().flatten().collect();
        }
        if applied {
            report.applied_generation = view.generation;
        }
        self.send(report);
    }

    /// What can limit the memory of shares.
    fn limiters(&self) -> Limiters {
        Limiters { shim: self.shim_state, driver: *self.channels.driver_limits.borrow() }
    }

    /// Counts the shares by what limits them.
    fn count_enforcement(&self, view: &DeviceView) {
        let limiters = if view.advertiser.is_agent() { self.limiters() } else { Limiters::OFF };
        let shares = view.devices.iter().chain(&view.elsewhere);
        self.metrics.set_enforcement(&shares.filter_map(|device| means_of(device, limiters)).collect::<Vec<_>>());
    }

    fn send(&self, report: KubeletView) {
        let report = KubeletView { answered: self.answered, owners: self.owners.clone(), ..report };
        send_if_changed(&self.channels.kubelet, report);
    }

    /// Lowers allocatable to zero, and waits until scheduler and kubelet have received that.
    async fn drain(&mut self) {
        let view = self.channels.devices.borrow().clone();
        while !self.may_exit {
            self.reconcile(&view, true).await;
            sleep(BUSY).await;
        }
    }

    async fn stop_servers(&mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
