//! Which writes happen while nothing is to be done: ten minutes, by the API server's own count.

use std::time::Duration;

use e2e::{Error, Result, World, story};

use super::{many::become_ready, writes::Writes};

/// Until what has just been made has come to rest.
const SETTLE: Duration = Duration::from_mins(1);
const QUIET: Duration = Duration::from_mins(10);

/// Counts every request that writes, with the demo's tenants and pods present, and so many tenants more.
///
/// # Errors
/// When anything but heartbeats was written: leases, and what kubelets say of their nodes and pods.
pub async fn measure(world: &World, more: usize) -> Result<()> {
    story::onboard(world).await?;
    story::start_pods(world).await?;
    if more > 0 {
        become_ready(world, "quiet-", more).await?;
    }
    tokio::time::sleep(SETTLE).await;
    let before = Writes::of(world).await?;
    tokio::time::sleep(QUIET).await;
    let written = Writes::of(world).await?.since(&before, 1);
    let what = format!("{} tenants, four pods, {} minutes", more + 2, QUIET.as_secs() / 60);
    if written.sum() > 0.0 {
        return Err(Error::Wrong(format!("quiet: {what}: at rest was written: {written}")));
    }
    println!("quiet: {what}: nothing written but heartbeats: {}", written.heartbeats());
    Ok(())
}
