//! The check of devices before kubelet gets a preference, and before it gets devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use tokio::time::sleep;

use super::{
    Plugin,
    preferred::{self, Candidate},
};
use crate::{
    device::{Device, DeviceId},
    gpu::{Connections, NvmlError},
    handover::{
        HandoverCheck,
        check::{ATTEMPTS, BUSY_LIMIT, RETRY, free},
    },
    mps,
    refusal::Refusal,
};

impl Plugin {
    /// The devices that kubelet can choose from, and how their GPUs are connected. If NVML does not answer none counts as occupied, and
    /// `Allocate` refuses.
    pub(super) async fn candidates(&self, available: &[DeviceId]) -> (Vec<Candidate>, Arc<Connections>) {
        let journal = &self.lookup.journal;
        let _request = journal.request(available);
        let devices = self.checked_devices(available);
        let shares_of_mps =
            available.iter().filter_map(|id| devices.get(id)).any(|d| mps::share::mps_share(d).is_some());
        let begun = Instant::now();
        // the choice of an MPS share depends on the owners of the others
        if !shares_of_mps && let Some(connections) = journal.known_free(available, begun) {
            return (journal.candidates(available, &BTreeSet::new(), &BTreeSet::new()), connections);
        }
        let inventory = self.handover.processes(devices.values()).await.ok();
        let connections = inventory.as_ref().map(|inventory| inventory.connections.clone()).unwrap_or_default();
        // read after the processes: a process whose pod has ended meanwhile has ended, too
        let answer = self.lookup.owners().await.ok();
        let allocated = self.lookup.allocated(available, answer.as_ref());
        let (answered, owners) = (answer.is_some(), answer.unwrap_or_default());
        let occupied = inventory.as_ref().map(|inventory| {
            let occupied = self.handover.occupied(&devices, inventory, &owners, &[]).into_keys();
            // a GPU that was lost just now: kubelet gets its devices as unhealthy after the next scan
            occupied.chain(HandoverCheck::unknown(&devices, inventory)).collect::<BTreeSet<DeviceId>>()
        });
        if let (true, Some(occupied)) = (answered, &occupied) {
            journal.found_free(free(&devices, &owners, occupied), connections.clone(), begun);
        }
        let mut candidates = journal.candidates(available, &allocated, &occupied.unwrap_or_default());
        if shares_of_mps {
            let requests = self.requests.borrow();
            let waiting = requests.as_ref().map(|r| r.waiting(&self.resource, owners.values())).unwrap_or_default();
            preferred::mark_foreign(&mut candidates, &owners, &waiting);
        }
        (candidates, connections)
    }

    /// Allocates devices that have no owner and that no process uses.
    pub(super) async fn hand_over(&self, requested: &[DeviceId]) -> Result<Vec<Device>, Refusal> {
        let journal = &self.lookup.journal;
        if let Some(outcome) = journal.allocate_free(&self.resource, requested, Instant::now()) {
            return outcome;
        }
        let devices = self.checked_devices(requested);
        // of these GPUs alone: one that does not answer must not fail a pod that gets a device of another
        let gpus: BTreeSet<&str> =
            requested.iter().filter_map(|id| devices.get(id)).map(|device| device.gpu_uuid.as_str()).collect();
        let read = |device: &&Device| gpus.contains(device.gpu_uuid.as_str());
        let unchecked = |error: NvmlError| {
            let id = requested.first().cloned().unwrap_or_else(|| DeviceId::new(""));
            Refusal::Unchecked(id, error.to_string())
        };
        let first = Instant::now();
        let mut attempt = 1;
        loop {
            let begun = Instant::now();
            let inventory = match self.handover.processes(devices.values().filter(read)).await {
                Ok(inventory) => inventory,
                // NVML may be busy with another GPU, and a refusal fails the pod
                Err(_) if first.elapsed() < BUSY_LIMIT => {
                    sleep(RETRY).await;
                    continue;
                }
                Err(error) => return Err(unchecked(error)),
            };
            // read after the processes: a process whose pod has ended meanwhile has ended, too
            let answer = self.lookup.check_free(requested).await?;
            let (answered, owners) = (answer.is_some(), answer.unwrap_or_default());
            match self.handover.refuse(&devices, &inventory, &owners, requested) {
                Ok(mut free) => {
                    free.retain(|id| devices.get(id).as_ref().is_some_and(read));
                    if answered {
                        journal.found_free(free, inventory.connections.clone(), begun);
                    }
                    return journal.allocate(&self.resource, requested, Instant::now());
                }
                Err(Refusal::InUse { .. }) if attempt < ATTEMPTS => attempt += 1,
                Err(refusal) => return Err(refusal),
            }
            sleep(RETRY).await;
        }
    }

    /// The devices that matter for a choice among `ids`: those, and all others that have not just been allocated. A pod that uses a
    /// shared GPU without a share occupies none of the latter.
    fn checked_devices(&self, ids: &[DeviceId]) -> BTreeMap<DeviceId, Device> {
        let mut devices = self.lookup.journal.devices();
        let all: Vec<DeviceId> = devices.keys().cloned().collect();
        let allocated = self.lookup.journal.allocated(&all);
        devices.retain(|id, _| ids.contains(id) || !allocated.contains(id));
        devices
    }
}
