//! Labels of shares, and the memory of MPS shares.

use std::{borrow::Cow, collections::BTreeMap};

use gputenancy_agent_core::device::{Device, DeviceOwner};
use gputenancy_cluster::service::metrics::{Gauges, Labels};
use gputenancy_crds::SharingMode;

use crate::series::Series;

/// Labels of a share that a container has.
pub(super) fn of_share(device: &Device, owner: &DeviceOwner) -> Labels<6> {
    let labels = [
        ("gpu", device.gpu_uuid.clone()),
        ("share", device.id.to_string()),
        ("resource", device.resource.clone()),
        ("namespace", owner.namespace.clone()),
        ("pod", owner.pod.clone()),
        ("container", owner.container.clone()),
    ];
    labels.map(|(name, value)| (name, Cow::from(value)))
}

/// Limit and use of the memory of MPS shares. The series have the names of those of audited shares, and no share is in both.
#[derive(Clone)]
pub(super) struct MpsMemory {
    limit: Series<6>,
    used: Series<6>,
}

impl Default for MpsMemory {
    fn default() -> Self {
        Self::of(Gauges::default(), Gauges::default())
    }
}

impl MpsMemory {
    /// Series of these gauges. It leaves the series that are set elsewhere.
    pub(super) fn of(limit: Gauges<6>, used: Gauges<6>) -> Self {
        Self { limit: Series::of(limit), used: Series::of(used) }
    }

    /// Sets them to the MPS shares among these devices, each with its container and the bytes that this uses.
    pub(super) fn set<'a>(&self, held: impl Iterator<Item = (&'a Device, &'a DeviceOwner, Option<u64>)>) {
        let (mut limits, mut used) = (BTreeMap::new(), BTreeMap::new());
        for (device, owner, bytes) in held {
            let Some(limit) = mps_limit(device) else { continue };
            let labels = of_share(device, owner);
            used.extend(bytes.map(|bytes| (labels.clone(), bytes)));
            limits.insert(labels, limit);
        }
        self.limit.set(&limits);
        self.used.set(&used);
    }
}

/// Bytes that the MPS server gives to the clients of a share, if it limits them.
fn mps_limit(device: &Device) -> Option<u64> {
    let share = device.share.as_ref().filter(|share| share.mode == SharingMode::Mps)?;
    u64::try_from(share.memory_mib?).ok().map(|mib| mib << 20)
}
