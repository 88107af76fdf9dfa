//! Observes the operator from outside: its health endpoint and its lease.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use e2e::product;
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client};
use tokio::task::JoinSet;

use super::operator::{ACCOUNT, IDENTITY, get};

/// Pause between two requests of the health endpoint.
const PROBE: Duration = Duration::from_millis(100);
/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two reads of the lease.
const LOOK: Duration = Duration::from_millis(500);

/// What was observed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Longest time in which the health endpoint did not answer.
    pub silent: Duration,
    /// Highest age of the lease's last renewal.
    pub lease_age: Duration,
    /// Another holder, none, or a renewal older than the lease's duration was read.
    pub lost: bool,
}

/// Tasks that observe an operator until this is dropped.
pub struct Watchers {
    _tasks: JoinSet<()>,
    observed: Arc<Mutex<Observed>>,
}

impl Watchers {
    /// Starts the tasks; the operator leads already.
    pub fn start(client: &Client, address: SocketAddr) -> Self {
        let observed = Arc::new(Mutex::new(Observed::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(health(address, Arc::clone(&observed)));
        tasks.spawn(lease(client.clone(), Arc::clone(&observed)));
        Self { _tasks: tasks, observed }
    }

    /// What was observed until now.
    pub fn observed(&self) -> Observed {
        *self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn update(observed: &Mutex<Observed>, change: impl FnOnce(&mut Observed)) {
    change(&mut observed.lock().unwrap_or_else(PoisonError::into_inner));
}

async fn health(address: SocketAddr, observed: Arc<Mutex<Observed>>) {
    let mut since = Instant::now();
    loop {
        let answered = tokio::time::timeout(TIMEOUT, get(address, "/healthz")).await;
        // counted before the answer, so that an endpoint that never answers again shows
        let silent = since.elapsed();
        update(&observed, |all| all.silent = all.silent.max(silent));
        tokio::time::sleep(PROBE).await;
        match answered {
            Ok(Ok(_)) => since = Instant::now(),
            Ok(Err(error)) => eprintln!("fleet: no answer about health: {error}"),
            Err(_) => eprintln!("fleet: no answer about health in {} s", TIMEOUT.as_secs()),
        }
    }
}

async fn lease(client: Client, observed: Arc<Mutex<Observed>>) {
    let api = Api::<Lease>::namespaced(client, product::NAMESPACE);
    loop {
        if let Ok(Some(lease)) = api.get_opt(ACCOUNT).await {
            let spec = lease.spec.unwrap_or_default();
            let age = spec.renew_time.map(|at| Duration::try_from(Timestamp::now().duration_since(at.0)));
            let age = age.and_then(Result::ok).unwrap_or_default();
            let longest = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
            let held = spec.holder_identity.as_deref() == Some(IDENTITY);
            update(&observed, |all| {
                all.lease_age = all.lease_age.max(age);
                all.lost |= !held || longest.is_none_or(|longest| age > longest);
            });
        }
        tokio::time::sleep(LOOK).await;
    }
}
