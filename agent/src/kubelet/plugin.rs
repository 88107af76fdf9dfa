//! The device plugin service that kubelet calls, one for each resource.

use std::{pin::Pin, sync::Arc, time::Instant};

use futures::{Stream, StreamExt};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    cdi,
    config::{Allocation, Config},
    device_list::{self, DeviceList},
    owner_lookup::OwnerLookup,
    preferred,
    proto::plugin::{self, device_plugin_server::DevicePlugin},
    watchers::ListWatchers,
};
use crate::{
    device::{Device, DeviceId},
    metrics::Metrics,
};

/// The plugin of one resource.
#[derive(Clone)]
pub struct Plugin {
    /// Its extended resource.
    pub resource: String,
    /// Owners and allocations.
    pub lookup: OwnerLookup,
    /// The published list.
    pub list: watch::Receiver<DeviceList>,
    /// Kubelet's open `ListAndWatch` calls.
    pub watchers: ListWatchers,
    /// Flags.
    pub config: Arc<Config>,
    /// Counts refusals.
    pub metrics: Metrics,
    /// Ends the open calls.
    pub stop: CancellationToken,
}

/// Options of the plugin, for its registration and for kubelet's query.
pub fn options() -> plugin::DevicePluginOptions {
    plugin::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<plugin::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<plugin::Empty>,
    ) -> Result<Response<plugin::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<plugin::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let open = self.watchers.open();
        tracing::info!(resource = self.resource, "kubelet watches device list");
        let lists = WatchStream::new(self.list.clone()).take_until(self.stop.clone().cancelled_owned());
        let responses = lists.map(move |list| {
            // dropped with the stream
            let _ = &open;
            Ok(device_list::response(&list))
        });
        Ok(Response::new(responses.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<plugin::PreferredAllocationRequest>,
    ) -> Result<Response<plugin::PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for request in request.into_inner().container_requests {
            let available = ids(request.available_device_i_ds);
            let allocated = self.lookup.allocated(&available).await;
            let available = self.lookup.journal.candidates(&available, &allocated);
            let must = ids(request.must_include_device_i_ds);
            let chosen = preferred::choose(&available, &must, usize::try_from(request.allocation_size).unwrap_or(0));
            let device_i_ds = chosen.iter().map(DeviceId::to_string).collect();
            container_responses.push(plugin::ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(plugin::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<plugin::AllocateRequest>,
    ) -> Result<Response<plugin::AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let ids = ids(container.devices_ids);
            let free = self.lookup.check_free(&ids).await;
            let devices = free.and_then(|()| self.lookup.journal.allocate(&self.resource, &ids, Instant::now()));
            let devices = devices.map_err(|refusal| {
                tracing::warn!(resource = self.resource, %refusal, "refused allocation");
                self.metrics.refused_allocation(refusal.reason());
                Status::failed_precondition(format!("{}: {refusal}", self.resource))
            })?;
            tracing::info!(resource = self.resource, devices = ?ids, "allocated devices");
            container_responses.push(response(&devices, &self.config));
        }
        self.watchers.wake();
        Ok(Response::new(plugin::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<plugin::PreStartContainerRequest>,
    ) -> Result<Response<plugin::PreStartContainerResponse>, Status> {
        Ok(Response::new(plugin::PreStartContainerResponse {}))
    }
}

fn ids(texts: Vec<String>) -> Vec<DeviceId> {
    texts.into_iter().map(DeviceId::new).collect()
}

/// The response that gives a container exactly these devices.
fn response(devices: &[Device], config: &Config) -> plugin::ContainerAllocateResponse {
    match config.allocate {
        Allocation::Cdi => {
            let own = devices.iter().map(|device| cdi::qualified_name(&device.id));
            let names = own.chain(config.extra_cdi_devices.iter().cloned());
            let cdi_devices = names.map(|name| plugin::CdiDevice { name }).collect();
            plugin::ContainerAllocateResponse { cdi_devices, ..Default::default() }
        }
        Allocation::Envvar => {
            let uuids: Vec<&str> = devices.iter().map(|device| device.id.as_str()).collect();
            let envs = [("NVIDIA_VISIBLE_DEVICES".to_owned(), uuids.join(","))].into();
            plugin::ContainerAllocateResponse { envs, ..Default::default() }
        }
    }
}
