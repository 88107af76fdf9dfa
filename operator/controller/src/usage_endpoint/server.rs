//! The endpoint: from a request to the tenant's series.

use std::{
    collections::BTreeSet,
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::Args;
use futures::stream;
use gputenancy_cluster::{agent_metrics, client, service::endpoints};
use kube::{Client, Config, ResourceExt as _, runtime::reflector::ObjectRef};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    access::{self, Refusal, TenantName},
    agents, certificate, listener,
    selection::{Families, Scope},
};
use crate::{cache::Caches, pod_info::requests_gpu, status_metrics};

/// Requests that ask the API server who calls, at once; others wait.
const REVIEWS: usize = 4;
/// Answers that are gathered or sent at once, each of another tenant; others wait. Each holds its text and a few texts of agents.
const ANSWERS: usize = 4;
/// How long a request waits for another one of its tenant, such as that of a second Prometheus, and for those of other tenants.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);
/// Bytes of a piece of an answer.
const PIECE: usize = 64 << 10;

/// Flags of the endpoint.
#[derive(Args, Debug, Clone)]
pub struct UsageArgs {
    /// Address of the HTTPS endpoint by which teams read the metrics of their own tenant, such as 0.0.0.0:8443; without one it is not served.
    #[arg(long, env = "USAGE_LISTEN_ADDRESS")]
    pub usage_listen: Option<SocketAddr>,
    /// Folder with `tls.crt` and `tls.key` of the endpoint, which are read again after a renewal; without one the replica makes a certificate that
    /// clients cannot verify.
    #[arg(long, env = "USAGE_TLS_DIR")]
    pub usage_tls_dir: Option<PathBuf>,
    /// Port of the agents' metrics.
    #[arg(long, env = "AGENT_METRICS_PORT", default_value_t = agent_metrics::PORT)]
    pub agent_metrics_port: u16,
}

/// Why the endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The address cannot be bound.
    #[error("serving usage on {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// Its thread cannot start.
    #[error("starting the thread of the usage endpoint: {0}")]
    Thread(#[from] io::Error),
}

/// The endpoint, bound.
pub struct Server {
    listener: TcpListener,
    folder: Option<PathBuf>,
    names: Vec<String>,
    port: u16,
}

impl Server {
    /// Binds the address; `None`: the flags have none.
    pub fn bind(args: &UsageArgs, namespace: &str) -> Result<Option<Self>, UsageError> {
        let UsageArgs { usage_listen, usage_tls_dir, agent_metrics_port } = args;
        let Some(address) = *usage_listen else { return Ok(None) };
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = bound.map_err(|error| UsageError::Bind { address, error })?;
        let names = vec![format!("gputenancy-usage.{namespace}.svc"), format!("gputenancy-usage.{namespace}")];
        Ok(Some(Self { listener, folder: usage_tls_dir.clone(), names, port: *agent_metrics_port }))
    }

    /// Serves until `stop` is cancelled, on a thread of its own: what teams ask for does not delay controllers, the lease and probes.
    pub fn start(self, config: Config, caches: Caches, stop: CancellationToken) -> Result<(), UsageError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("usage".to_owned());
        thread.spawn(move || runtime.block_on(self.serve(config, caches, stop)))?;
        Ok(())
    }

    async fn serve(self, config: Config, caches: Caches, stop: CancellationToken) {
        let Self { listener, folder, names, port } = self;
        let started = client::named(config, "").map_err(|error| error.to_string()).and_then(|client| {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
            Ok((client, listener))
        });
        let (client, listener) = match started {
            Ok(started) => started,
            Err(error) => return tracing::error!(error, "the usage endpoint is not served"),
        };
        // a missing or wrong certificate stops this endpoint alone
        let acceptor = tokio::select! {
            acceptor = certificate::acceptor(folder, names) => acceptor,
            () = stop.cancelled() => return,
        };
        let endpoint = Endpoint { client, caches, port, reviews: Semaphore::new(REVIEWS), turns: Turns::new() };
        let router = Router::new().route("/tenants/{tenant}/metrics", get(metrics)).with_state(Arc::new(endpoint));
        listener::serve(listener, acceptor, router, stop).await;
    }
}

struct Endpoint {
    client: Client,
    caches: Caches,
    port: u16,
    reviews: Semaphore,
    turns: Turns,
}

/// Bounds the answers: one at a time for each tenant, and a few in all.
struct Turns {
    answers: Arc<Semaphore>,
    /// Tenants with an answer in progress.
    busy: Arc<Mutex<BTreeSet<String>>>,
}

