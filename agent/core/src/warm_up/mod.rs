//! From which moment an empty answer of a source is believed. A source that has just started answers at once and knows nothing yet; what follows from
//! such an answer is that devices are withdrawn, and that kubelet ends pods that run (`OutOf<resource>`).
//!
//! | source | says | an empty answer is believed |
//! |---|---|---|
//! | kubelet, `List` | owners of devices | for a device that had an owner: once the owner's pod has ended, is not in the API, or has other devices. While the API's pods are not known: [`KUBELET`] after kubelet has started |
//! | kubelet, `List` | pods that it runs | never: the agent is one of them |
//! | kubelet, `GetAllocatableResources` and its watch of the plugin's list | devices that it can allocate | at once, but until [`KUBELET`] after its start the Node's allocatable is not below what the node's pods request: kubelet admits them again, and compares |
//! | API server, pods of the node | pods that exist | from the end of the first list on |
//! | API server, the agent's own `GpuNode` | desired layout, owners that an earlier run reported | with the first object; nothing is advertised, withdrawn or written before |
//! | NVML, list of GPUs | GPUs that exist | at once for free devices; a device with an owner stays in its list, unhealthy, until it has none |

mod former_owners;
mod own_status;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_crds::GpuNodeStatus;

pub use former_owners::DevicePods;
use former_owners::FormerOwners;

use crate::{
    device::{Device, Owners},
    gpu::Inventory,
    pod::PodName,
};

/// Kubelet has read its pods from the API server and has admitted them again by then: on a busy node that takes ten seconds.
pub const KUBELET: Duration = Duration::from_secs(30);

/// Distinguishes sockets at the same path: inode, and seconds and nanoseconds of its last change; inode numbers alone are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketIdentity(pub u64, pub i64, pub i64);

/// What is known of the sources; clones share it.
#[derive(Clone, Debug, Default)]
pub struct WarmUp(Arc<Mutex<Sources>>);

#[derive(Debug, Default)]
struct Sources {
    /// The socket of this run of kubelet, and since when it is there.
    kubelet: Option<(SocketIdentity, Instant)>,
    former: FormerOwners,
}

impl WarmUp {
    fn sources(&self) -> MutexGuard<'_, Sources> {
        // no method can panic between two changes that belong together
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status that an earlier run of the agent wrote: its owners are former ones. One of before the node booted says nothing, because kubelet
    /// gives devices to the pods again.
    pub fn own_status(&self, status: Option<&GpuNodeStatus>, boot_id: &str) {
        if let Some(status) = status.filter(|status| status.boot_id.as_deref() == Some(boot_id)) {
            self.recall(own_status::owners(status));
        }
    }

    /// These are former owners.
    pub fn recall(&self, owners: Owners) {
        self.sources().former.recall(owners);
    }

    /// Kubelet has this socket, which was created so long ago.
    pub fn kubelet_socket(&self, identity: SocketIdentity, age: Duration, now: Instant) {
        let mut sources = self.sources();
        if sources.kubelet.is_none_or(|(known, _)| known != identity) {
            sources.kubelet = Some((identity, now.checked_sub(age).unwrap_or(now)));
        }
    }

    /// Kubelet runs for so long that it has admitted the node's pods.
    pub fn kubelet_is_warm(&self, now: Instant) -> bool {
        self.sources().kubelet_is_warm(now)
    }

    /// Kubelet's owners, with those that it has forgotten. `pods`: those on this node that request devices; `None` before the first list.
    pub fn owners(&self, answer: Owners, pods: Option<&impl DevicePods>, now: Instant) -> Owners {
        let mut sources = self.sources();
        let warm = sources.kubelet_is_warm(now);
        match pods {
            Some(pods) => sources.former.complete(answer, pods),
            None if warm => sources.former.replace(answer),
            None => sources.former.keep(&answer),
        }
    }
}

impl Sources {
    fn kubelet_is_warm(&self, now: Instant) -> bool {
        self.kubelet.is_some_and(|(_, since)| now.saturating_duration_since(since) >= KUBELET)
    }
}

/// Devices of before that have an owner and whose GPU NVML does not list: they stay, unhealthy.
/// `None`: kubelet has not reported owners.
pub fn absent(before: &[Device], inventory: &Inventory, owners: Option<&Owners>) -> Vec<Device> {
    let stays = |device: &&Device| {
        inventory.gpu(&device.gpu_uuid).is_none() && owners.is_none_or(|owners| is_owned(device, owners))
    };
    before.iter().filter(stays).map(|device| Device { healthy: false, ..device.clone() }).collect()
}

fn is_owned(device: &Device, owners: &Owners) -> bool {
    owners.contains_key(&device.id) || device.legacy_id().is_some_and(|id| owners.contains_key(&id))
}

/// Whether these can be all pods that kubelet runs: the agent is one of them.
pub fn are_pods(pods: &BTreeSet<PodName>) -> bool {
    !pods.is_empty()
}

#[cfg(test)]
mod tests;
