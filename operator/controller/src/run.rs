//! The wiring: client, caches, lease, controllers, servers, shutdown.

use std::{sync::Arc, time::Duration};

use futures::stream;
use gputenancy_cluster::{
    client,
    error::sentence,
    events::Publisher,
    lease::{Elector, LeaseError},
    service::{endpoints, logging, shutdown},
};
use gputenancy_crds::{GpuTenant, condition};
use gputenancy_decisions::fleet_view::FleetView;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config, ResourceExt as _};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinError, JoinHandle},
};
use tokio_util::sync::CancellationToken;

use crate::{
    apply::Writer,
    args::{Args, Command, RunArgs},
    cache::{self, Caches, Trigger, Triggers},
    health::{Health, Readiness},
    metrics::Metrics,
    pool,
    queues::{self, QueueView},
    release, rights, tenant,
    usage_endpoint::{Server, UsageError},
};

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No cluster is configured.
    #[error("no cluster: {0}")]
    Config(String),
    /// The filter of the log is not valid.
    #[error(transparent)]
    Log(#[from] logging::Error),
    /// Health and metrics cannot be served.
    #[error(transparent)]
    Serve(#[from] endpoints::Error),
    /// Teams cannot be served.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The lease is lost.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// An error of the API server.
    #[error("{}", sentence(&**.0))]
    Api(#[from] Box<kube::Error>),
    /// Rights are missing.
    #[error("{0}")]
    Rights(String),
    /// A task of the leader ended, which is a bug.
    #[error("{0} ended: {1}")]
    Ended(&'static str, String),
    /// Signals cannot be caught.
    #[error(transparent)]
    Signal(#[from] shutdown::Error),
}

impl RunError {
    fn ended(task: &'static str, how: Result<(), JoinError>) -> Self {
        Self::Ended(task, how.err().map_or_else(|| "without an error".into(), |e| e.to_string()))
    }
}

/// Runs the command of the command line.
pub async fn run(args: Args) -> Result<(), RunError> {
    let Args { command, run } = args;
    match command.unwrap_or_else(|| Command::Run(Box::new(run))) {
        Command::Run(args) => operate(*args).await,
        Command::ReleaseFinalizers(log) => {
            log.init()?;
            release::finalizers(plain(config().await?)?).await.map_err(|e| Box::new(e).into())
        }
        Command::Rights(locations) => {
            let missing =
                gputenancy_cluster::rights::print(&plain(config().await?)?, &rights::rights(&locations)).await;
            if missing.is_empty() { Ok(()) } else { Err(RunError::Rights(missing.join("\n"))) }
        }
    }
}

async fn config() -> Result<Config, RunError> {
    let mut config = Config::infer().await.map_err(|e| RunError::Config(e.to_string()))?;
    // a refused eviction is an answer (429), not a reason to retry in the client; controllers requeue
    config.default_retry = false;
    Ok(config)
}

fn plain(config: Config) -> Result<Client, RunError> {
    client::named(config, "").map_err(|e| RunError::Config(sentence(&e)))
}

/// State of a replica that does not lead yet.
struct Replica {
    client: Client,
    caches: Caches,
    triggers: Triggers,
    queue: mpsc::UnboundedReceiver<Trigger>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

/// The tasks of the leader.
struct Controllers {
    fleet: JoinHandle<()>,
    tenants: JoinHandle<()>,
    queues: JoinHandle<()>,
    on_view: JoinHandle<()>,
}

impl Controllers {
    /// Waits until one of the tasks ends, by a panic or otherwise: the replica must not keep the lease without it.
    async fn ended(&mut self) -> RunError {
        let Self { fleet, tenants, queues, on_view } = self;
        tokio::select! {
            biased;
            ended = fleet => RunError::ended("the fleet controller", ended),
            ended = tenants => RunError::ended("the tenant controller", ended),
            ended = queues => RunError::ended("the controller of queues", ended),
            ended = on_view => RunError::ended("the task that triggers tenants", ended),
        }
    }
}

/// Serves, fills caches, waits for the lease, and then runs the controllers until a signal, a lost lease or an error.
async fn operate(args: RunArgs) -> Result<(), RunError> {
    args.log.init()?;
    let (config, refused) = (config().await?, Arc::new(Notify::new()));
    let (rights_client, usage_config) = (plain(config.clone())?, config.clone());
    let client =
        gputenancy_cluster::rights::client(config, refused.clone()).map_err(|e| RunError::Config(sentence(&e)))?;
    let (metrics, readiness, stop) = (Arc::new(Metrics::default()), Readiness::default(), CancellationToken::new());
    readiness.waits_for("anything");
    shutdown::on_signal(stop.clone())?;
    let health = Health { readiness: readiness.clone(), metrics: metrics.clone() };
    let served = tokio::spawn(endpoints::serve(args.listen, health, stop.clone()));
    let locations = &args.locations;
    let rights =
        tokio::spawn(rights::keep(rights_client, locations.clone(), refused, readiness.clone(), metrics.clone()));

    let usage = Server::bind(&args.usage, &locations.namespace)?;
    let Some(mut replica) = fill_caches(client, &args, &readiness, metrics.clone(), stop.clone()).await else {
        return Ok(());
    };
    // also while another replica leads
    if let Some(usage) = usage {
        usage.start(usage_config, replica.caches.clone(), stop.clone())?;
    }
    let identity = args.identity.clone().unwrap_or_else(|| format!("{}-{}", std::process::id(), Timestamp::now()));
    let (namespace, lease) = (&args.locations.namespace, &args.locations.lease_name);
    let mut elector = Elector::new(replica.client.clone(), namespace, lease, identity.clone(), args.lease_duration);
    if !lead(&mut replica, &mut elector).await {
        return Ok(());
    }
    tracing::info!(identity, "this replica is the leader");
    metrics.leads(true);
    metrics.pod_info.leads(&replica.caches);
    metrics.statuses.leads(&replica.caches, args.metrics_tenant_labels.iter().cloned().collect());

    let duration = args.lease_duration;
    let mut controllers = start_controllers(replica, args, elector.term(), identity);
    let release = CancellationToken::new();
    let mut held = std::pin::pin!(elector.hold(release.clone()));
    let outcome = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        outcome = &mut held => outcome.map_err(RunError::from),
        ended = served => ended.map_or_else(|e| Err(RunError::ended("the endpoints", Err(e))), |e| e.map_err(RunError::from)),
        error = controllers.ended() => Err(error),
    };
    stop.cancel();
    controllers.on_view.abort();
    rights.abort();
    // without the lease nothing more may be written: reconciles in progress are dropped
    if outcome.is_ok() {
        let ended = async { drop(tokio::join!(controllers.fleet, controllers.tenants, controllers.queues)) };
        tokio::select! {
            biased;
            lost = &mut held => lost?,
            ended = tokio::time::timeout(duration / 2, ended) => {
                if ended.is_ok() {
                    // released only after the last write
                    release.cancel();
                    held.await?;
                }
            }
        }
    }
    outcome
}

/// Starts the watches and waits for their first lists; `None`: stopped before.
async fn fill_caches(
    client: Client,
    args: &RunArgs,
    readiness: &Readiness,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Option<Replica> {
    let (tenants, queue) = mpsc::unbounded_channel();
    let triggers = Triggers { fleet: Arc::default(), tenants, queues: Arc::default() };
    let filled = async {
        let caches = Caches::start(&client, &args.locations, &triggers, serves_slices(&client).await);
        caches.ready(|resource| readiness.waits_for(resource)).await;
        readiness.is_ready();
        caches
    };
    let caches = tokio::select! {
        caches = filled => caches,
        () = stop.cancelled() => return None,
    };
    tracing::info!("caches are filled, waiting for the lease");
    Some(Replica { client, caches, triggers, queue, metrics, stop })
}

/// Waits for the lease; false: stopped before. A new leader reconciles all tenants, so triggers before that are dropped.
async fn lead(replica: &mut Replica, elector: &mut Elector) -> bool {
    let dropped = async { while replica.queue.recv().await.is_some() {} };
    tokio::select! {
        () = elector.acquire() => true,
        () = replica.stop.cancelled() => false,
        () = dropped => false,
    }
}

fn start_controllers(replica: Replica, args: RunArgs, term: u64, identity: String) -> Controllers {
    let Replica { client, caches, triggers, queue, metrics, stop } = replica;
    let RunArgs { locations, concurrency, tenant_standard, gpu_taint_key, .. } = args;
    let layouts_in = locations.layouts().to_owned();
    let plugin_configs_in = locations.plugin_configs().to_owned();
    let settings = tenant::Settings {
        home: locations.namespace.clone(),
        wake_controllers: locations.wake_controllers,
        virtual_clusters: locations.virtual_clusters,
    };
    let writer = Writer::new(client.clone(), metrics.clone());
    let publisher = Publisher::new(client, "gputenancy.io/operator", identity);
    let (publish_view, view) = watch::channel(Arc::new(FleetView::empty()));
    let (publish_queues, queues) = watch::channel(Arc::default());
    let fleet = pool::Controller::new(
        caches.clone(),
        pool::Namespaces { home: locations.namespace, layouts: layouts_in, plugin_configs: plugin_configs_in },
        gpu_taint_key,
        writer.clone(),
        publisher.clone(),
        metrics.clone(),
        (publish_view, queues.clone()),
    );
    let context = tenant::Context::new(
        term,
        (settings, tenant_standard),
        caches.clone(),
        writer.clone(),
        publisher.clone(),
        tenant::Views { fleet: view.clone(), queues: queues.clone() },
        metrics.clone(),
    );
    triggers.fleet.notify_one();
    let trigger_fleet = triggers.fleet.clone();
    let (mut first_view, stop_tenants, stop_queues) = (view.clone(), stop.clone(), stop.clone());
    Controllers {
        fleet: tokio::spawn(fleet.run(triggers.fleet, stop)),
        tenants: tokio::spawn(async move {
            // fails only when the fleet's controller has ended
            if first_view.wait_for(|v| v.complete).await.is_ok() {
                let queue = stream::unfold(queue, async |mut queue| Some((queue.recv().await?, queue)));
                tenant::run(context, queue, concurrency, stop_tenants).await;
            }
        }),
        queues: tokio::spawn(run_queues(
            caches.clone(),
            (view.clone(), publish_queues),
            (writer, publisher),
            metrics.clone(),
            (triggers.queues, stop_queues),
        )),
        on_view: tokio::spawn(trigger_affected((view, queues), caches, (trigger_fleet, triggers.tenants), metrics)),
    }
}

fn ready_reason(tenant: &GpuTenant) -> &str {
    let mut conditions = tenant.status.iter().flat_map(|s| &s.conditions);
    conditions.find(|c| c.type_ == condition::READY).map_or("New", |c| &c.reason)
}

/// Retries until the API server answers: a watch of a kind that it does not serve would fail for ever.
async fn serves_slices(client: &Client) -> bool {
    loop {
        match cache::serves_slices(client).await {
            Ok(served) => return served,
            Err(error) => tracing::warn!(%error, "discovery failed, retrying"),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Keeps the queues of Kueue, if the chart has them on; otherwise it waits for the end.
async fn run_queues(
    caches: Caches,
    (view, publish): (watch::Receiver<Arc<FleetView>>, watch::Sender<Arc<QueueView>>),
    by: (Writer, Publisher),
    metrics: Arc<Metrics>,
    (trigger, stop): (Arc<Notify>, CancellationToken),
) {
    let Some(kueue) = caches.kueue.clone() else { return stop.cancelled().await };
    queues::Controller::new(caches, kueue, (view, publish), by, metrics).run(trigger, stop).await;
}

/// Triggers the tenants that a new view of the fleet or of queues affects, and the fleet if queues of pools differ; the first view of the fleet affects
/// all tenants.
async fn trigger_affected(
    (mut view, mut queues): (watch::Receiver<Arc<FleetView>>, watch::Receiver<Arc<QueueView>>),
    caches: Caches,
    (fleet, triggers): (Arc<Notify>, mpsc::UnboundedSender<Trigger>),
    metrics: Arc<Metrics>,
) {
    let (mut old, mut old_queues) = (Arc::new(FleetView::empty()), Arc::new(QueueView::default()));
    loop {
        tokio::select! {
            changed = view.changed() => if changed.is_err() { return },
            changed = queues.changed() => {
                if changed.is_err() {
                    return;
                }
                let new = queues.borrow_and_update().clone();
                for tenant in new.differing(&old_queues) {
                    drop(triggers.send(Trigger::Tenant(tenant)));
                }
                if new.pools != old_queues.pools {
                    fleet.notify_one();
                }
                old_queues = new;
                continue;
            }
        }
        let new = view.borrow_and_update().clone();
        let tenants = caches.tenants.state();
        metrics.tenants(tenants.iter().map(|t| ready_reason(t)));
        if new.same_catalog(&old) {
            for tenant in new.affected(&old, &tenants) {
                drop(triggers.send(Trigger::Tenant(tenant.name_any())));
            }
        } else {
            drop(triggers.send(Trigger::AllTenants));
        }
        old = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_controller_ends_the_replica() {
        let pending = || tokio::spawn(std::future::pending());
        let tenants = tokio::spawn(async { panic!("a bug in a reconcile") });
        let error = Controllers { fleet: pending(), tenants, queues: pending(), on_view: pending() }.ended().await;
        assert!(error.to_string().starts_with("the tenant controller ended: task"), "{error}");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