/// A tenant with an answer in progress, until this is dropped.
struct Busy {
    all: Arc<Mutex<BTreeSet<String>>>,
    tenant: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tenant);
    }
}

/// The turn of a tenant, until its answer has been sent.
struct Turn {
    _busy: Busy,
    _answer: Option<OwnedSemaphorePermit>,
}

async fn metrics(
    State(endpoint): State<Arc<Endpoint>>,
    TenantName(tenant): TenantName,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let token = access::token(&headers)?;
    access::review(&endpoint.client, &endpoint.reviews, token, &tenant).await?;
    let turn = endpoint.turns.take(tenant.as_str()).await?;
    let text = endpoint.text(tenant.as_str()).await?;
    Ok(([(CONTENT_TYPE, endpoints::OPENMETRICS)], pieces(text.into(), turn)).into_response())
}

/// The answer in pieces; the turn ends with the last one, so that slow readers do not add up.
fn pieces(text: Bytes, turn: Turn) -> Body {
    let next = |(mut rest, turn): (Bytes, Turn)| async move {
        let piece = rest.split_to(PIECE.min(rest.len()));
        (!piece.is_empty()).then_some((Ok::<_, io::Error>(piece), (rest, turn)))
    };
    Body::from_stream(stream::unfold((text, turn), next))
}

impl Turns {
    fn new() -> Self {
        Self { answers: Arc::new(Semaphore::new(ANSWERS)), busy: Arc::default() }
    }

    /// Waits for the turn of a tenant.
    async fn take(&self, tenant: &str) -> Result<Turn, Refusal> {
        let deadline = Instant::now() + LONGEST_WAIT;
        while !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant.to_owned()) {
            if Instant::now() > deadline {
                return Err(Refusal::Busy);
            }
            sleep(POLL).await;
        }
        let busy = Busy { all: self.busy.clone(), tenant: tenant.to_owned() };
        let answer = timeout_at(deadline, self.answers.clone().acquire_owned()).await.map_err(|_| Refusal::Full)?;
        Ok(Turn { _busy: busy, _answer: answer.ok() })
    }
}

impl Endpoint {
    /// The tenant's series, of its pods' nodes and of its own status.
    async fn text(&self, tenant: &str) -> Result<String, Refusal> {
        let Self { caches, port, .. } = self;
        let object = caches.tenants.get(&ObjectRef::new(tenant));
        let object = object.ok_or_else(|| Refusal::NoTenant(tenant.to_owned()))?;
        let namespaces = caches.namespaces_of(&object.name_any());
        let pods = namespaces.iter().flat_map(|namespace| caches.pods.in_namespace(namespace));
        let nodes = pods.filter(|pod| requests_gpu(pod)).filter_map(|pod| pod.spec.node_name.clone()).collect();
        let mut families = Families::default();
        let scope = Scope { tenant, namespaces: &namespaces };
        agents::add(&mut families, caches, nodes, *port, scope).await?;
        families.add_own(&status_metrics::of_tenant(object));
        Ok(families.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turn_of_a_tenant_ends_when_its_answer_is_read_or_dropped() {
        let busy: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let turn = || {
            busy.lock().unwrap().insert("a".into());
            Turn { _busy: Busy { all: busy.clone(), tenant: "a".into() }, _answer: None }
        };
        let text = "x".repeat(PIECE + 1);
        let body = pieces(text.clone().into(), turn());
        assert!(busy.lock().unwrap().contains("a"));
        assert_eq!(axum::body::to_bytes(body, usize::MAX).await.unwrap(), text);
        assert!(busy.lock().unwrap().is_empty());
        drop(pieces(text.into(), turn()));
        assert!(busy.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_waits_too_long_for_other_answers_is_refused() {
        let turns = Turns::new();
        let mut taken = Vec::new();
        for tenant in ["a", "b", "c", "d"] {
            taken.push(turns.take(tenant).await.unwrap());
        }
        assert_eq!(taken.len(), ANSWERS);
        let began = Instant::now();
        assert!(matches!(turns.take("a").await, Err(Refusal::Busy)));
        assert!(matches!(turns.take("e").await, Err(Refusal::Full)));
        assert!(began.elapsed() < 2 * LONGEST_WAIT + 4 * POLL);
        assert!(!turns.busy.lock().unwrap().contains("e"), "a refused request ends its turn");
        drop(taken.pop());
        assert!(turns.take("e").await.is_ok());
    }
}
