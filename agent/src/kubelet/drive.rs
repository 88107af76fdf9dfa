//! The loop that sees, decides by [`super::allocatable`], and acts.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::Client;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    allocatable::{self, Action, Flights, Memory, Seen, Step, ours},
    bound::{self, Demands},
    cdi::{self, Driver, SpecFile},
    config::Config,
    holders::Holders,
    ledger::Ledger,
    listeners::Listeners,
    node::{Counted, OwnNode},
    offer::{self, Offer, Offers},
    plugin::{Plugin, Terms},
    pods::{ByResource, PodResources},
    rest::{self, BUSY, LIVELY, LIVELY_FOR, Offering, Turn},
    serve,
};
use crate::{
    device::{DeviceId, DeviceView, KubeletView, Owners},
    environment::Suspects,
    metrics::Metrics,
};

/// A burst of news is one look.
const BURST: Duration = Duration::from_millis(20);
/// Time for lowering allocatable before the agent stops, of the 30 seconds that its pod is given: more than
/// [`allocatable::PATIENCE`].
const FAREWELL: Duration = Duration::from_secs(20);

/// Why a turn could not be finished; the next one tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Without the specification no container with a device starts.
    #[error("writing the CDI specification")]
    Cdi(#[from] io::Error),
    /// Allocatable stays as it is.
    #[error("writing the node's allocatable")]
    Node(#[from] kube::Error),
}

/// Serves kubelet until `stop`, then lowers allocatable to nothing and returns.
pub async fn run(
    config: Config,
    client: Client,
    mut devices: watch::Receiver<DeviceView>,
    report: watch::Sender<KubeletView>,
    suspects: &watch::Sender<Suspects>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let node = OwnNode::new(client.clone(), &config.node_name);
    let mut counts = node.latest();
    let demands = watch::Sender::new(None);
    let mut pods = demands.subscribe();
    let nudge = Arc::new(Notify::new());
    let mut drive = Drive::new(&config, &node, demands.subscribe(), nudge.clone(), metrics);
    let turns = async {
        loop {
            let view = devices.borrow_and_update().clone();
            let pause = drive.turn(&view, false, &report).await;
            tokio::select! {
                Ok(()) = devices.changed() => {}
                Ok(()) = counts.changed() => {}
                Ok(()) = pods.changed() => {}
                () = nudge.notified() => {}
                () = tokio::time::sleep(pause) => continue,
                () = stop.cancelled() => break,
            }
            tokio::time::sleep(BURST).await;
        }
        let last = devices.borrow().clone();
        if tokio::time::timeout(FAREWELL, drive.leave(&last, &report)).await.is_err() {
            tracing::warn!("stopping without having lowered the node's allocatable");
        }
        drive.close().await;
    };
    tokio::select! {
        () = turns => {}
        () = node.follow() => {}
        () = bound::follow(client, &config.node_name, &demands, suspects) => {}
    }
}

/// Everything that acts.
struct Drive<'a> {
    config: &'a Config,
    node: &'a OwnNode,
    counts: watch::Receiver<Option<Counted>>,
    demands: watch::Receiver<Option<Demands>>,
    pods: PodResources,
    ledger: Arc<Ledger>,
    terms: Arc<Terms>,
    nudge: Arc<Notify>,
    metrics: Metrics,
    stop: CancellationToken,
    servers: BTreeMap<String, Server>,
    tasks: JoinSet<()>,
    spec: SpecFile,
    specified: u64,
    memory: Memory,
    /// Time for the last write of allocatable to be seen.
    settle: Duration,
    owners: Owners,
    /// Kubelet has answered who owns what.
    told: bool,
    /// Owners that may have got their devices from us, while another plugin advertises.
    inherited: Option<Owners>,
    lively_until: Instant,
    troubled: bool,
    may_go: bool,
}

/// One resource's plugin server.
struct Server {
    offer: watch::Sender<Offer>,
    listeners: Listeners,
    renew: Arc<Notify>,
}

