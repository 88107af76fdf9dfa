//! Requests that change objects, as the API server counts them.

use std::collections::BTreeMap;

use crate::{Result, World};

/// Counts of requests that change objects, by the labels of the API server's metric.
pub async fn writes(world: &World) -> Result<BTreeMap<String, f64>> {
    let text = world.kubectl(&["get", "--raw", "/metrics"]).await?;
    let ours = |line: &str| {
        line.starts_with("apiserver_request_total{")
            && ["POST", "PUT", "PATCH", "APPLY", "DELETE"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
            // heartbeats and access reviews
            && !line.contains("resource=\"leases\"")
            && !line.contains("resource=\"tokenreviews\"")
            && !line.contains("resource=\"subjectaccessreviews\"")
            // kubelets renew tokens of pods; Kubernetes repeats events of deleted namespaces, answered by 404
            && !line.contains("subresource=\"token\"")
            && !line.contains("code=\"404\"")
    };
    let lines = text.lines().filter(|line| ours(line)).filter_map(|line| {
        let (key, value) = line.rsplit_once(' ')?;
        Some((key.to_owned(), value.parse().ok()?))
    });
    Ok(lines.collect())
}
