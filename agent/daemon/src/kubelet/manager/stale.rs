//! Names of resources that have no device any more: carries out what [`super::super::stale_names`] decides.

use std::{collections::BTreeMap, time::Instant};

use super::{Manager, Observed};
use crate::kubelet::{
    device_list::DeviceLists,
    node::{
        requests::PodRequests,
        stale_names::{Observation, Step},
    },
};

impl Manager<'_> {
    /// Stops the servers of resources without devices, and removes their names from the Node once kubelet has forgotten them.
    pub(super) async fn drop_stale_names(&mut self, observed: &Observed, wanted: &DeviceLists) {
        let none = BTreeMap::new();
        let requested = self.channels.requests.borrow().as_ref().map(PodRequests::total);
        let Step { stop, remove } = self.stale.step(&Observation {
            wanted,
            published: &observed.published,
            zero: observed.node.as_ref().map_or(&none, |node| &node.zero),
            kubelet: observed.listed.as_ref(),
            requested: requested.as_ref(),
            now: Instant::now(),
        });
        for resource in stop {
            self.journal().forget(&resource);
            if let Some(server) = self.servers.remove(&resource) {
                tracing::info!(resource, "stopping the plugin of a resource without devices");
                server.stop.cancel();
                self.stopped.insert(resource, server.ended);
            }
        }
        if remove.is_empty() {
            return;
        }
        // tried again later
        if let Err(error) = self.node.remove(&remove).await {
            tracing::warn!(%error, names = ?remove, "resources without devices not removed from the node");
        }
    }
}
