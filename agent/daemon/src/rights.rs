//! Checks the rights of the agent.

use std::sync::Arc;

use gputenancy_cluster::rights::Report;
pub use gputenancy_cluster::rights::agent::rights;
use kube::Client;
use tokio::sync::{Notify, watch};

use crate::metrics::Metrics;

/// Checks at the start, after refusals and while a right is missing; sets readiness (`lacks`) and metrics.
pub async fn keep(client: Client, refused: Arc<Notify>, lacks: watch::Sender<Option<String>>, metrics: Metrics) {
    let report = |report: &Report| {
        lacks.send_replace(report.blocking());
        metrics.missing_rights(&report.missing);
    };
    gputenancy_cluster::rights::monitor(client, rights(), refused, report).await;
}
