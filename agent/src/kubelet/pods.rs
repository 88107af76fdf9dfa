//! What kubelet tells about its devices: who owns them, and which its device manager could give away.

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

/// A kubelet that takes longer is as good as away.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Devices by resource.
pub type ByResource = BTreeMap<String, BTreeSet<DeviceId>>;

/// The pod resources API of this node's kubelet.
#[derive(Debug, Clone)]
pub struct PodResources {
    client: PodResourcesListerClient<Channel>,
}

impl PodResources {
    /// By the socket's path; nothing is connected yet.
    pub fn at(socket: &Path) -> Self {
        // 16 MiB: a node's whole list, far above tonic's default for hundreds of pods
        let client = PodResourcesListerClient::new(uds::lazy(socket, TIMEOUT)).max_decoding_message_size(16 << 20);
        Self { client }
    }

    /// Which pods hold which devices of resources that pass `ours`.
    pub async fn owners(&self, ours: impl Fn(&str) -> bool) -> Result<Owners, Status> {
        let answer = self.client.clone().list(ListPodResourcesRequest {}).await?;
        Ok(owners(answer.into_inner(), ours))
    }

    /// Devices that kubelet's device manager has as healthy, given away or not.
    pub async fn allocatable(&self, ours: impl Fn(&str) -> bool) -> Result<ByResource, Status> {
        let answer = self.client.clone().get_allocatable_resources(AllocatableResourcesRequest {}).await?;
        Ok(by_resource(answer.into_inner().devices, ours))
    }
}

fn owners(answer: ListPodResourcesResponse, ours: impl Fn(&str) -> bool) -> Owners {
    let mut owners = Owners::new();
    for pod in answer.pod_resources {
        for container in pod.containers {
            let owner =
                DeviceOwner { namespace: pod.namespace.clone(), pod: pod.name.clone(), container: container.name };
            let ids = container.devices.into_iter().filter(|d| ours(&d.resource_name)).flat_map(|d| d.device_ids);
            owners.extend(ids.map(|id| (DeviceId::new(id), owner.clone())));
        }
    }
    owners
}

/// kubelet splits a resource by NUMA node, and names a device once for each.
fn by_resource(devices: Vec<ContainerDevices>, ours: impl Fn(&str) -> bool) -> ByResource {
    let mut all = ByResource::new();
    for part in devices.into_iter().filter(|part| ours(&part.resource_name)) {
        all.entry(part.resource_name).or_default().extend(part.device_ids.into_iter().map(DeviceId::new));
    }
    all
}
