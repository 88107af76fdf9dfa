//! Lists of a kubelet that is newer than the agent.

use fuzz::Choices;
use gputenancy_agent::grpc::proto::podresources;
use prost::Message;

use super::{id, resource, some};

/// Kubelet's list, with fields that the agent does not know.
#[derive(Clone, PartialEq, Message)]
pub struct NewerList {
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<NewerPod>,
    #[prost(string, tag = "99")]
    pub newer: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct NewerPod {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<NewerContainer>,
    #[prost(int64, repeated, tag = "4")]
    pub cpus: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NewerContainer {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<NewerDevices>,
    #[prost(int64, repeated, tag = "3")]
    pub cpus: Vec<i64>,
    #[prost(fixed64, tag = "536870911")]
    pub newer: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct NewerDevices {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
    #[prost(bytes = "vec", tag = "3")]
    pub topology: Vec<u8>,
}

/// Devices of one resource.
pub fn devices(choices: &mut Choices) -> NewerDevices {
    NewerDevices {
        resource_name: resource(choices),
        device_ids: some(choices, 4, id),
        topology: some(choices, 4, Choices::byte),
    }
}

/// A list.
pub fn list(choices: &mut Choices) -> NewerList {
    let container = |choices: &mut Choices| NewerContainer {
        name: choices.text(),
        devices: some(choices, 3, devices),
        cpus: some(choices, 3, Choices::number),
        newer: choices.number().unsigned_abs(),
    };
    let pod = |choices: &mut Choices| NewerPod {
        name: choices.text(),
        namespace: choices.text(),
        containers: some(choices, 3, container),
        cpus: some(choices, 3, Choices::number),
    };
    NewerList { pods: some(choices, 4, pod), newer: choices.text() }
}

/// The list without fields that the agent does not know.
pub fn known(list: &NewerList) -> podresources::ListPodResourcesResponse {
    let devices = |d: &NewerDevices| podresources::ContainerDevices {
        resource_name: d.resource_name.clone(),
        device_ids: d.device_ids.clone(),
    };
    let container = |c: &NewerContainer| podresources::ContainerResources {
        name: c.name.clone(),
        devices: c.devices.iter().map(devices).collect(),
    };
    let pod = |p: &NewerPod| podresources::PodResources {
        name: p.name.clone(),
        namespace: p.namespace.clone(),
        containers: p.containers.iter().map(container).collect(),
    };
    podresources::ListPodResourcesResponse { pod_resources: list.pods.iter().map(pod).collect() }
}
