//! `/healthz`, `/readyz` and `/metrics`.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// What readiness waits for; empty once every cache is filled. Liveness does not depend on it: a missing CRD is not cured
/// by a restart.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<Option<String>>>);

impl Readiness {
    /// Not ready, and what for.
    pub fn waits_for(&self, what: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.into());
    }

    /// Ready.
    pub fn is_ready(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn answer(&self) -> (StatusCode, String) {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => (StatusCode::OK, "ready\n".into()),
            Some(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for the first list of {what}\n")),
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
    }
}