/// What was asked of others in one turn.
struct Looked {
    listed: Option<ByResource>,
    /// Grants that no owner shows for yet; none when kubelet did not say who owns what.
    waiting: Option<BTreeSet<DeviceId>>,
    published: Offers,
    listening: BTreeSet<String>,
    counts: Option<Counted>,
}

impl<'a> Drive<'a> {
    fn new(
        config: &'a Config,
        node: &'a OwnNode,
        demands: watch::Receiver<Option<Demands>>,
        nudge: Arc<Notify>,
        metrics: Metrics,
    ) -> Self {
        let terms = Terms { allocation: config.allocation, extra_cdi_devices: config.extra_cdi_devices.clone() };
        Self {
            config,
            node,
            counts: node.latest(),
            demands,
            pods: PodResources::at(&config.pod_resources_socket()),
            ledger: Arc::default(),
            terms: Arc::new(terms),
            nudge,
            metrics,
            stop: CancellationToken::new(),
            servers: BTreeMap::new(),
            tasks: JoinSet::new(),
            spec: SpecFile::in_folder(&config.cdi_dir),
            specified: 0,
            memory: Memory::default(),
            settle: allocatable::SETTLE,
            owners: Owners::new(),
            told: false,
            inherited: None,
            lively_until: Instant::now(),
            troubled: false,
            may_go: false,
        }
    }

    /// Sees, decides, acts, reports; answers how long to rest at most.
    async fn turn(&mut self, view: &DeviceView, stopping: bool, report: &watch::Sender<KubeletView>) -> Duration {
        if !view.advertiser.is_agent() {
            return self.look_on(view, report).await;
        }
        let wanted = offer::offers(view);
        // what the runtime does not know must not be offered
        let specified = self.specify(view);
        let offerable = if specified.is_ok() { wanted } else { self.ledger.published() };
        let looked = self.look().await;
        let step = self.decide(&looked, &offerable, stopping);
        let mut outcome = specified;
        for action in &step.actions {
            outcome = outcome.and(self.act(action).await);
        }
        if !step.actions.is_empty() {
            self.lively_until = Instant::now() + LIVELY_FOR;
        }
        let applied = outcome.is_ok() && self.applied(&looked, &step, &offerable).await;
        let message = self.describe(&step, &outcome);
        self.report(view, &looked, message, applied, report);
        let told = step.actions.iter().any(|action| matches!(action, Action::Publish(..)));
        let offering = match (applied, outcome.is_ok()) {
            (true, _) => Offering::InForce,
            (false, true) => Offering::OnItsWay,
            (false, false) => Offering::Failed,
        };
        self.rest(offering, told)
    }

    fn rest(&self, offering: Offering, told: bool) -> Duration {
        let now = Instant::now();
        let due = self.memory.due(self.settle, now);
        let lively = now < self.lively_until;
        rest::after(&Turn { offering, told, due, in_flight: &self.in_flight(), lively }, now)
    }

    /// Pods that are bound and have no device yet; none where the agent may not read pods.
    fn in_flight(&self) -> Flights {
        self.demands.borrow().as_ref().map_or_else(Flights::new, |demands| demands.in_flight(self.owners.values()))
    }

    /// Another plugin offers the devices: kubelet is only asked who has which, and nothing is told to anybody.
    async fn look_on(&mut self, view: &DeviceView, report: &watch::Sender<KubeletView>) -> Duration {
        self.retire().await;
        let listed = self.pods.allocatable(ours).await;
        let seen = self.learn_owners().await.is_some() && listed.is_ok();
        let outcome = if self.served_pods_left() { Ok(()) } else { self.spec.remove() };
        let message = match (&listed, &outcome) {
            (Err(status), _) => format!("kubelet's pod resources API does not answer: {}", status.message()),
            (_, Err(error)) => format!("removing the CDI specification: {error}"),
            _ => "another device plugin offers the devices".to_owned(),
        };
        let elsewhere: BTreeMap<DeviceId, String> = (listed.into_iter().flatten())
            .flat_map(|(resource, ids)| ids.into_iter().map(move |id| (id, resource.clone())))
            .collect();
        let (told, owners) = (self.told, self.owners.clone());
        report.send_if_modified(|known| {
            let elsewhere = if seen { elsewhere } else { known.elsewhere.clone() };
            let new = KubeletView {
                answered: told,
                owners,
                allocatable: elsewhere.keys().cloned().collect(),
                elsewhere,
                applied_generation: if seen { view.generation } else { known.applied_generation },
                plugin_ready: seen,
                message,
            };
            let news = *known != new;
            *known = new;
            news
        });
        // nobody tells of what another plugin does
        let offering = if seen { Offering::InForce } else { Offering::Failed };
        self.rest(offering, false).min(LIVELY)
    }

