//! The device plugin service that kubelet calls, one for each resource.

mod check;
pub mod journal;
pub mod owner_lookup;
pub mod preferred;
pub mod serve;
pub mod watchers;

use std::{pin::Pin, sync::Arc};

use futures::{Stream, StreamExt};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use self::{owner_lookup::OwnerLookup, watchers::ListWatchers};
use super::{
    cdi,
    config::{Allocation, Config},
    device_list::{self, DeviceList},
    node::{
        requests::PodRequests,
        sandbox::{NotAdmitted, Sandboxes, is_limited},
    },
};
use crate::{
    device::{Device, DeviceId},
    enforcement::{Library, ShareFiles},
    grpc::proto::plugin::{self, device_plugin_server::DevicePlugin},
    handover::HandoverCheck,
    metrics::Metrics,
    mps::{self, Mps, share::FolderMount},
    refusal::NotLimited,
};

/// The plugin of one resource.
#[derive(Clone)]
pub struct Plugin {
    /// Its extended resource.
    pub resource: String,
    /// Owners and allocations.
    pub lookup: OwnerLookup,
    /// Processes that still use devices.
    pub handover: HandoverCheck,
    /// Daemons of MPS shares.
    pub mps: Option<Mps>,
    /// The library that limits memory, if it does on this node.
    pub shim: Option<Library>,
    /// Which pods run in a sandbox, which does not get that library.
    pub sandboxes: Option<Sandboxes>,
    /// What the pods of this node request.
    pub requests: watch::Receiver<Option<PodRequests>>,
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

/// Options of the plugin, for its registration and for kubelet's query. Only MPS shares need a call before each start of a container:
/// with it, no container of the resource is restarted while the agent does not run.
pub fn options(plugin: &Plugin) -> plugin::DevicePluginOptions {
    let devices = plugin.lookup.journal.devices();
    let own = devices.values().filter(|device| device.resource == plugin.resource);
    let pre_start_required = own.into_iter().any(|device| mps::share::mps_share(device).is_some());
    plugin::DevicePluginOptions { pre_start_required, get_preferred_allocation_available: true }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<plugin::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<plugin::Empty>,
    ) -> Result<Response<plugin::DevicePluginOptions>, Status> {
        Ok(Response::new(options(self)))
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
            let (available, connections) = self.candidates(&available).await;
            let must = ids(request.must_include_device_i_ds);
            let size = usize::try_from(request.allocation_size).unwrap_or(0);
            let chosen = preferred::choose(&available, &must, size, self.lookup.journal.policy(), &connections);
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
            let _request = self.lookup.journal.request(&ids);
            let sandboxed = self.sandboxed(&ids).await.map_err(|error| {
                tracing::warn!(resource = self.resource, %error, "refused allocation");
                self.metrics.refused_allocation("Sandboxed");
                Status::failed_precondition(format!("{}: {error}", self.resource))
            })?;
            let devices = self.hand_over(&ids).await.map_err(|refusal| {
                tracing::warn!(resource = self.resource, %refusal, "refused allocation");
                self.metrics.refused_allocation(refusal.reason());
                Status::failed_precondition(format!("{}: {refusal}", self.resource))
            })?;
            self.renew_limits(&devices).map_err(|error| {
                tracing::warn!(resource = self.resource, %error, "refused allocation");
                self.metrics.refused_allocation("NotLimited");
                Status::failed_precondition(format!("{}: {error}", self.resource))
            })?;
            tracing::info!(resource = self.resource, devices = list(&ids), sandbox = sandboxed, "allocated devices");
            container_responses.push(response(&devices, &self.config, sandboxed.is_some()));
        }
        self.watchers.wake();
        Ok(Response::new(plugin::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<plugin::PreStartContainerRequest>,
    ) -> Result<Response<plugin::PreStartContainerResponse>, Status> {
        if let Some(mps) = &self.mps {
            let ids = ids(request.into_inner().devices_ids);
            mps.prepare(&ids, &self.lookup.journal.devices()).await.map_err(|refusal| {
                tracing::warn!(resource = self.resource, devices = list(&ids), %refusal, "refused start of container");
                Status::failed_precondition(format!("{}: {refusal}", self.resource))
            })?;
        }
        Ok(Response::new(plugin::PreStartContainerResponse {}))
    }
}

impl Plugin {
    /// The handler of the sandbox for which kubelet allocates these devices, if it does; or why it gets none. Only where containers get the library.
    async fn sandboxed(&self, requested: &[DeviceId]) -> Result<Option<String>, NotAdmitted> {
        let Some(sandboxes) = self.sandboxes.as_ref().filter(|_| self.shim.is_some()) else { return Ok(None) };
        let devices = self.lookup.journal.devices();
        let devices: Vec<&Device> = requested.iter().filter_map(|id| devices.get(id)).collect();
        if !devices.iter().any(|device| is_limited(device)) {
            return Ok(None);
        }
        let owners = self.lookup.owners().await.unwrap_or_default();
        sandboxes.admit(&self.resource, &devices, &owners).await
    }

    /// New limits and ledgers for a new container.
    fn renew_limits(&self, devices: &[Device]) -> Result<(), NotLimited> {
        let Some(shim) = &self.shim else { return Ok(()) };
        // a container has one ledger
        let mut limited = devices.iter().filter_map(|device| Some((device, ShareFiles::of(device, &shim.shares)?)));
        let (first, second) = (limited.next(), limited.next());
        if let Some((device, _)) = second {
            return Err(NotLimited::Second(device.id.clone()));
        }
        first.map_or(Ok(()), |(device, files)| {
            files.renew(device).map_err(|error| NotLimited::Unwritten(device.id.clone(), error))
        })
    }
}

/// The ids as one text for a log line.
fn list(ids: &[DeviceId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn ids(texts: Vec<String>) -> Vec<DeviceId> {
    texts.into_iter().map(DeviceId::new).collect()
}

/// The response that gives a container exactly these devices, `plain` without the library that limits memory.
fn response(devices: &[Device], config: &Config, plain: bool) -> plugin::ContainerAllocateResponse {
    match config.allocate {
        Allocation::Cdi => {
            let own = devices.iter().map(|device| cdi::qualified_name(device, plain));
            let names = own.chain(config.extra_cdi_devices.iter().cloned());
            let cdi_devices = names.map(|name| plugin::CdiDevice { name }).collect();
            plugin::ContainerAllocateResponse { cdi_devices, ..Default::default() }
        }
        Allocation::Envvar => {
            // NVIDIA's hook does not know numbers of shares
            let mut uuids: Vec<&str> = devices.iter().map(|device| device.id.uuid()).collect();
            uuids.dedup();
            let visible = ("NVIDIA_VISIBLE_DEVICES".to_owned(), uuids.join(","));
            let edits: Vec<_> = devices.iter().filter_map(|d| mps::share::edits(d, &config.mps_dir)).collect();
            let of_mps =
                edits.iter().flat_map(|e| e.env.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            let mount = |mount: &FolderMount| plugin::Mount {
                container_path: mount.container.to_owned(),
                host_path: mount.host.display().to_string(),
                read_only: true,
            };
            let mounts = edits.iter().flat_map(|e| e.mounts.iter().map(mount)).collect();
            let envs = [visible].into_iter().chain(of_mps).collect();
            plugin::ContainerAllocateResponse { envs, mounts, ..Default::default() }
        }
    }
}
