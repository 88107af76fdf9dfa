//! `/healthz`, `/readyz` and `/metrics`.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::{net::TcpListener, sync::watch};

use crate::{carve::Carved, metrics::Metrics};

/// The slowest pass waits for NVML's deadlines; beyond this the loop is stuck and a restart may help.
const STUCK: Duration = Duration::from_mins(3);

/// When the main loop came round last.
#[derive(Clone)]
pub struct Heartbeat(Arc<Mutex<Instant>>);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Heartbeat {
    /// The loop came round.
    pub fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// What the endpoints tell.
#[derive(Clone)]
pub struct Health {
    /// When the main loop came round last.
    pub heartbeat: Heartbeat,
    /// Where carving stands.
    pub carved: watch::Receiver<Carved>,
    /// Rights that are missing, a line for each.
    pub lacks: watch::Receiver<Option<String>>,
    /// Metrics.
    pub metrics: Metrics,
}

/// Serves for ever.
///
/// # Errors
/// When the address cannot be had.
pub async fn serve(address: SocketAddr, health: Health) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let routes = Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health);
    axum::serve(listener, routes).await
}

async fn alive(State(health): State<Health>) -> (StatusCode, String) {
    let age = health.heartbeat.age();
    if age < STUCK {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("the main loop has not come round for {} s\n", age.as_secs()))
}

async fn ready(State(health): State<Health>) -> (StatusCode, String) {
    let lacks = health.lacks.borrow().clone();
    match lacks.or_else(|| not_ready(&health.carved.borrow())) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Why the agent is not ready, or `None`.
fn not_ready(carved: &Carved) -> Option<String> {
    if let Some(trouble) = &carved.trouble {
        return Some(format!("NVML: {trouble}"));
    }
    let waits = match (&carved.inventory, carved.generation) {
        (None, _) => "NVML has not been asked yet",
        (_, None) => "the GpuNode has not been read yet",
        (Some(_), Some(_)) => return None,
    };
    Some(waits.to_owned())
}

async fn metrics(State(health): State<Health>) -> (StatusCode, String) {
    match health.metrics.text() {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Inventory;

    #[test]
    fn readiness_says_what_is_missing() {
        let mut carved = Carved::default();
        assert_eq!(not_ready(&carved).as_deref(), Some("NVML has not been asked yet"));
        carved.inventory = Some(Inventory::default());
        assert_eq!(not_ready(&carved).as_deref(), Some("the GpuNode has not been read yet"));
        carved.generation = Some(1);
        assert_eq!(not_ready(&carved), None);
    }
}