    /// Whether a pod may be left that got its device from this agent: the runtime resolves our CDI name at each start of its containers.
    fn served_pods_left(&mut self) -> bool {
        if !self.told {
            return true;
        }
        let Self { owners, inherited, .. } = self;
        let inherited = inherited.get_or_insert_with(|| owners.clone());
        inherited.retain(|id, owner| owners.get(id) == Some(owner));
        !inherited.is_empty()
    }

    /// Ends our servers and forgets what was offered; the node's allocatable is kubelet's and the other plugin's from here on.
    async fn retire(&mut self) {
        self.may_go = true;
        if self.servers.is_empty() {
            return;
        }
        self.close().await;
        self.stop = CancellationToken::new();
        self.servers.clear();
        self.ledger = Arc::default();
        (self.memory, self.specified, self.may_go, self.inherited) = (Memory::default(), 0, true, None);
        tracing::info!("another device plugin offers the devices from now on");
    }

    fn decide(&mut self, looked: &Looked, wanted: &Offers, stopping: bool) -> Step {
        let taken = self.demands.borrow().as_ref().map(Demands::requested);
        let in_flight = self.in_flight();
        let seen = Seen {
            wanted,
            published: &looked.published,
            listening: &looked.listening,
            kubelet: looked.listed.as_ref(),
            node: looked.counts.as_ref().map(|counted| &counted.counts),
            taken: taken.as_ref(),
            in_flight: &in_flight,
            stopping,
            settle: self.settle,
            now: Instant::now(),
        };
        let (memory, step) = allocatable::step(&self.memory, &seen);
        self.memory = memory;
        self.may_go = step.may_go;
        step
    }

    /// One sentence for a condition; trouble comes first, and is logged once.
    fn describe(&mut self, step: &Step, outcome: &Result<(), Error>) -> String {
        let waiting = step.waiting.join("; ");
        let Err(error) = outcome else {
            self.troubled = false;
            return waiting;
        };
        let text = super::chain(error);
        if !self.troubled {
            tracing::warn!(error = text, "trying again");
        }
        self.troubled = true;
        text
    }

    /// The runtime must know a device before kubelet does, and as long as a container may have it.
    fn specify(&mut self, view: &DeviceView) -> Result<(), Error> {
        if self.specified == view.generation {
            return Ok(());
        }
        let in_play = self.ledger.in_play();
        let mut devices = self.ledger.known();
        devices.retain(|id, _| in_play.contains(id));
        devices.extend(view.devices.iter().map(|device| (device.id.clone(), device.clone())));
        self.spec.write(&cdi::render(devices.values(), &Driver::find(self.config)))?;
        self.ledger.learn(devices.values());
        self.specified = view.generation;
        Ok(())
    }

    async fn look(&mut self) -> Looked {
        let listed = self.pods.allocatable(ours).await;
        let waiting = self.learn_owners().await;
        if let Err(status) = &listed {
            tracing::debug!(%status, "kubelet's pod resources API does not answer");
        }
        let listening = self.servers.iter().filter(|(_, server)| server.listeners.any());
        Looked {
            listed: listed.ok(),
            waiting,
            published: self.ledger.published(),
            listening: listening.map(|(resource, _)| resource.clone()).collect(),
            counts: self.counts.borrow_and_update().clone(),
        }
    }

