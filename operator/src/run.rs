//! The wiring: client, caches, lease, controllers, servers, shutdown.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use gputenancy_service::{endpoints, events::Publisher, logging, shutdown};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinError,
};
use tokio_util::sync::CancellationToken;

use crate::{
    apply::Writer,
    args::{Args, Command, Places, RunArgs},
    cache::{self, Caches, EVERYBODY, Wakes},
    health::{Health, Readiness},
    lease::{Elector, LeaseError},
    metrics::Metrics,
    pool, release, rights, tenant,
    view::View,
};

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no cluster to talk to.
    #[error("no cluster: {0}")]
    Config(String),
    /// The filter of the log is not valid.
    #[error(transparent)]
    Log(#[from] logging::Error),
    /// Health and metrics cannot be served.
    #[error(transparent)]
    Serve(#[from] endpoints::Error),
    /// The lease is lost.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// An answer of the API server.
    #[error(transparent)]
    Api(#[from] Box<kube::Error>),
    /// Something is missing that the operator needs.
    #[error("{0}")]
    Rights(String),
    /// A controller has ended, which it does only by a fault of this program.
    #[error("the controller of {0} has ended: {1}")]
    Ended(&'static str, String),
    /// Signals cannot be caught.
    #[error(transparent)]
    Signal(#[from] shutdown::Error),
}

impl RunError {
    fn ended(which: &'static str, how: Result<(), JoinError>) -> Self {
        Self::Ended(which, how.err().map_or_else(|| "it has nothing more to do".into(), |e| e.to_string()))
    }
}

/// Does what the command line asks for.
pub async fn run(args: Args) -> Result<(), RunError> {
    let Args { command, run } = args;
    match command.unwrap_or_else(|| Command::Run(Box::new(run))) {
        Command::Run(args) => operate(*args).await,
        Command::ReleaseFinalizers(log) => {
            log.init()?;
            release::finalizers(plain(config().await?)?).await.map_err(|e| Box::new(e).into())
        }
        Command::Rights(places) => {
            let missing = gputenancy_rights::print(&plain(config().await?)?, &rights::rights(&places)).await;
            if missing.is_empty() { Ok(()) } else { Err(RunError::Rights(missing.join("\n"))) }
        }
    }
}

async fn config() -> Result<Config, RunError> {
    let mut config = Config::infer().await.map_err(|e| RunError::Config(e.to_string()))?;
    // a refused eviction is an answer (429), not a reason for the client to insist; controllers retry at their own pace
    config.default_retry = false;
    Ok(config)
}

fn plain(config: Config) -> Result<Client, RunError> {
    Client::try_from(config).map_err(|e| RunError::Config(e.to_string()))
}

async fn operate(args: RunArgs) -> Result<(), RunError> {
    let RunArgs { places, identity, lease_duration, listen, concurrency, tenant_standard, gpu_taint_key, log } = args;
    log.init()?;
    let layouts_in = places.layouts().to_owned();
    let (config, refused) = (config().await?, Arc::new(Notify::new()));
    let asking = plain(config.clone())?;
    let client = gputenancy_rights::client(config, refused.clone()).map_err(|e| RunError::Config(e.to_string()))?;
    let metrics = Arc::new(Metrics::default());
    let readiness = Readiness::default();
    readiness.waits_for("anything");
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone())?;
    let served = tokio::spawn(endpoints::serve(
        listen,
        Health { readiness: readiness.clone(), metrics: metrics.clone() },
        stop.clone(),
    ));
    let rights = tokio::spawn(rights::keep(asking, places.clone(), refused, readiness.clone(), metrics.clone()));

    let fleet = Arc::new(Notify::new());
    let (names, mut queue) = mpsc::unbounded_channel();
    let with_slices = tokio::select! {
        known = knows_slices(&client) => known,
        () = stop.cancelled() => return Ok(()),
    };
    let woken = Wakes { fleet: fleet.clone(), tenants: names.clone() };
    let caches = Caches::start(&client, &places, &woken, with_slices);
    let Places { namespace, lease_name, wake_controllers, .. } = places;
    let identity = identity.unwrap_or_else(|| format!("{}-{}", std::process::id(), Timestamp::now()));
    let mut elector = Elector::new(client.clone(), &namespace, &lease_name, identity.clone(), lease_duration);
    tokio::select! {
        () = caches.ready(|what| readiness.waits_for(what)) => readiness.is_ready(),
        () = stop.cancelled() => return Ok(()),
    }
    tracing::info!("the caches are filled; waiting to become leader");
    // who leads looks at all tenants first, so that until then no word about one is worth its room
    let unheard = async { while queue.recv().await.is_some() {} };
    tokio::select! {
        () = elector.acquire() => {}
        () = stop.cancelled() => return Ok(()),
        () = unheard => return Ok(()),
    }
    tracing::info!(identity, "this replica is the leader");
    metrics.leads(true);

    let writer = Writer::new(client.clone(), metrics.clone());
    let publisher = Publisher::new(client, "gputenancy.io/operator", identity);
    let (seen, view) = watch::channel(Arc::new(View::empty()));
    let controller = pool::Controller::new(
        caches.clone(),
        (namespace.clone(), layouts_in),
        gpu_taint_key,
        writer.clone(),
        publisher.clone(),
        metrics.clone(),
        seen,
    );
    fleet.notify_one();
    let mut fleet_task = tokio::spawn(controller.run(fleet, stop.clone()));
    let context = tenant::Context::new(
        elector.term(),
        (tenant::Settings { home: namespace, wake_controllers }, tenant_standard),
        caches.clone(),
        writer,
        publisher,
        view.clone(),
        metrics.clone(),
    );
    let stream = futures::stream::unfold(queue, async |mut queue| Some((queue.recv().await?, queue)));
    let (mut first, ended) = (view.clone(), stop.clone().cancelled_owned());
    let mut tenants_task = tokio::spawn(async move {
        // fails only when the fleet's controller has ended
        if first.wait_for(|v| v.complete).await.is_ok() {
            tenant::run(context, stream.boxed().take_until(ended), concurrency).await;
        }
    });
    let waker = tokio::spawn(on_view(view, caches, names, metrics));

    let release = CancellationToken::new();
    let mut held = std::pin::pin!(elector.hold(release.clone()));
    let outcome = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        outcome = &mut held => outcome.map_err(RunError::from),
        ended = served => ended.unwrap_or(Ok(())).map_err(RunError::from),
        // a leader that does half of its work would keep others from doing all of it
        ended = &mut fleet_task => Err(RunError::ended("the fleet", ended)),
        ended = &mut tenants_task => Err(RunError::ended("tenants", ended)),
    };
    stop.cancel();
    waker.abort();
    rights.abort();
    // without the lease nothing more may be written, so nobody waits for passes to end
    if outcome.is_ok() {
        let tasks = async { drop(tokio::join!(fleet_task, tenants_task)) };
        if tokio::time::timeout(lease_duration / 2, tasks).await.is_ok() {
            // given back only now that nothing here writes any more
            release.cancel();
            held.await?;
        }
    }
    outcome
}

/// Asks until the API server answers: to watch a kind that it does not know would never end well.
async fn knows_slices(client: &Client) -> bool {
    loop {
        match cache::knows_slices(client).await {
            Ok(known) => return known,
            Err(error) => tracing::warn!(%error, "the API server does not say which kinds it knows; asking again"),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// A new view of the fleet wakes the tenants of which it says something else.
async fn on_view(
    mut view: watch::Receiver<Arc<View>>,
    caches: Caches,
    names: mpsc::UnboundedSender<String>,
    metrics: Arc<Metrics>,
) {
    // whatever is there first says something new of everybody
    let mut old = Arc::new(View::empty());
    while view.changed().await.is_ok() {
        let new = view.borrow_and_update().clone();
        let tenants = caches.tenants.demands();
        metrics.tenants(tenants.iter().map(|t| t.ready.as_deref().unwrap_or("New")));
        if new.same_catalog(&old) {
            for tenant in new.concerned(&old, tenants.iter()) {
                drop(names.send(tenant.to_string()));
            }
        } else {
            drop(names.send(EVERYBODY.into()));
        }
        old = new;
    }
}
