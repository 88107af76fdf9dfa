//! Withdraws occupied devices until their processes have ended, and remembers since when each process is unattributed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::occupied::{Evidence, PodKey, Unattributed, occupied, pod_key};
use crate::{
    device::{Device, DeviceId, DeviceOwner, Owners},
    gpu::{Inventory, ObservedGpu, processes::process_origin::Origin},
};

/// An owner that kubelet has not reported by then will not be reported: kubelet knows the owner of a device before it starts the
/// container, and is queried every 100 ms while a bound pod has no device.
pub const UNREPORTED_OWNER: Duration = Duration::from_secs(3);

/// Memory that no process explains is withdrawn after this time: the driver frees the memory of a process some time after its end.
pub const UNEXPLAINED_MEMORY: Duration = Duration::from_secs(10);

/// A process: its id, and its start in clock ticks since the node booted, because ids are used again.
pub type ProcessKey = (u32, u64);

/// What is known of processes on the node.
pub struct Processes<'a> {
    /// Where a process comes from.
    pub origin: &'a dyn Fn(u32) -> Origin,
    /// Its start, in clock ticks since the node booted; `None` once it has ended.
    pub start: &'a dyn Fn(u32) -> Option<u64>,
}

/// A process that may be ended: it has been unattributed for longer than the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Id and start.
    pub process: ProcessKey,
    /// Its container.
    pub container: DeviceOwner,
    /// A device that it occupies.
    pub device: DeviceId,
}

/// Memory of owners and unattributed processes.
#[derive(Clone, Debug, Default)]
pub struct Withdrawal {
    /// The last owner of each device.
    last_owners: BTreeMap<DeviceId, DeviceOwner>,
    /// Owners at the latest scan.
    owners: Owners,
    /// Since when a device is occupied.
    occupied: BTreeMap<DeviceId, Instant>,
    /// The devices that are withdrawn.
    withdrawn: BTreeSet<DeviceId>,
    /// Since when a device without an owner and without a process has memory in use.
    unexplained: BTreeMap<DeviceId, Instant>,
    /// Those of them that are withdrawn, with the memory in MiB.
    quarantined: BTreeMap<DeviceId, u64>,
    /// Since when a process occupies a withdrawn device.
    processes: BTreeMap<ProcessKey, (Instant, Option<DeviceOwner>, DeviceId)>,
}

impl Withdrawal {
    /// The next scan must include open files: an owner has left, or a device is occupied. NVML does not list a process between two
    /// contexts.
    pub fn needs_open_files(&self, owners: &Owners) -> bool {
        !self.occupied.is_empty() || self.owners.keys().any(|id| !owners.contains_key(id))
    }

    /// Cordons the devices that are occupied according to this scan.
    pub fn cordon(
        &mut self,
        devices: &mut [Device],
        inventory: &Inventory,
        owners: &Owners,
        processes: &Processes<'_>,
        now: Instant,
    ) {
        let known =
            |id: &DeviceId| devices.iter().any(|device| device.id == *id || device.legacy_id().as_ref() == Some(id));
        self.last_owners.retain(|id, _| known(id));
        self.last_owners.extend(owners.iter().map(|(id, owner)| (id.clone(), owner.clone())));
        self.owners.clone_from(owners);
        let evidence = Evidence { inventory, owners, origin: processes.origin };
        // the share that the pod had, or else one that is withdrawn already, so that the choice does not change with each scan
        let rank = |device: &Device, pods: &BTreeSet<PodKey>| match self.last_owner(device) {
            Some(owner) if pods.contains(&pod_key(owner)) => 0,
            _ if self.withdrawn.contains(&device.id) => 1,
            _ => 2,
        };
        let all = occupied(&*devices, &evidence, &rank);
        self.occupied.retain(|id, _| all.contains_key(id));
        let mut withdrawn = BTreeSet::new();
        for device in devices.iter_mut() {
            let Some(users) = all.get(&device.id) else { continue };
            let since = *self.occupied.entry(device.id.clone()).or_insert(now);
            if self.withdrawn.contains(&device.id)
                || self.is_former_owner(device, users)
                || now.saturating_duration_since(since) >= UNREPORTED_OWNER
            {
                device.cordoned = true;
                withdrawn.insert(device.id.clone());
            }
        }
        self.quarantine(devices, inventory, owners, processes, now);
        self.report(&withdrawn, &all);
        self.withdrawn = withdrawn;
        self.remember(&all, processes, now);
    }

