//! The order in which the device plugin starts.

use std::path::PathBuf;

use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    kubelet::{self, Config},
    metrics::Metrics,
    partition::PartitionState,
    pod_watch::{self, PodIndexes},
    report::gpu_node::Watched,
};

/// The device plugin, with the watch of pods that it needs also while it lowers the node's allocatable.
pub struct DevicePlugin<'a> {
    /// Where the driver was found.
    pub state: watch::Receiver<PartitionState>,
    /// The `GpuNode`, whose first status has the owners that an earlier run reported.
    pub watched: watch::Receiver<Watched>,
    /// What the device plugin exchanges with other tasks.
    pub exchange: kubelet::Channels,
    /// What is known of the pods of this node.
    pub pods: PodIndexes<'a>,
    /// Flags of the device plugin.
    pub config: Config,
    /// The API server.
    pub client: Client,
    /// Metrics.
    pub metrics: Metrics,
    /// The node's boot id.
    pub boot_id: String,
    /// Ends it.
    pub stop: CancellationToken,
}

impl DevicePlugin<'_> {
    /// Serves kubelet until `stop`, once the driver is found and the `GpuNode` is read; then lowers the node's allocatable and returns.
    pub async fn run(mut self) {
        let Some(driver_root) = self.driver_root().await else { return };
        let Self { watched, exchange, pods, config, client, metrics, boot_id, stop, .. } = self;
        let (node, api) = (config.node_name.clone(), client.clone());
        let serving = async {
            let mut watched = watched;
            // nothing is withdrawn, and no allocatable is lowered, before the owners are known that an earlier run has reported
            let known = watched.wait_for(|watched| watched.desired.is_some());
            let Some(Ok(known)) = stop.run_until_cancelled(known).await else { return };
            exchange.warm_up.own_status(known.first_status.as_ref(), &boot_id);
            drop(known);
            kubelet::run(config, driver_root, client, exchange, metrics, stop.clone()).await;
        };
        tokio::select! {
            () = serving => {}
            () = pod_watch::watch(api, &node, pods) => {}
        }
    }

    /// The driver's root on the host, once it is found; `None` after `stop`.
    async fn driver_root(&mut self) -> Option<PathBuf> {
        let found = self.state.wait_for(|state| driver_root(state).is_some());
        let found = self.stop.run_until_cancelled(found).await?.ok()?;
        driver_root(&found)
    }
}

fn driver_root(state: &PartitionState) -> Option<PathBuf> {
    Some(state.inventory.as_ref()?.driver_root.as_ref()?.host.clone())
}
