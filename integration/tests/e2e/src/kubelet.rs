//! Kubelet's gRPC interfaces, with the generated code of `agent/daemon/proto`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use gputenancy_crds::DeviceOwner;
use podresources::{ListPodResourcesRequest, pod_resources_lister_client::PodResourcesListerClient};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

/// The device plugin API.
#[allow(missing_docs, clippy::pedantic, reason = "generated code")]
pub mod plugin {
    include!("../../../../agent/daemon/proto/generated/v1beta1.rs");
}

/// The pod resources API.
#[allow(missing_docs, clippy::pedantic, reason = "generated code")]
mod podresources {
    include!("../../../../agent/daemon/proto/generated/v1.rs");
}

/// Limit for one call of [`PodResources`].
const TIMEOUT: Duration = Duration::from_secs(5);

/// The server at a socket. Connecting and each call have this limit.
///
/// # Errors
/// When the path is no address.
pub fn endpoint(socket: &Path, limit: Duration) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("unix:{}", socket.display()))?.connect_timeout(limit).timeout(limit))
}

/// The pod resources API of a node's kubelet.
#[derive(Debug, Clone)]
pub struct PodResources(PodResourcesListerClient<Channel>);

impl PodResources {
    /// At this socket, which the first call connects to.
    ///
    /// # Errors
    /// When the path is no address.
    pub fn at(socket: &Path) -> Result<Self, tonic::transport::Error> {
        Ok(Self(PodResourcesListerClient::new(endpoint(socket, TIMEOUT)?.connect_lazy())))
    }

    /// Owners of the devices of resources with this prefix, by the device's ID.
    ///
    /// # Errors
    /// Kubelet's.
    pub async fn owners(&self, prefix: &str) -> Result<BTreeMap<String, DeviceOwner>, Status> {
        let mut owners = BTreeMap::new();
        for pod in self.0.clone().list(ListPodResourcesRequest {}).await?.into_inner().pod_resources {
            for container in pod.containers {
                let (namespace, pod) = (pod.namespace.clone(), pod.name.clone());
                let owner = DeviceOwner { namespace, pod, container: container.name };
                let devices = container.devices.into_iter().filter(|d| d.resource_name.starts_with(prefix));
                owners.extend(devices.flat_map(|d| d.device_ids).map(|id| (id, owner.clone())));
            }
        }
        Ok(owners)
    }
}
