//! The check at each allocation: NVML lists the processes at that moment, and `/proc` those that have an instance's capability file open.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::sync::Mutex;

use super::occupied::{Evidence, Unattributed, occupied, requested_last};
use crate::{
    device::{Device, DeviceId, Owners},
    gpu::{
        Inventory, NvmlError, NvmlThread,
        processes::process_origin::{Origins, command},
    },
    refusal::Refusal,
};

/// Attempts before an occupied device is refused. A refusal fails the pod, and NVML lists a process for a moment after its end.
pub const ATTEMPTS: u32 = 5;
/// NVML may be busy with another GPU: until then a read that failed is repeated. A read itself waits as long as a scan may take.
pub const BUSY_LIMIT: Duration = Duration::from_secs(5);
/// Delay between two attempts.
pub const RETRY: Duration = Duration::from_millis(200);

/// Reads the processes on the GPUs of these UUIDs; with open files if the second argument is true.
pub type ReadProcesses =
    Arc<dyn Fn(BTreeSet<String>, bool) -> BoxFuture<'static, Result<Inventory, NvmlError>> + Send + Sync>;

/// Checks that devices are clean.
#[derive(Clone)]
pub struct HandoverCheck {
    read: ReadProcesses,
    origins: Origins,
    /// One read at a time: the queue of the NVML thread has one place for this check.
    reading: Arc<Mutex<()>>,
}

impl HandoverCheck {
    /// A check that reads processes like this.
    pub fn new(read: ReadProcesses, origins: Origins) -> Self {
        Self { read, origins, reading: Arc::default() }
    }

    /// A check through NVML. It waits for an answer as long as a scan may take.
    pub fn through(nvml: NvmlThread, origins: Origins) -> Self {
        let read = move |uuids: BTreeSet<String>, open_files: bool| -> BoxFuture<'static, _> {
            let nvml = nvml.clone();
            Box::pin(async move { nvml.processes(uuids, open_files).await })
        };
        Self::new(Arc::new(read), origins)
    }

    /// Where processes come from.
    pub fn origins(&self) -> &Origins {
        &self.origins
    }

    /// The processes that are on the GPUs of these devices now, by NVML and by open files: only MIG instances have capability files.
    ///
    /// # Errors
    /// When NVML does not answer in time.
    pub async fn processes<'d>(&self, devices: impl IntoIterator<Item = &'d Device>) -> Result<Inventory, NvmlError> {
        let (mut uuids, mut open_files) = (BTreeSet::new(), false);
        for device in devices {
            uuids.insert(device.gpu_uuid.clone());
            open_files |= device.mig.is_some();
        }
        let _one = self.reading.lock().await;
        (self.read)(uuids, open_files).await
    }

    /// The processes that NVML lists on the GPUs of these devices now.
    ///
    /// # Errors
    /// When NVML does not answer in time.
    pub async fn listed<'d>(&self, devices: impl IntoIterator<Item = &'d Device>) -> Result<Inventory, NvmlError> {
        let uuids = devices.into_iter().map(|device| device.gpu_uuid.clone()).collect();
        let _one = self.reading.lock().await;
        (self.read)(uuids, false).await
    }

    /// The devices that a process occupies, of all `devices` of this node; of the shares of a GPU those that are cordoned first, and
    /// `requested` ones last. `owners` must be read after `inventory`.
    pub fn occupied(
        &self,
        devices: &BTreeMap<DeviceId, Device>,
        inventory: &Inventory,
        owners: &Owners,
        requested: &[DeviceId],
    ) -> BTreeMap<DeviceId, Vec<Unattributed>> {
        let origin = |pid: u32| self.origins.of(pid);
        occupied(devices.values(), &Evidence { inventory, owners, origin: &origin }, &requested_last(requested))
    }

    /// Those of `devices` whose processes are not known, because their GPU does not answer: they would be refused.
    pub fn unknown(devices: &BTreeMap<DeviceId, Device>, inventory: &Inventory) -> BTreeSet<DeviceId> {
        devices.values().filter(|device| unknown(device, inventory).is_some()).map(|device| device.id.clone()).collect()
    }

    /// Refuses the first of the requested devices that is occupied, or whose processes are not known. Otherwise returns all devices that are [`free`].
    ///
    /// # Errors
    /// As described.
    pub fn refuse(
        &self,
        devices: &BTreeMap<DeviceId, Device>,
        inventory: &Inventory,
        owners: &Owners,
        requested: &[DeviceId],
    ) -> Result<BTreeSet<DeviceId>, Refusal> {
        for id in requested {
            let Some(device) = devices.get(id) else { return Err(Refusal::NotOffered(id.clone())) };
            if let Some(reason) = unknown(device, inventory) {
                return Err(Refusal::Unchecked(id.clone(), reason));
            }
        }
        let all = self.occupied(devices, inventory, owners, requested);
        let first = requested.iter().find_map(|id| Some((id, all.get(id)?.first()?)));
        if let Some((id, process)) = first {
            let command = command(&self.origins.proc_root, process.pid);
            // the requesting pod is not known, and its users may not read the names of other pods
            tracing::warn!(device = %id, used_by = %process, command, "refusing a device that is still in use");
            return Err(Refusal::InUse { id: id.clone(), process: process.for_others(&command) });
        }
        let occupied = all.into_keys().chain(Self::unknown(devices, inventory)).collect();
        Ok(free(devices, owners, &occupied))
    }
}

/// Those of `devices` that have no owner and that are not occupied.
pub fn free(
    devices: &BTreeMap<DeviceId, Device>,
    owners: &Owners,
    occupied: &BTreeSet<DeviceId>,
) -> BTreeSet<DeviceId> {
    devices.keys().filter(|id| !owners.contains_key(*id) && !occupied.contains(*id)).cloned().collect()
}

/// Why the processes on a device are not known; `None`: they are.
fn unknown(device: &Device, inventory: &Inventory) -> Option<String> {
    match inventory.gpu(&device.gpu_uuid) {
        Some(gpu) => gpu.failure.as_ref().map(ToString::to_string),
        None => Some("the GPU is not listed".to_owned()),
    }
}
