//! Checks the rights of the operator.

use std::sync::Arc;

pub use gputenancy_cluster::rights::operator::rights;
use gputenancy_cluster::rights::{Report, operator::Locations};
use kube::Client;
use tokio::sync::Notify;

use crate::{health::Readiness, metrics::Metrics};

/// Checks the rights at the start, after refusals and while one is missing; updates readiness and metrics.
pub async fn keep(
    client: Client,
    locations: Locations,
    refused: Arc<Notify>,
    readiness: Readiness,
    metrics: Arc<Metrics>,
) {
    let update = |report: &Report| {
        readiness.lacks(report.blocking());
        metrics.missing_rights(&report.missing);
    };
    gputenancy_cluster::rights::monitor(client, rights(&locations), refused, update).await;
}
