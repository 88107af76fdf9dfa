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
    // of earlier tests of this lab
    let before = dispatched(world).await?;
    eventually("two more renewals at the priority level leader-election", PATIENCE, || async {
        let more = dispatched(world).await? - before;
        Ok(if more >= 2.0 { Ok(()) } else { Err(format!("{more} requests")) })
    })
    .await
}

/// Requests of the operator's `FlowSchema` at this priority since the API server started.
async fn dispatched(world: &World) -> Result<f64> {
    let text = world.lab.apiserver_metrics().await?;
    let labels = ["flow_schema=\"gputenancy-leases\"", "priority_level=\"leader-election\""];
    let found = text.lines().find(|l| l.starts_with(DISPATCHED) && labels.iter().all(|label| l.contains(label)));
    Ok(found.and_then(|l| l.rsplit_once(' ')?.1.parse().ok()).unwrap_or_default())
}
