//! Kubelet's pod resources API: owners of devices, and the devices of kubelet's device manager.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use tonic::{Status, transport::Channel};

use super::{
    proto::podresources::{
        AllocatableResourcesRequest, ContainerDevices, ListPodResourcesRequest, ListPodResourcesResponse,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    uds,
};
use crate::device::{DeviceId, DeviceOwner, Owners};

/// Limit for one call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Devices by resource.
pub type ByResource = BTreeMap<String, BTreeSet<DeviceId>>;

/// The pod resources API of this node's kubelet.
#[derive(Debug, Clone)]
pub struct PodResources {
    client: PodResourcesListerClient<Channel>,
}

impl PodResources {
    /// At this socket, which the first call connects to.
    pub fn at(socket: &Path) -> Self {
        // 16 MiB: a node's whole list, far above tonic's default for hundreds of pods
        let client = PodResourcesListerClient::new(uds::endpoint(socket, TIMEOUT).connect_lazy());
        let client = client.max_decoding_message_size(16 << 20);
        Self { client }
    }

    /// Owners of the devices of resources that pass `filter`.
    pub async fn owners(&self, filter: impl Fn(&str) -> bool) -> Result<Owners, Status> {
        let response = self.client.clone().list(ListPodResourcesRequest {}).await?;
        Ok(owners(response.into_inner(), filter))
    }

    /// Namespace and name of all pods that kubelet knows and that have not ended.
    pub async fn pods(&self) -> Result<BTreeSet<(String, String)>, Status> {
        let response = self.client.clone().list(ListPodResourcesRequest {}).await?;
        Ok(response.into_inner().pod_resources.into_iter().map(|pod| (pod.namespace, pod.name)).collect())
    }

    /// Healthy devices of kubelet's device manager, allocated or not.
    pub async fn allocatable(&self, filter: impl Fn(&str) -> bool) -> Result<ByResource, Status> {
        let response = self.client.clone().get_allocatable_resources(AllocatableResourcesRequest {}).await?;
        Ok(by_resource(response.into_inner().devices, filter))
    }
}

/// Owners of the devices of resources that pass `filter`.
pub fn owners(response: ListPodResourcesResponse, filter: impl Fn(&str) -> bool) -> Owners {
    let mut owners = Owners::new();
    for pod in response.pod_resources {
        for container in pod.containers {
            let owner =
                DeviceOwner { namespace: pod.namespace.clone(), pod: pod.name.clone(), container: container.name };
            let ids = container.devices.into_iter().filter(|d| filter(&d.resource_name)).flat_map(|d| d.device_ids);
            owners.extend(ids.map(|id| (DeviceId::new(id), owner.clone())));
        }
    }
    owners
}

/// Devices of resources that pass `filter`. kubelet splits a resource by NUMA node, and lists a device once for each.
pub fn by_resource(devices: Vec<ContainerDevices>, filter: impl Fn(&str) -> bool) -> ByResource {
    let mut all = ByResource::new();
    for part in devices.into_iter().filter(|part| filter(&part.resource_name)) {
        all.entry(part.resource_name).or_default().extend(part.device_ids.into_iter().map(DeviceId::new));
    }
    all
}
