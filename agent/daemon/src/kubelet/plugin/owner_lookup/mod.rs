//! Owners of devices, queried from kubelet at each allocation.
//!
//! kubelet may allocate a device that a container has: a query of the pod resources API during an allocation, as this agent and metrics
//! exporters send it, may make kubelet drop that allocation (kubernetes/kubernetes#137534, observed with 1.36). So a device with an owner
//! is neither preferred nor allocated again. kubelet is queried each time, because the journal may be older than kubelet's last restart;
//! what it has forgotten since stays with pods that run.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use gputenancy_crds::{backoff::Backoff, names::is_device_resource};
use tokio::sync::watch;
use tonic::Status;

use super::journal::AllocationJournal;
use crate::{
    device::{DeviceId, Owners},
    grpc::pod_resources::PodResources,
    kubelet::{config::Config, node::requests::PodRequests},
    refusal::Refusal,
    warm_up::WarmUp,
};

/// Attempts before kubelet counts as not answering.
const ATTEMPTS: u32 = 6;
/// Delays between attempts: of all clients together kubelet answers ten queries at once, and then one each 10 ms.
const RETRY: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(160));

/// Looks up owners in kubelet, and in the journal if kubelet does not answer.
#[derive(Debug, Clone)]
pub struct OwnerLookup {
    /// Allocations of this agent.
    pub journal: Arc<AllocationJournal>,
    /// Kubelet's API.
    pub pod_resources: PodResources,
    /// Requests of the node's pods; none without the right to read pods.
    pub requests: watch::Receiver<Option<PodRequests>>,
    /// Which of kubelet's answers are believed.
    pub warm_up: WarmUp,
}

impl OwnerLookup {
    /// A lookup with an empty journal.
    pub fn new(config: &Config, requests: watch::Receiver<Option<PodRequests>>, warm_up: WarmUp) -> Self {
        let pod_resources = PodResources::at(&config.pod_resources_socket());
        Self { journal: Arc::default(), pod_resources, requests, warm_up }
    }

    /// The devices that containers have; of `ids` those in the journal if kubelet does not answer.
    pub fn allocated(&self, ids: &[DeviceId], owners: Option<&Owners>) -> BTreeSet<DeviceId> {
        owners.map_or_else(|| self.journal.allocated(ids), |owners| owners.keys().cloned().collect())
    }

    /// Checks that no container has one of these devices, and returns all owners; `None` if kubelet does not answer.
    ///
    /// # Errors
    /// When a container has one, or when the journal has one and kubelet does not answer.
    pub async fn check_free(&self, ids: &[DeviceId]) -> Result<Option<Owners>, Refusal> {
        let mut attempt = 1;
        loop {
            match self.owners().await {
                Ok(owners) => return without_owner(ids, &owners).map(|()| Some(owners)),
                Err(_) if attempt < ATTEMPTS => {}
                Err(status) => {
                    let allocated = self.journal.allocated(ids).pop_first();
                    return allocated.map_or(Ok(None), |id| Err(Refusal::Unknown(id, status.message().to_owned())));
                }
            }
            tokio::time::sleep(RETRY.after(attempt)).await;
            attempt += 1;
        }
    }

    /// The owner of each device, as kubelet reports it, and of devices that it has forgotten while their pods run.
    pub async fn owners(&self) -> Result<Owners, Status> {
        let answer = self.pod_resources.owners(is_device_resource).await?;
        let all = self.warm_up.owners(answer, self.requests.borrow().as_ref(), Instant::now());
        Ok(self.journal.resolve_legacy_ids(all))
    }
}

/// No container has one of these devices.
pub(in crate::kubelet) fn without_owner(ids: &[DeviceId], owners: &Owners) -> Result<(), Refusal> {
    match ids.iter().find_map(|id| owners.get_key_value(id)) {
        Some((id, owner)) => Err(Refusal::Held { id: id.clone(), owner: owner.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
