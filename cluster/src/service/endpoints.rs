//! `/healthz`, `/readyz` and `/metrics`.

use std::{
    convert::Infallible,
    fmt::{self, Display},
    io,
    net::SocketAddr,
    sync::Arc,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{
    encoding::text::{encode, encode_eof, encode_registry},
    registry::Registry,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::process;

/// Content type of the metrics.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The state of a program that its endpoints report.
pub trait Probes: Send + Sync + 'static {
    /// Liveness; the error says why a restart may help.
    fn alive(&self) -> Result<(), impl Display> {
        Ok::<(), Infallible>(())
    }

    /// Readiness; the error says what is missing.
    fn ready(&self) -> Result<(), impl Display>;

    /// The metrics.
    fn registry(&self) -> &Registry;
}

/// The endpoints cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("serving health and metrics on {address}: {error}")]
pub struct Error {
    address: SocketAddr,
    error: io::Error,
}

/// Serves the endpoints until `stop` is cancelled.
pub async fn serve(address: SocketAddr, probes: impl Probes, stop: CancellationToken) -> Result<(), Error> {
    let failed = |error| Error { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    axum::serve(listener, router(probes)).with_graceful_shutdown(stop.cancelled_owned()).await.map_err(failed)
}

/// All metrics in the `OpenMetrics` text format.
pub fn text(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(text)
}

fn router<P: Probes>(probes: P) -> Router {
    Router::new()
        .route("/healthz", get(async |State(probes): State<Arc<P>>| status(probes.alive())))
        .route("/readyz", get(async |State(probes): State<Arc<P>>| status(probes.ready())))
        .route("/metrics", get(async |State(probes): State<Arc<P>>| metrics(probes.registry())))
        .with_state(Arc::new(probes))
}

fn status(outcome: Result<(), impl Display>) -> (StatusCode, String) {
    match outcome {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// The program's metrics, and those of its process.
fn all(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode_registry(&mut text, registry)?;
    encode_registry(&mut text, &process::registry())?;
    encode_eof(&mut text)?;
    Ok(text)
}

fn metrics(registry: &Registry) -> Response {
    match all(registry) {
        Ok(text) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt as _;

    use super::*;

    struct Waiting(Registry);

    impl Probes for Waiting {
        fn ready(&self) -> Result<(), impl Display> {
            Err("waiting for the first list of gputenants")
        }

        fn registry(&self) -> &Registry {
            &self.0
        }
    }

    async fn request(path: &str) -> (StatusCode, String, String) {
        let mut registry = Registry::default();
        registry.register("writes", "Writes", Counter::<u64>::default());
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router(Waiting(registry)).oneshot(request).await.unwrap();
        let content_type = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let status = response.status();
        let body = to_bytes(response.into_body(), 4096).await.unwrap();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn metrics_have_the_content_type_of_openmetrics() {
        let (status, content_type, body) = request("/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        assert!(body.starts_with("# HELP writes Writes.\n# TYPE writes counter\nwrites_total 0\n"), "{body}");
        assert!(body.contains("\nprocess_cpu_seconds_total ") && body.ends_with("\n# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn readiness_names_what_is_missing_and_liveness_does_not_depend_on_it() {
        let (status, _, body) = request("/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body, "waiting for the first list of gputenants\n");
        assert_eq!(request("/healthz").await.0, StatusCode::OK);
    }
}