    /// Cordons devices whose memory is in use by no living process, until it is free.
    fn quarantine(
        &mut self,
        devices: &mut [Device],
        inventory: &Inventory,
        owners: &Owners,
        processes: &Processes<'_>,
        now: Instant,
    ) {
        let before = std::mem::take(&mut self.unexplained);
        self.quarantined.clear();
        let legacy = |device: &Device| device.legacy_id().is_some_and(|id| owners.contains_key(&id));
        for device in devices.iter_mut().filter(|device| !owners.contains_key(&device.id) && !legacy(device)) {
            let gi = device.mig.as_ref().map(|mig| mig.gi);
            let Some(gpu) = inventory.gpu(&device.gpu_uuid) else { continue };
            let mib = gpu.unexplained.get(&gi).copied().or_else(|| of_ended(gpu, gi, processes));
            let Some(mib) = mib else { continue };
            let since = before.get(&device.id).copied().unwrap_or(now);
            self.unexplained.insert(device.id.clone(), since);
            if now.saturating_duration_since(since) >= UNEXPLAINED_MEMORY {
                device.cordoned = true;
                self.quarantined.insert(device.id.clone(), mib);
            }
        }
    }

    /// Devices that are withdrawn because no process explains their memory in use, in MiB.
    pub fn quarantined(&self) -> &BTreeMap<DeviceId, u64> {
        &self.quarantined
    }

    fn last_owner(&self, device: &Device) -> Option<&DeviceOwner> {
        self.last_owners.get(&device.id).or_else(|| self.last_owners.get(&device.legacy_id()?))
    }

    /// One of the processes is of the pod that had the device: kubelet has forgotten it.
    fn is_former_owner(&self, device: &Device, users: &[Unattributed]) -> bool {
        let former = self.last_owner(device).map(pod_key);
        former.is_some() && users.iter().any(|user| user.container().map(pod_key) == former)
    }

    fn report(&self, withdrawn: &BTreeSet<DeviceId>, all: &BTreeMap<DeviceId, Vec<Unattributed>>) {
        for id in withdrawn.difference(&self.withdrawn) {
            let users: Vec<String> = all.get(id).into_iter().flatten().map(ToString::to_string).collect();
            tracing::warn!(device = %id, used_by = users.join("; "), "withdrawing device until its processes have ended");
        }
        for id in self.withdrawn.difference(withdrawn) {
            tracing::info!(device = %id, "device has no unattributed process any more");
        }
    }

    fn remember(&mut self, all: &BTreeMap<DeviceId, Vec<Unattributed>>, processes: &Processes<'_>, now: Instant) {
        let before = std::mem::take(&mut self.processes);
        for id in &self.withdrawn {
            for user in all.get(id).into_iter().flatten() {
                let Some(start) = (processes.start)(user.pid) else { continue };
                let key = (user.pid, start);
                let since = before.get(&key).map_or(now, |(since, ..)| *since);
                self.processes.insert(key, (since, user.container().cloned(), id.clone()));
            }
        }
    }

    /// The container of a process on each withdrawn device, if it is one of a pod.
    pub fn former_owners(&self) -> Owners {
        let all = self.processes.values();
        all.filter_map(|(_, container, device)| Some((device.clone(), container.clone()?))).collect()
    }

    /// These processes were killed: if they do not end, that is tried again after another deadline.
    pub fn killed(&mut self, processes: &[ProcessKey], now: Instant) {
        for (_, (since, ..)) in self.processes.iter_mut().filter(|(process, _)| processes.contains(process)) {
            *since = now;
        }
    }

    /// Processes of containers that have occupied a withdrawn device for at least `deadline`. Processes outside of pods are never among
    /// them.
    pub fn overdue(&self, deadline: Duration, now: Instant) -> Vec<Overdue> {
        let all = self.processes.iter().filter(|(_, (since, ..))| now.saturating_duration_since(*since) >= deadline);
        let overdue = all.filter_map(|(process, (_, container, device))| {
            Some(Overdue { process: *process, container: container.clone()?, device: device.clone() })
        });
        overdue.collect()
    }
}

/// Memory in MiB of a device whose processes in NVML have all ended; `None`: one lives, or there is none, or they hold none.
fn of_ended(gpu: &ObservedGpu, gi: Option<u32>, processes: &Processes<'_>) -> Option<u64> {
    let mut here = gpu.clients.iter().filter(|process| gi.is_none() || process.gi == gi);
    let bytes = here.clone().filter_map(|process| process.memory).fold(0, u64::saturating_add);
    (bytes > 0 && here.all(|process| (processes.origin)(process.pid) == Origin::Ended)).then_some(bytes >> 20)
}

#[cfg(test)]
mod tests;
