//! The chart as helm renders it without a cluster, and the pages of rights and values.

pub(crate) mod chart;
mod chart_names;
mod chart_options;
mod monitoring;
mod queues;
mod rights_page;
mod usage_endpoint;
mod values_page;
mod wrong_values;

use std::{fs, path::Path};

use serde_json::Value;

/// Values that render each workload.
const WORKLOADS: [&str; 5] = [
    "simulator.enabled=true",
    "simulator.nodeSelector.lab=yes",
    "virtualClusters.enabled=true",
    "usageEndpoint.enabled=true",
    "serviceMonitor.enabled=true",
];

/// The objects of rendered templates.
fn objects(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    all.into_iter().filter(Value::is_object).collect()
}

/// Fails unless the generated page has this text; writes it with `INSTA_UPDATE=always`.
fn assert_current(path: &Path, text: &str) {
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(path, text).unwrap();
    }
    let page = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(page, text, "{} is stale: run this test with INSTA_UPDATE=always", path.display());
}
