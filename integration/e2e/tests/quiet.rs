//! At rest nothing of ours writes to the API server, by its own count.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics says what it found"
)]

use std::{collections::BTreeMap, time::Duration};

use e2e::{Result, World, objects::ensure, story};

/// Requests that change objects, by user agent class: from the API server's own metrics, per verb and resource of ours.
async fn writes(world: &World) -> Result<BTreeMap<String, f64>> {
    let text = world.kubectl(&["get", "--raw", "/metrics"]).await?;
    let ours = |line: &str| {
        line.starts_with("apiserver_request_total{")
            && ["POST", "PUT", "PATCH", "APPLY", "DELETE"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
            // leases are heartbeats, events of kubelet and its own node status are kubelet's
            && !line.contains("resource=\"leases\"")
            && !line.contains("resource=\"tokenreviews\"")
            && !line.contains("resource=\"subjectaccessreviews\"")
    };
    let lines = text.lines().filter(|line| ours(line)).filter_map(|line| {
        let (key, value) = line.rsplit_once(' ')?;
        Some((key.to_owned(), value.parse().ok()?))
    });
    Ok(lines.collect())
}

#[tokio::test]
async fn two_minutes_at_rest_without_a_write() {
    let world = World::enter().await.unwrap();
    let body = async {
        story::onboard(&world).await?;
        story::start_pods(&world).await?;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let before = writes(&world).await?;
        tokio::time::sleep(Duration::from_mins(2)).await;
        let after = writes(&world).await?;
        let grown: Vec<String> = after
            .iter()
            .filter(|(key, count)| **count > before.get(*key).copied().unwrap_or(0.0))
            // kubelet writes its node's status every five minutes or on change; nobody else may write here
            .filter(|(key, _)| !(key.contains("resource=\"nodes\"") && key.contains("subresource=\"status\"")))
            .map(|(key, count)| format!("{key} {} -> {count}", before.get(key).copied().unwrap_or(0.0)))
            .collect();
        ensure(grown.is_empty(), format!("writes at rest: {}", grown.join("; ")))?;
        // node status has two possible writers: our field manager's last write must be older than the pause
        ensure(!before.is_empty(), "the API server counts writes")
    };
    world.keeping_evidence("quiet", body).await;
}
