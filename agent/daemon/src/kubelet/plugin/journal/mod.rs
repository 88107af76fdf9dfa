//! The allocation journal, shared by the plugin servers, which allocate, and the manager, which publishes and withdraws.

mod free;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_crds::AllocationPolicy;

use self::free::FreeDevices;
use super::preferred::Candidate;
use crate::{
    device::{Device, DeviceId, Owners},
    gpu::Connections,
    kubelet::device_list::{DeviceList, DeviceLists},
    refusal::Refusal,
};

/// An allocation for which kubelet reports no owner by then has failed in kubelet.
pub const ALLOCATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Published devices and their allocations.
#[derive(Debug, Default)]
pub struct AllocationJournal(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// All devices that are advertised or that a container may have.
    devices: BTreeMap<DeviceId, Device>,
    /// The lists published last.
    published: DeviceLists,
    /// Withdrawn devices that kubelet may have chosen just before: allocated until [`AllocationJournal::end_withdrawal`].
    withdrawn: BTreeSet<DeviceId>,
    /// How many requests of kubelet for each device are being answered.
    requested: BTreeMap<DeviceId, u32>,
    /// Allocated devices for which kubelet has reported no owner yet.
    unconfirmed: BTreeMap<DeviceId, Instant>,
    /// Devices with an owner.
    owned: BTreeSet<DeviceId>,
    /// Devices that need no other check.
    free: FreeDevices,
    /// Which GPU a pod gets devices of.
    policy: AllocationPolicy,
}

/// A request of kubelet for devices, until it is dropped.
#[derive(Debug)]
pub struct Request<'a> {
    journal: &'a AllocationJournal,
    ids: Vec<DeviceId>,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut entries = self.journal.entries();
        for id in &self.ids {
            let ends = entries.requested.get_mut(id).is_some_and(|count| {
                *count = count.saturating_sub(1);
                *count == 0
            });
            if ends {
                entries.requested.remove(id);
            }
        }
    }
}

