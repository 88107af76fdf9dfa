//! Events about faults, on every pod with a device of the GPU. NVML reports the fault, and kubelet the owners of the GPU's devices;
//! [`affected`] decides which pods get which event, and this loop publishes it.

mod affected;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::watch;

pub use affected::{Incident, LostDevice, cleared, lost, notices, unexplained_memory, unlicensed};

use gputenancy_nvml::FaultKind;

use crate::{
    device::{DeviceId, Owners},
    event::Publish,
    gpu::fault_class::{FaultClass, SeenFault, text},
    metrics::Metrics,
    partition::PartitionState,
};

/// The same fault of the same GPU or instance has one set of events in this time: a program can raise an Xid in a loop.
const QUIET: Duration = Duration::from_mins(1);

/// Publishes the faults of this node's GPUs.
pub struct Incidents {
    /// Inventory, and owners of devices.
    pub state: watch::Receiver<PartitionState>,
    /// Publishes events.
    pub publish: Publish,
    /// Counts faults.
    pub metrics: Metrics,
    /// Name of the node.
    pub node: String,
}

impl Incidents {
    /// Publishes for as long as it is polled.
    pub async fn run(self) {
        let Self { mut state, ref node, metrics, publish } = self;
        let mut seen = Seen::default();
        while state.changed().await.is_ok() {
            let (found, quarantined, without_licence, (lost_devices, recovered)) = {
                let state = state.borrow_and_update();
                let gone = (seen.lost(&state), seen.recovered(&state));
                (seen.faults(&state, Instant::now()), seen.quarantined(&state), seen.unlicensed(&state), gone)
            };
            for (gpu, recovery) in recovered {
                if recovery.is_some() {
                    metrics.gpu_recovered();
                }
                publish(cleared(node, &gpu, recovery.as_deref())).await;
            }
            for device in &lost_devices {
                metrics.lost_device();
                for notice in lost(node, device) {
                    publish(notice).await;
                }
            }
            for index in without_licence {
                publish(unlicensed(node, index)).await;
            }
            for (device, mib) in quarantined {
                publish(unexplained_memory(node, &device, mib)).await;
            }
            for (fault, incidents) in found {
                let class = class_name(FaultClass::of(fault.kind));
                metrics.gpu_fault(class);
                if let (FaultKind::Xid(xid), Some(uuid)) = (fault.kind, &fault.uuid) {
                    metrics.usage.xid(uuid, xid, class);
                }
                for notice in incidents.iter().flat_map(|incident| notices(node, incident)) {
                    publish(notice).await;
                }
            }
        }
    }
}

fn class_name(class: FaultClass) -> &'static str {
    match class {
        FaultClass::Application => "application",
        FaultClass::Hardware => "hardware",
        FaultClass::Node => "node",
    }
}

/// A fault without its number: GPU, instance, text.
type FaultKey = (Option<String>, Option<u32>, String);

/// What was published, and the owners at the scan before: a container may have ended through the fault by the time it is read.
#[derive(Default)]
struct Seen {
    last: u64,
    owners: Owners,
    published: BTreeMap<FaultKey, Instant>,
    quarantined: BTreeSet<DeviceId>,
    unlicensed: BTreeSet<u32>,
    /// GPUs with a fault.
    faulty: BTreeSet<String>,
    /// MIG devices of the scan before, by UUID, with the UUID of their GPU.
    instances: BTreeMap<String, String>,
}

impl Seen {
    /// Devices that are withdrawn since the last call because of their memory, and how much it is, in MiB.
    fn quarantined(&mut self, state: &PartitionState) -> Vec<(DeviceId, u64)> {
        let now: BTreeSet<DeviceId> = state.quarantined.keys().cloned().collect();
        let before = std::mem::replace(&mut self.quarantined, now);
        let new = state.quarantined.iter().filter(|(id, _)| !before.contains(*id));
        new.map(|(id, mib)| (id.clone(), *mib)).collect()
    }

    /// MIG devices that are gone since the last call while containers have them: another program has destroyed them, or turned MIG mode
    /// off. The agent destroys none that has an owner. A GPU that does not answer says nothing about its instances.
    fn lost(&mut self, state: &PartitionState) -> Vec<LostDevice> {
        let Some(inventory) = &state.inventory else { return Vec::new() };
        let answering = |uuid: &str| inventory.gpu(uuid).is_some_and(|gpu| gpu.failure.is_none());
        let now = inventory
            .gpus
            .iter()
            .flat_map(|gpu| gpu.instances.iter().filter_map(|i| Some((i.uuid()?.to_owned(), gpu.uuid.clone()))));
        let now: BTreeMap<String, String> = now.collect();
        let before = std::mem::replace(&mut self.instances, now);
        let gone = before.into_iter().filter(|(uuid, gpu)| !self.instances.contains_key(uuid) && answering(gpu));
        let gone: BTreeMap<String, String> = gone.collect();
        let owners = state.owners.iter().flatten();
        let lost = owners.filter_map(|(id, owner)| {
            let gpu = gone.get(id.uuid())?.clone();
            Some(LostDevice { id: id.clone(), gpu, owner: owner.clone() })
        });
        lost.collect()
    }

    /// GPUs that have lost their fault since the last call, with the reason if a canary pod is one. One that does not answer says nothing.
    fn recovered(&mut self, state: &PartitionState) -> Vec<(String, Option<String>)> {
        let mut recovered = Vec::new();
        for gpu in state.inventory.iter().flat_map(|inventory| &inventory.gpus).filter(|gpu| gpu.failure.is_none()) {
            if gpu.fault.is_some() {
                self.faulty.insert(gpu.uuid.clone());
            } else if self.faulty.remove(&gpu.uuid) {
                // after a reset, and after a person has cleared them, nothing of the faults is remembered
                recovered.push((gpu.uuid.clone(), gpu.recovery.as_ref().map(|recovery| recovery.message.clone())));
            }
        }
        recovered
    }

    /// Indices of vGPUs that have lost their licence since the last call. Without an inventory nothing is known, and nothing changes.
    fn unlicensed(&mut self, state: &PartitionState) -> Vec<u32> {
        let Some(inventory) = &state.inventory else { return Vec::new() };
        let without = inventory.gpus.iter().filter(|gpu| gpu.licensed == Some(false));
        let now: BTreeSet<u32> = without.map(|gpu| gpu.index).collect();
        let before = std::mem::replace(&mut self.unlicensed, now);
        self.unlicensed.difference(&before).copied().collect()
    }

    /// Faults since the last call, oldest first, with their incidents; without incidents if the same fault was published a moment ago.
    fn faults(&mut self, state: &PartitionState, now: Instant) -> Vec<(SeenFault, Vec<Incident>)> {
        let latest = state.owners.clone().unwrap_or_default();
        let mut owners = std::mem::replace(&mut self.owners, latest.clone());
        owners.extend(latest);
        let Some(inventory) = &state.inventory else { return Vec::new() };
        self.published.retain(|_, at| now.saturating_duration_since(*at) < QUIET);
        let mut found = Vec::new();
        for fault in inventory.faults.iter().filter(|fault| fault.number > self.last) {
            let key = (fault.uuid.clone(), fault.instance, text(fault.kind));
            let repeated = self.published.contains_key(&key);
            let incidents = if repeated { Vec::new() } else { affected::of(fault, inventory, &owners) };
            self.published.entry(key).or_insert(now);
            found.push((fault.clone(), incidents));
        }
        self.last = found.iter().map(|(fault, _)| fault.number).max().unwrap_or(self.last);
        found
    }
}

#[cfg(test)]
mod tests;
