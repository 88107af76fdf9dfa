//! The wiring: client, watches of the tenants and of their namespaces, controller, servers, shutdown.

use std::{convert::Infallible, fmt::Display, sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc};
use gputenancy_cluster::{
    client,
    error::sentence,
    events::Publisher,
    service::{
        endpoints::{self, Probes},
        logging, shutdown,
    },
};
use gputenancy_crds::{GpuTenant, metadata::Unmanaged};
use kube::{
    Api, Config, ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::ObjectRef,
        watcher,
    },
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::{args::Args, context::Context, metrics::Metrics, reconcile::reconcile};

/// Interval after a failed reconcile.
const RETRY: Duration = Duration::from_secs(5);

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
    /// Signals cannot be caught.
    #[error(transparent)]
    Signal(#[from] shutdown::Error),
    /// The controller ended, which is a bug.
    #[error("the controller ended")]
    Ended,
}

/// What the endpoints report.
struct Health(Arc<Metrics>);

impl Probes for Health {
    fn ready(&self) -> Result<(), impl Display> {
        Ok::<(), Infallible>(())
    }

    fn registry(&self) -> &Registry {
        self.0.registry()
    }
}

/// Runs until a signal or an error. One replica is enough: a second one would apply the same objects.
pub async fn run(args: Args) -> Result<(), RunError> {
    let Args { charts, values, standard, helm, concurrency, listen, identity, log } = args;
    log.init()?;
    if let Err(error) = raise_open_files() {
        tracing::warn!(%error, "the limit of open files stays as it is: with many virtual clusters connections fail");
    }
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone())?;
    let mut config = Config::infer().await.map_err(|e| RunError::Config(e.to_string()))?;
    config.default_retry = false;
    let client = client::named(config, "").map_err(|e| RunError::Config(sentence(&e)))?;
    let metrics = Arc::new(Metrics::default());
    let served = tokio::spawn(endpoints::serve(listen, Health(metrics.clone()), stop.clone()));
    let publisher = Publisher::new(client.clone(), "gputenancy.io/virtual-clusters", identity);
    let (triggers, triggered) = mpsc::unbounded();
    let context =
        Arc::new(Context::new(client.clone(), publisher, (charts, values), standard, helm, metrics, triggers));
    let known = context.clone();
    // a tenant that cannot be read must not end the watch of the others
    let tenants = Api::<Unmanaged<DeserializeGuard<GpuTenant>>>::all(client);
    let controller = Controller::new(tenants, watcher::Config::default().streaming_lists())
        .with_config(kube::runtime::controller::Config::default().concurrency(concurrency))
        .reconcile_on(triggered.map(|tenant| ObjectRef::new(&tenant)))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(one, on_error, context)
        .for_each(move |outcome| {
            // without its finalizer a tenant can be gone before a reconcile sees its deletion
            if let Err(controller::Error::ObjectNotFound(tenant)) = outcome {
                known.forget(&tenant.name);
            }
            std::future::ready(())
        });
    tokio::select! {
        () = controller => {}
        answer = served => if let Ok(Err(error)) = answer { return Err(error.into()) },
    }
    if stop.is_cancelled() { Ok(()) } else { Err(RunError::Ended) }
}

/// Each watch is a connection, and a virtual cluster has a dozen: the usual limit of 1024 is that of some eighty.
fn raise_open_files() -> nix::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
}

async fn one(guarded: Arc<Unmanaged<DeserializeGuard<GpuTenant>>>, context: Arc<Context>) -> kube::Result<Action> {
    let Unmanaged(guarded) = guarded.as_ref();
    let after = match &guarded.0 {
        Ok(tenant) => reconcile(tenant, &context).await?,
        Err(unreadable) => {
            let (tenant, error) = (unreadable.metadata.name.as_deref().unwrap_or_default(), &unreadable.error);
            tracing::warn!(
                tenant,
                error,
                remedy = "correct the field that the error names, or update the controller with the CRDs",
                "GpuTenant cannot be read and is ignored"
            );
            None
        }
    };
    Ok(after.map_or_else(Action::await_change, Action::requeue))
}

#[allow(clippy::needless_pass_by_value, reason = "kube's Controller passes it so")]
fn on_error(tenant: Arc<Unmanaged<DeserializeGuard<GpuTenant>>>, error: &kube::Error, _: Arc<Context>) -> Action {
    // another write came first: the watch delivers it
    let conflict = matches!(error, kube::Error::Api(status) if status.is_conflict());
    if !conflict {
        tracing::warn!(tenant = tenant.name_any(), error = sentence(error), "virtual cluster not reconciled, retrying");
    }
    Action::requeue(RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_limited_by_the_hard_limit_alone() {
        raise_open_files().unwrap();
        let (limit, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(limit, most);
    }
}
