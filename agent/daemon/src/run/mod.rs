//! The agent as a program. [`tasks`] is the table of its tasks; [`context`] has what they share, [`channels`] what they exchange.

mod channels;
mod context;
mod device_plugin;
mod partitioning;
mod tasks;

use std::time::Duration;

use futures::future::{FusedFuture, FutureExt};
use gputenancy_cluster::service::{endpoints, shutdown};
use kube::Client;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::{context::Context, tasks::Tasks};
use crate::{args::Args, host_folders, report::node_condition::DevicesReady, rights};

/// Limit for the device plugin's shutdown, which lowers the node's allocatable; the plugin's own limit is shorter.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(24);

/// Why the agent cannot run.
pub type Error = Box<dyn std::error::Error>;

/// Prints which rights the agent needs; fails if any is missing.
pub async fn rights() -> Result<(), Error> {
    let missing = gputenancy_cluster::rights::print(&Client::try_default().await?, &rights::rights()).await;
    if missing.is_empty() { Ok(()) } else { Err(missing.join("\n").into()) }
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(args: Args) -> Result<(), Error> {
    args.log.init()?;
    let context = Context::new(args).await?;
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone())?;
    let Context { channels, args, .. } = &context;
    let folders = args.plugin.host_folders();
    let mut tasks = Tasks::of(&context);
    let mut reporter = tasks::reporter(&context);
    let mut condition = DevicesReady::new(context.client.clone(), &args.plugin.node_name);
    let mut plugin = std::pin::pin!(tasks::device_plugin(&context, stop.clone()).run().fuse());
    let mut outcome = Ok(());
    tokio::select! {
        task = tasks.ended() => tracing::error!(task, "task ended, shutting down"),
        () = reporter.run() => {}
        () = condition.run(channels.watched.subscribe(), channels.state.subscribe(), channels.view.subscribe()) => {}
        served = endpoints::serve(args.http, tasks::health(&context), stop.clone()) => served?,
        () = &mut plugin => {}
        reason = host_folders::replaced(&folders, &args.plugin.host_root) => {
            // also before the devices are withdrawn, which takes seconds
            tracing::error!(reason, "shutting down");
            outcome = Err(reason.into());
        }
        () = stop.cancelled() => {}
    }
    // no operation is executed any more, so kubelet's last device list stays correct
    drop(tasks);
    stop.cancel();
    if !plugin.is_terminated() && timeout(SHUTDOWN_LIMIT, plugin).await.is_err() {
        tracing::warn!("device plugin did not stop in time");
    }
    // last: the plugin lowers the node's allocatable, which is more urgent
    tokio::join!(reporter.stopped(), condition.remove());
    outcome
}
