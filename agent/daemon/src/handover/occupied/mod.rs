//! Devices without an owner that a process still uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    device::{Device, DeviceId, DeviceOwner, Owners},
    gpu::{Inventory, ObservedGpu, processes::process_origin::Origin},
};

/// Namespace and name of a pod.
pub type PodKey = (String, String);

/// A process on a device that kubelet did not allocate to its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unattributed {
    /// Its id on the node.
    pub pid: u32,
    /// Where it comes from.
    pub origin: Origin,
}

impl Unattributed {
    /// Its container, if it is one of a pod.
    pub fn container(&self) -> Option<&DeviceOwner> {
        match &self.origin {
            Origin::Pod(container) | Origin::Former(container, _) => container.as_ref(),
            Origin::Node | Origin::Ended => None,
        }
    }

    /// Text for the pod that asks for the device, which may be of another team: without names of the pod of this process. `command` is shown only of
    /// a process of no pod.
    pub fn for_others(&self, command: &str) -> String {
        let pid = self.pid;
        match &self.origin {
            Origin::Pod(_) => format!("process {pid} of another pod, which kubelet does not list as the owner"),
            Origin::Former(..) => format!("process {pid} of another pod, which was deleted"),
            Origin::Node | Origin::Ended => format!("{self} (command {command})"),
        }
    }
}

impl fmt::Display for Unattributed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        match &self.origin {
            Origin::Pod(Some(DeviceOwner { namespace, pod, container })) => {
                write!(
                    f,
                    " of container {container} of pod {namespace}/{pod}, which kubelet does not list as the owner"
                )
            }
            Origin::Former(Some(DeviceOwner { namespace, pod, container }), uid) => {
                write!(f, " of container {container} of the deleted pod {namespace}/{pod} with UID {uid}")
            }
            Origin::Former(None, uid) => write!(f, " of the deleted pod with UID {uid}"),
            Origin::Pod(None) => f.write_str(" of a pod that kubelet does not list as the owner"),
            Origin::Node | Origin::Ended => f.write_str(", which belongs to no pod"),
        }
    }
}

/// What decides besides the devices.
pub struct Evidence<'a> {
    /// The processes on each GPU.
    pub inventory: &'a Inventory,
    /// Owners, from kubelet, not older than the inventory.
    pub owners: &'a Owners,
    /// Where a process comes from.
    pub origin: &'a dyn Fn(u32) -> Origin,
}

/// Devices without an owner that must not be handed over, with the processes that use them.
///
/// NVML does not report which share of a GPU or of an instance a process uses. Each pod that uses a shared one without owning a share of it
/// therefore occupies one of its free shares: those for which `rank` is lowest.
pub fn occupied<'d>(
    devices: impl IntoIterator<Item = &'d Device>,
    evidence: &Evidence<'_>,
    rank: &dyn Fn(&Device, &BTreeSet<PodKey>) -> u8,
) -> BTreeMap<DeviceId, Vec<Unattributed>> {
    let mut all = BTreeMap::new();
    let mut shares: BTreeMap<&str, Vec<&Device>> = BTreeMap::new();
    for device in devices.into_iter().filter(|device| owner(device, evidence.owners).is_none()) {
        let Some(gpu) = evidence.inventory.gpu(&device.gpu_uuid) else { continue };
        if device.share.is_some() {
            shares.entry(device.id.uuid()).or_default().push(device);
            continue;
        }
        let processes = on_device(device, gpu, evidence);
        if !processes.is_empty() {
            all.insert(device.id.clone(), processes);
        }
    }
    for mut free in shares.into_values() {
        let Some(one) = free.first() else { continue };
        let Some(gpu) = evidence.inventory.gpu(&one.gpu_uuid) else { continue };
        let by_pod = on_shared(one, gpu, evidence);
        let pods: BTreeSet<PodKey> = by_pod.keys().cloned().collect();
        free.sort_by_key(|device| (rank(device, &pods), std::cmp::Reverse(device.share.as_ref().map(|s| s.number))));
        all.extend(
            free.into_iter().zip(by_pod.into_values()).map(|(device, processes)| (device.id.clone(), processes)),
        );
    }
    all
}

/// The rank at an allocation: shares that are cordoned first, requested ones last.
pub fn requested_last(requested: &[DeviceId]) -> impl Fn(&Device, &BTreeSet<PodKey>) -> u8 {
    |device, _| u8::from(!device.cordoned) + 2 * u8::from(requested.contains(&device.id))
}

fn owner<'o>(device: &Device, owners: &'o Owners) -> Option<&'o DeviceOwner> {
    owners.get(&device.id).or_else(|| owners.get(&device.legacy_id()?))
}

/// Processes on a MIG instance or on a whole GPU that has no owner.
fn on_device(device: &Device, gpu: &ObservedGpu, evidence: &Evidence<'_>) -> Vec<Unattributed> {
    let all = pids(device, gpu).into_iter().map(|pid| Unattributed { pid, origin: (evidence.origin)(pid) });
    all.filter(|process| process.origin != Origin::Ended).collect()
}

/// Processes on an instance, or on the whole GPU. NVML can list one twice, once for each compute instance.
fn pids(device: &Device, gpu: &ObservedGpu) -> BTreeSet<u32> {
    let on_device =
        gpu.clients.iter().filter(|process| device.mig.as_ref().is_none_or(|mig| process.gi == Some(mig.gi)));
    on_device.map(|process| process.pid).collect()
}

/// Processes on the shared GPU or instance of a share, by pod, of pods that own nothing of it. A process outside of pods, such as an MPS
/// server, works for the owners of shares; one without a known container may be theirs.
fn on_shared(share: &Device, gpu: &ObservedGpu, evidence: &Evidence<'_>) -> BTreeMap<PodKey, Vec<Unattributed>> {
    let owners = evidence.owners.iter().filter(|(id, _)| id.uuid() == share.id.uuid());
    let owners: BTreeSet<PodKey> = owners.map(|(_, owner)| pod_key(owner)).collect();
    let pids = pids(share, gpu);
    let mut by_pod: BTreeMap<PodKey, Vec<Unattributed>> = BTreeMap::new();
    for process in pids.into_iter().map(|pid| Unattributed { pid, origin: (evidence.origin)(pid) }) {
        let pod = match &process.origin {
            // not the pod that kubelet lists under the same name
            Origin::Former(Some(container), _) => Some(pod_key(container)),
            Origin::Former(None, uid) => Some((String::new(), uid.clone())),
            _ => process.container().map(pod_key).filter(|pod| !owners.contains(pod)),
        };
        if let Some(pod) = pod {
            by_pod.entry(pod).or_default().push(process);
        }
    }
    by_pod
}

/// The pod of a container.
pub fn pod_key(container: &DeviceOwner) -> PodKey {
    (container.namespace.clone(), container.pod.clone())
}

#[cfg(test)]
pub(crate) mod tests;
