//! The device plugin that kubelet talks to: one for each resource.

use std::{pin::Pin, sync::Arc, time::Instant};

use futures::{Stream, StreamExt};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    cdi,
    config::Allocation,
    holders::Holders,
    listeners::Listeners,
    offer::{self, Offer},
    preferred,
    proto::plugin::{self, device_plugin_server::DevicePlugin},
};
use crate::{
    device::{Device, DeviceId},
    metrics::Metrics,
};

/// What containers are given besides the choice of device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// How a container gets its device.
    pub allocation: Allocation,
    /// CDI devices that every container with a GPU gets besides its own.
    pub extra_cdi_devices: Vec<String>,
}

/// The plugin of one resource.
#[derive(Clone)]
pub struct Plugin {
    /// Extended resource that it serves.
    pub resource: String,
    /// Who may be given what, and who has what.
    pub holders: Holders,
    /// The list to tell kubelet.
    pub offer: watch::Receiver<Offer>,
    /// Counts kubelet's open `ListAndWatch` calls.
    pub listeners: Listeners,
    /// What containers are given.
    pub terms: Arc<Terms>,
    /// Counts what was refused.
    pub metrics: Metrics,
    /// Ends the open calls.
    pub stop: CancellationToken,
}

/// What kubelet is told about the plugin, both when it registers and when it is asked.
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
        let presence = self.listeners.enter();
        tracing::info!(resource = self.resource, "kubelet listens");
        let lists = WatchStream::new(self.offer.clone()).take_until(self.stop.clone().cancelled_owned());
        let messages = lists.map(move |offer| {
            // lives as long as the stream
            let _ = &presence;
            Ok(offer::message(&offer))
        });
        Ok(Response::new(messages.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<plugin::PreferredAllocationRequest>,
    ) -> Result<Response<plugin::PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for request in request.into_inner().container_requests {
            let available = ids(request.available_device_i_ds);
            let taken = self.holders.taken(&available).await;
            let available = self.holders.ledger.candidates(&available, &taken);
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
            let wanted = ids(container.devices_ids);
            let free = self.holders.free(&wanted).await;
            let given = free.and_then(|()| self.holders.ledger.grant(&self.resource, &wanted, Instant::now()));
            let given = given.map_err(|refused| {
                tracing::warn!(resource = self.resource, %refused, "refused an allocation");
                self.metrics.refused_allocation(refused.reason());
                Status::failed_precondition(format!("{}: {refused}", self.resource))
            })?;
            tracing::info!(resource = self.resource, devices = ?wanted, "gave devices to a container");
            container_responses.push(answer(&given, &self.terms));
        }
        self.listeners.nudge();
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

/// What a container needs so that it gets exactly these devices.
pub fn answer(devices: &[Device], terms: &Terms) -> plugin::ContainerAllocateResponse {
    match terms.allocation {
        Allocation::Cdi => {
            let own = devices.iter().map(|device| cdi::qualified_name(&device.id));
            let names = own.chain(terms.extra_cdi_devices.iter().cloned());
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
