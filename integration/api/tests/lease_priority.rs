//! The operator's lease is renewed with the API server's priority of leader election.

use e2e::{
    Result, World,
    wait::{PATIENCE, eventually},
};

/// Counts requests by the `FlowSchema` that they matched.
const DISPATCHED: &str = "apiserver_flowcontrol_dispatched_requests_total{";

#[tokio::test]
async fn lease_renewals_have_the_priority_of_leader_election() {
    let world = World::enter_api().await.unwrap();
    let body = renewals(&world).await;
    world.keeping_evidence("lease-priority", async { body }).await;
}

async fn renewals(world: &World) -> Result<()> {
    eventually("renewals at the priority level leader-election", PATIENCE, || async {
        let text = world.lab.apiserver_metrics().await?;
        let labels = ["flow_schema=\"gputenancy-leases\"", "priority_level=\"leader-election\""];
        let found = text.lines().find(|l| l.starts_with(DISPATCHED) && labels.iter().all(|label| l.contains(label)));
        let count: f64 = found.and_then(|l| l.rsplit_once(' ')?.1.parse().ok()).unwrap_or_default();
        Ok(if count >= 2.0 { Ok(()) } else { Err(format!("{count} requests")) })
    })
    .await
}
