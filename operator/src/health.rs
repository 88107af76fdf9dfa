//! `/healthz`, `/readyz` and `/metrics`.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// What readiness waits for; empty once every cache is filled and no right is missing. Liveness does not depend on it: a missing
/// CRD or right is not cured by a restart.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<Waits>>);

#[derive(Default)]
struct Waits {
    list: Option<String>,
    rights: Option<String>,
}

impl Readiness {
    /// Not ready, and what for.
    pub fn waits_for(&self, what: &str) {
        self.waits().list = Some(what.into());
    }

    /// Every list is there.
    pub fn is_ready(&self) {
        self.waits().list = None;
    }

    /// Rights that are missing, a line for each.
    pub fn lacks(&self, rights: Option<String>) {
        self.waits().rights = rights;
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self) -> (StatusCode, String) {
        match &*self.waits() {
            Waits { rights: Some(rights), .. } => (StatusCode::SERVICE_UNAVAILABLE, format!("{rights}\n")),
            Waits { list: Some(what), .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for the first list of {what}\n"))
            }
            Waits { list: None, rights: None } => (StatusCode::OK, "ready\n".into()),
        }
    }
}

/// Serves until told to stop.
pub async fn serve(
    listen: SocketAddr,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(async |State(readiness): State<Readiness>| readiness.answer()))
        .with_state(readiness)
        .route("/metrics", get(async |State(metrics): State<Arc<Metrics>>| metrics.render()))
        .with_state(metrics);
    let listener = TcpListener::bind(listen).await?;
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_names_what_it_waits_for() {
        let readiness = Readiness::default();
        readiness.waits_for("gputenants");
        assert_eq!(readiness.answer().1, "waiting for the first list of gputenants\n");
        readiness.is_ready();
        assert_eq!(readiness.answer().0, StatusCode::OK);
        readiness.lacks(Some("may not watch nodes".into()));
        assert_eq!(readiness.answer(), (StatusCode::SERVICE_UNAVAILABLE, "may not watch nodes\n".into()));
        readiness.lacks(None);
        assert_eq!(readiness.answer().0, StatusCode::OK);
    }
}