impl AllocationJournal {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // no method can panic between two changes that belong together
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the devices, before they are published.
    pub fn set_devices<'a>(&self, devices: impl IntoIterator<Item = &'a Device>) {
        let mut entries = self.entries();
        entries.devices = devices.into_iter().map(|device| (device.id.clone(), device.clone())).collect();
        let Entries { devices, free, .. } = &mut *entries;
        // a scan may have found what the check has not
        free.retain(|id| devices.get(id).is_some_and(is_offered));
    }

    /// Records which GPU a pod gets devices of.
    pub fn set_policy(&self, policy: AllocationPolicy) {
        self.entries().policy = policy;
    }

    /// Which GPU a pod gets devices of.
    pub fn policy(&self) -> AllocationPolicy {
        self.entries().policy
    }

    /// All recorded devices.
    pub fn devices(&self) -> BTreeMap<DeviceId, Device> {
        self.entries().devices.clone()
    }

    /// The recorded devices that are published, withdrawn or allocated.
    pub fn devices_in_use(&self) -> BTreeMap<DeviceId, Device> {
        let entries = self.entries();
        let in_use = |id: &DeviceId| {
            entries.published.values().any(|list| list.contains_key(id))
                || entries.withdrawn.contains(id)
                || entries.is_allocated(id)
        };
        let devices = entries.devices.iter().filter(|(id, _)| in_use(id));
        devices.map(|(id, device)| (id.clone(), device.clone())).collect()
    }

    /// Records a list that is being published; devices that it no longer has are withdrawn.
    pub fn publish(&self, resource: &str, list: &DeviceList) {
        let mut entries = self.entries();
        let before = entries.published.insert(resource.to_owned(), list.clone()).unwrap_or_default();
        entries.withdrawn.retain(|id| !list.contains_key(id));
        let healthy = |id: &DeviceId| list.get(id).is_some_and(|device| device.healthy);
        let withdrawn = before.into_iter().filter(|(id, device)| device.healthy && !healthy(id));
        entries.withdrawn.extend(withdrawn.map(|(id, _)| id));
    }

    /// The resource has no plugin server from now on.
    pub fn forget(&self, resource: &str) {
        self.entries().published.remove(resource);
    }

    /// The lists published last.
    pub fn published(&self) -> DeviceLists {
        self.entries().published.clone()
    }

    /// Kubelet asks for these devices. It may have chosen them before they were withdrawn, and a refusal fails its pod: what is withdrawn while the
    /// request is answered stays allocatable for it.
    pub fn request(&self, ids: &[DeviceId]) -> Request<'_> {
        let mut entries = self.entries();
        for id in ids {
            let count = entries.requested.entry(id.clone()).or_default();
            *count = count.saturating_add(1);
        }
        Request { journal: self, ids: ids.to_vec() }
    }

    /// Withdrawn devices are not allocated from now on; true if there were some. `None`: kubelet asks for some of them right now, and these stay.
    pub fn end_withdrawal(&self) -> Option<bool> {
        let mut entries = self.entries();
        let Entries { withdrawn, requested, .. } = &mut *entries;
        let some = !withdrawn.is_empty();
        withdrawn.retain(|id| requested.contains_key(id));
        withdrawn.is_empty().then_some(some)
    }

    /// Records the devices with owners in kubelet's response to a query sent at `queried`; returns the allocations that are still
    /// unconfirmed. A response to a query before the allocation may name the previous owner.
    pub fn confirm(&self, owned: BTreeSet<DeviceId>, queried: Instant, now: Instant) -> BTreeSet<DeviceId> {
        let mut entries = self.entries();
        entries.owned = owned;
        let Entries { unconfirmed, owned, .. } = &mut *entries;
        let confirmed = |id: &DeviceId, since: Instant| owned.contains(id) && since < queried;
        unconfirmed.retain(|id, since| !confirmed(id, *since) && now < *since + ALLOCATION_TIMEOUT);
        unconfirmed.keys().cloned().collect()
    }

    /// Replaces legacy ids by ids of devices.
    pub fn resolve_legacy_ids(&self, mut owners: Owners) -> Owners {
        for device in self.entries().devices.values() {
            if let Some(owner) = device.legacy_id().and_then(|id| owners.remove(&id)) {
                owners.insert(device.id.clone(), owner);
            }
        }
        owners
    }

    /// Those of these devices that are allocated or have an owner.
    pub fn allocated(&self, ids: &[DeviceId]) -> BTreeSet<DeviceId> {
        let entries = self.entries();
        ids.iter().filter(|id| entries.is_allocated(id)).cloned().collect()
    }

    /// Allocates devices to a container: all or none.
    pub fn allocate(&self, resource: &str, ids: &[DeviceId], now: Instant) -> Result<Vec<Device>, Refusal> {
        self.entries().allocate(resource, ids, now)
    }

    /// As [`allocate`](Self::allocate) for devices that the latest check found free; `None`: they have to be checked.
    pub fn allocate_free(
        &self,
        resource: &str,
        ids: &[DeviceId],
        now: Instant,
    ) -> Option<Result<Vec<Device>, Refusal>> {
        let mut entries = self.entries();
        entries.free.connections(ids, now)?;
        Some(entries.allocate(resource, ids, now))
    }

    /// How the GPUs are connected, if the latest check found all of these devices free and none has been allocated since.
    pub fn known_free(&self, ids: &[DeviceId], now: Instant) -> Option<Arc<Connections>> {
        self.entries().free.connections(ids, now).cloned()
    }

    /// Records the devices that a check found without owner and process, which began at `begun`, unless a later check has ended before. A device that was
    /// allocated meanwhile, or that a scan has withdrawn, stays to be checked.
    pub fn found_free(&self, ids: BTreeSet<DeviceId>, connections: Arc<Connections>, begun: Instant) {
        let mut entries = self.entries();
        let Entries { free, unconfirmed, owned, devices, .. } = &mut *entries;
        if free.is_later_than(begun) {
            return;
        }
        *free = FreeDevices::new(ids, connections, begun);
        let allocated = |id: &DeviceId| unconfirmed.contains_key(id) || owned.contains(id);
        free.retain(|id| !allocated(id) && devices.get(id).is_some_and(is_offered));
    }

    /// The devices that kubelet can choose from, some of which are `allocated` or `occupied`.
    pub fn candidates(
        &self,
        ids: &[DeviceId],
        allocated: &BTreeSet<DeviceId>,
        occupied: &BTreeSet<DeviceId>,
    ) -> Vec<Candidate> {
        let entries = self.entries();
        let (mut used, mut neighbours) = (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new());
        for device in entries.devices.values().filter(|device| entries.is_allocated(&device.id)) {
            *used.entry(&device.gpu_uuid).or_default() += 1;
            *neighbours.entry(device.id.uuid()).or_default() += 1;
        }
        let candidate = |id: &DeviceId| {
            let device = entries.devices.get(id);
            let gpu = device.map(|device| device.gpu_uuid.clone()).unwrap_or_default();
            Candidate {
                id: id.clone(),
                used: used.get(gpu.as_str()).copied().unwrap_or_default(),
                neighbours: neighbours.get(id.uuid()).copied().unwrap_or_default(),
                gpu,
                numa: device.and_then(|device| device.numa),
                start: device.and_then(|device| device.mig.as_ref()).map_or(0, |mig| mig.start),
                allocated: allocated.contains(id),
                occupied: occupied.contains(id),
                withdrawn: device.is_none() || entries.withdrawn.contains(id),
                foreign: false,
            }
        };
        ids.iter().map(candidate).collect()
    }
}

/// No scan has found a reason to withdraw the device.
fn is_offered(device: &Device) -> bool {
    device.healthy && !device.cordoned
}

impl Entries {
    fn is_allocated(&self, id: &DeviceId) -> bool {
        self.owned.contains(id) || self.unconfirmed.contains_key(id)
    }

    fn allocate(&mut self, resource: &str, ids: &[DeviceId], now: Instant) -> Result<Vec<Device>, Refusal> {
        let devices = ids.iter().map(|id| self.allocatable(resource, id)).collect::<Result<Vec<_>, _>>()?;
        self.free.retain(|id| !ids.contains(id));
        self.unconfirmed.extend(ids.iter().map(|id| (id.clone(), now)));
        Ok(devices)
    }

    fn allocatable(&self, resource: &str, id: &DeviceId) -> Result<Device, Refusal> {
        let healthy = self.published.get(resource).and_then(|list| list.get(id)).is_some_and(|device| device.healthy);
        let device = self.devices.get(id).filter(|device| device.resource == resource);
        let device = device.filter(|_| healthy || self.withdrawn.contains(id)).cloned();
        device.ok_or_else(|| Refusal::NotOffered(id.clone()))
    }
}

#[cfg(test)]
mod tests;
