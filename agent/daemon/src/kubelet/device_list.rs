//! The device list of each resource, as kubelet receives it.

pub use gputenancy_agent_core::kubelet::device_list::{DeviceList, DeviceLists, ListedDevice, device_lists, healthy};

use crate::grpc::proto::plugin;

/// The list as kubelet receives it.
pub fn response(list: &DeviceList) -> plugin::ListAndWatchResponse {
    let devices = list.iter().map(|(id, device)| plugin::Device {
        id: id.to_string(),
        health: if device.healthy { plugin::HEALTHY } else { plugin::UNHEALTHY }.to_owned(),
        topology: device.numa.map(|id| plugin::TopologyInfo { nodes: vec![plugin::NumaNode { id }] }),
    });
    plugin::ListAndWatchResponse { devices: devices.collect() }
}