    /// Grants that no owner shows for yet. A kubelet that does not answer says nothing: its owners stay as they were.
    async fn learn_owners(&mut self) -> Option<BTreeSet<DeviceId>> {
        let asked = Instant::now();
        let holders = Holders { ledger: self.ledger.clone(), pods: self.pods.clone() };
        let owners = match holders.owners().await {
            Ok(owners) => owners,
            Err(status) => {
                tracing::debug!(%status, "kubelet does not say who owns which device");
                return None;
            }
        };
        if owners != self.owners {
            self.lively_until = Instant::now() + LIVELY_FOR;
        }
        (self.owners, self.told) = (owners, true);
        Some(self.ledger.settle(self.owners.keys().cloned().collect(), asked, Instant::now()))
    }

    async fn act(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Allocatable(counts) => {
                let begun = Instant::now();
                self.node.write(counts).await?;
                self.settle = allocatable::settling(begun.elapsed());
            }
            Action::Publish(resource, offer) => self.publish(resource, offer),
            Action::Renew(resource) => {
                if let Some(server) = self.servers.get(resource) {
                    server.renew.notify_one();
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, resource: &str, offer: &Offer) {
        self.ledger.publish(resource, offer);
        if let Some(server) = self.servers.get(resource) {
            server.offer.send_replace(offer.clone());
        } else {
            let server = self.serve(resource, offer);
            self.servers.insert(resource.to_owned(), server);
        }
        tracing::info!(resource, devices = offer.len(), "told kubelet");
    }

    fn serve(&mut self, resource: &str, offer: &Offer) -> Server {
        let server = Server {
            offer: watch::Sender::new(offer.clone()),
            listeners: Listeners::new(self.nudge.clone()),
            renew: Arc::default(),
        };
        let plugin = Plugin {
            resource: resource.to_owned(),
            holders: Holders { ledger: self.ledger.clone(), pods: self.pods.clone() },
            offer: server.offer.subscribe(),
            listeners: server.listeners.clone(),
            terms: self.terms.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
        };
        self.tasks.spawn(serve::keep(plugin, self.config.plugin_dir(), server.renew.clone()));
        server
    }

    /// Is the view in force: nobody can be given what it does not offer, and whoever was given it shows as owner.
    async fn applied(&mut self, looked: &Looked, step: &Step, wanted: &Offers) -> bool {
        if !step.actions.is_empty() || !step.waiting.is_empty() {
            return false;
        }
        let still_offered = |id: &DeviceId| wanted.values().any(|offer| offer.contains_key(id));
        // sealed first, then asked: no grant slips in between
        let open = if self.ledger.seal() { self.learn_owners().await } else { looked.waiting.clone() };
        open.is_some_and(|open| open.iter().all(still_offered))
    }

    fn report(
        &self,
        view: &DeviceView,
        looked: &Looked,
        message: String,
        applied: bool,
        report: &watch::Sender<KubeletView>,
    ) {
        let allocatable = looked.listed.iter().flat_map(|all| all.values().flatten().cloned()).collect();
        let registered = self.servers.keys().all(|resource| looked.listening.contains(resource));
        report.send_if_modified(|known| {
            let new = KubeletView {
                answered: self.told,
                owners: self.owners.clone(),
                elsewhere: BTreeMap::new(),
                allocatable: if looked.listed.is_some() { allocatable } else { known.allocatable.clone() },
                applied_generation: if applied { view.generation } else { known.applied_generation },
                plugin_ready: view.generation > 0 && registered && looked.listed.is_some(),
                message,
            };
            let news = *known != new;
            *known = new;
            news
        });
    }

    /// Takes everything back, and gives the scheduler and kubelet time to see it.
    async fn leave(&mut self, view: &DeviceView, report: &watch::Sender<KubeletView>) {
        while !self.may_go {
            self.turn(view, true, report).await;
            tokio::time::sleep(BUSY).await;
        }
    }

    /// Ends the plugin servers.
    async fn close(&mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
