//! Which devices kubelet shall be told about, resource by resource.

use std::collections::{BTreeMap, BTreeSet};

use super::proto::plugin;
use crate::device::{Device, DeviceId, DeviceView};

/// One line of a `ListAndWatch` answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// False: kubelet keeps it in capacity and gives it to nobody.
    pub healthy: bool,
    /// NUMA node, where known.
    pub numa: Option<i64>,
}

/// The devices of one resource.
pub type Offer = BTreeMap<DeviceId, Listed>;

/// All resources; one that has lost its last device stays, with an empty offer.
pub type Offers = BTreeMap<String, Offer>;

/// What the view offers: all devices that are not held.
pub fn offers(view: &DeviceView) -> Offers {
    let mut offers = Offers::new();
    for device in &view.devices {
        let offer = offers.entry(device.resource.clone()).or_default();
        if device.advertised() {
            offer.insert(device.id.clone(), listed(device));
        }
    }
    offers
}

fn listed(device: &Device) -> Listed {
    // hosts without NUMA say -1
    Listed { healthy: device.healthy, numa: device.numa.filter(|node| *node >= 0) }
}

/// The devices of an offer that can be given to a container.
pub fn usable(offer: Option<&Offer>) -> BTreeSet<&DeviceId> {
    offer.into_iter().flatten().filter(|(_, listed)| listed.healthy).map(|(id, _)| id).collect()
}

/// The offer as kubelet reads it.
pub fn message(offer: &Offer) -> plugin::ListAndWatchResponse {
    let devices = offer.iter().map(|(id, listed)| plugin::Device {
        id: id.to_string(),
        health: if listed.healthy { plugin::HEALTHY } else { plugin::UNHEALTHY }.to_owned(),
        topology: listed.numa.map(|id| plugin::TopologyInfo { nodes: vec![plugin::NumaNode { id }] }),
    });
    plugin::ListAndWatchResponse { devices: devices.collect() }
}
