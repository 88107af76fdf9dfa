//! What the daemons need of the node and the cluster, as functions that tests replace.

use std::{path::PathBuf, sync::Arc};

use futures::future::BoxFuture;
use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::{GpuGrant, names, reasons};
use gputenancy_nvml::ComputeMode;
use kube::{Api, Client};
use tonic::Status;

use super::{Error, state::Down};
use crate::{
    device::{DeviceOwner, Owners},
    event::{self, Publish},
    gpu::{Inventory, NvmlThread, Operation},
};

/// A function with one argument that waits for something.
pub type Call<A, T, E = Error> = Arc<dyn Fn(A) -> BoxFuture<'static, Result<T, E>> + Send + Sync>;

/// Functions and paths of the node.
#[derive(Clone)]
pub struct Host {
    /// The agent's folder for MPS, at the same path on the host.
    pub root: PathBuf,
    /// `/proc` with the host's processes.
    pub proc_root: PathBuf,
    /// `/sys/fs/cgroup` of the host.
    pub cgroup_root: PathBuf,
    /// Driver and boards, as NVML reported them last.
    pub inventory: Arc<dyn Fn() -> Option<Inventory> + Send + Sync>,
    /// Owners of devices, as kubelet reports them now.
    pub owners: Call<(), Owners>,
    /// The key of the tenant that a namespace belongs to; see [`super::tenancy::Tenancy`].
    pub tenant: Call<String, String>,
    /// Sets a GPU's compute mode: UUID, and whether one process alone may use it.
    pub set_exclusive: Call<(String, bool), ()>,
    /// Publishes an event.
    pub publish: Publish,
    /// Name of the node, and of its `GpuNode`.
    pub node: String,
}

/// Owners from this query of kubelet's pod resources API.
pub fn owners<F>(query: impl Fn() -> F + Send + Sync + 'static) -> Call<(), Owners>
where
    F: Future<Output = Result<Owners, Status>> + Send + 'static,
{
    Arc::new(move |()| {
        let owners = query();
        Box::pin(async move { owners.await.map_err(Error::Owners) })
    })
}

/// The tenant by the namespace's grant. Without the right to read grants each namespace counts as a tenant.
pub fn tenant(client: Client) -> Call<String, String> {
    Arc::new(move |namespace: String| {
        let grants: Api<GpuGrant> = Api::namespaced(client.clone(), &namespace);
        Box::pin(async move {
            match grants.get_opt(names::GRANT).await {
                Ok(Some(grant)) => Ok(format!("tenant-{}", grant.spec.tenant)),
                Ok(None) => Ok(format!("namespace-{namespace}")),
                Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(format!("namespace-{namespace}")),
                Err(error) => Err(Error::Grant { namespace, error }),
            }
        })
    })
}

/// Compute modes through NVML.
pub fn set_exclusive(nvml: NvmlThread) -> Call<(String, bool), ()> {
    Arc::new(move |(uuid, exclusive): (String, bool)| {
        let nvml = nvml.clone();
        Box::pin(async move {
            let mode = if exclusive { ComputeMode::ExclusiveProcess } else { ComputeMode::Default };
            let done = nvml.execute(&uuid, Operation::SetComputeMode { mode }).await?;
            done.map_err(|error| Error::ComputeMode { gpu: uuid, error })
        })
    })
}

/// Events about the end of a daemon: one on the node, and one on each pod that it took down.
pub fn notices(node: &str, gpu: &str, down: &Down) -> Vec<Notice> {
    let notice = |regarding, note| Notice {
        regarding,
        event_type: EventType::Warning,
        reason: reasons::MPS_DAEMON_ENDED,
        action: "Restart".to_owned(),
        note,
    };
    let of_node =
        format!("the MPS daemon of GPU {gpu} has ended and is restarted; pods that it took down: {}", down.pods());
    let of_pod = |owner: &DeviceOwner| {
        let text = format!(
            "the MPS daemon of GPU {gpu} on node {node} has ended, and with it the CUDA contexts of container {}: delete the pod if its program does not end by itself",
            owner.container
        );
        notice(event::pod(owner), text)
    };
    [notice(event::gpu_node(node), of_node)].into_iter().chain(down.owners.iter().map(of_pod)).collect()
}
