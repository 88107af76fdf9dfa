//! The device list of each resource, which kubelet watches.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::{DeviceId, DeviceView};

/// A device in a `ListAndWatch` response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedDevice {
    /// False: kubelet counts it in capacity and does not allocate it.
    pub healthy: bool,
    /// NUMA node, if known.
    pub numa: Option<i64>,
}

/// The devices of one resource.
pub type DeviceList = BTreeMap<DeviceId, ListedDevice>;

/// Lists by resource; that of a resource without devices is empty.
pub type DeviceLists = BTreeMap<String, DeviceList>;

/// The lists of a view: all devices that are not cordoned.
pub fn device_lists(view: &DeviceView) -> DeviceLists {
    let mut lists = DeviceLists::new();
    for device in &view.devices {
        let list = lists.entry(device.resource.clone()).or_default();
        if device.advertised() {
            // hosts without NUMA report -1
            let numa = device.numa.filter(|node| *node >= 0);
            list.insert(device.id.clone(), ListedDevice { healthy: device.healthy, numa });
        }
    }
    lists
}

/// The devices of a list that kubelet can allocate.
pub fn healthy(list: Option<&DeviceList>) -> BTreeSet<&DeviceId> {
    list.into_iter().flatten().filter(|(_, device)| device.healthy).map(|(id, _)| id).collect()
}
