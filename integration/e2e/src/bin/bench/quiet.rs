//! Writes at rest over ten minutes, from the API server's metrics.

use std::time::Duration;

use e2e::{Error, Result, World, scenario};

use super::{many::become_ready, writes::Writes};

/// Pause until new objects have converged.
const SETTLE: Duration = Duration::from_mins(1);
const QUIET: Duration = Duration::from_mins(10);

/// Counts requests that write, with the demo's tenants and pods and `more` tenants.
///
/// # Errors
/// When there was any write but leases and kubelets' status updates.
pub async fn measure(world: &World, more: usize) -> Result<()> {
    scenario::onboard(world).await?;
    scenario::start_pods(world).await?;
    if more > 0 {
        become_ready(world, "quiet-", more).await?;
    }
    tokio::time::sleep(SETTLE).await;
    let before = Writes::of(world).await?;
    tokio::time::sleep(QUIET).await;
    let written = Writes::of(world).await?.since(&before, 1);
    let what = format!("{} tenants, four pods, {} minutes", more + 2, QUIET.as_secs() / 60);
    if written.sum() > 0.0 {
        return Err(Error::Wrong(format!("quiet: {what}: writes at rest: {written}")));
    }
    println!("quiet: {what}: only heartbeats: {}", written.heartbeats());
    Ok(())
}
