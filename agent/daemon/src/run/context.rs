//! What the tasks share.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use gputenancy_cluster::{client, error::sentence, events::Publisher};
use kube::{Client, Config};
use tokio::sync::{Notify, watch};

use super::{Error, channels::Channels};
use crate::{
    args::Args,
    enforcement::{SHARES, driver::Cgroups},
    event,
    forbidden_variables::runtime::Runtime,
    gpu::{
        Calls, Deadlines, LatestInventory, NvmlThread,
        processes::process_origin::{LOGS, Origins},
    },
    grpc::pod_resources::PodResources,
    handover::{HandoverCheck, Policy, ProcessPolicy, Terminator},
    kubelet::{
        config::{Allocation, MemoryLimits},
        node::sandbox::Sandboxes,
        plugin::owner_lookup::OwnerLookup,
    },
    metrics::Metrics,
    mps::{
        Mps,
        host::{self, Host},
    },
    partition::PartitionState,
    seen_pods::SeenPods,
    warm_up::WarmUp,
};

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// What the tasks share. Clones of each field are the same thing.
pub struct Context {
    /// The flags.
    pub args: Args,
    /// The API server; a refusal notifies `refused`.
    pub client: Client,
    /// The API server, for the check of the rights: its refusals notify nothing.
    pub rights_client: Client,
    /// The API server has refused a request.
    pub refused: Arc<Notify>,
    /// What the tasks exchange.
    pub channels: Channels,
    /// Metrics.
    pub metrics: Metrics,
    /// Publishes events.
    pub publish: event::Publish,
    /// The NVML call in progress.
    pub calls: Calls,
    /// The thread that calls NVML.
    pub nvml: NvmlThread,
    /// The node's boot id.
    pub boot_id: String,
    /// Pods that exist or existed.
    pub seen: SeenPods,
    /// Which answers of kubelet are believed.
    pub warm_up: WarmUp,
    /// Where processes come from.
    pub origins: Origins,
    /// Reads the processes on devices.
    pub handover: HandoverCheck,
    /// Daemons of MPS shares.
    pub mps: Mps,
    /// Which pods run in a sandbox; none where no container gets the library that limits memory.
    pub sandboxes: Option<Sandboxes>,
}

impl Context {
    /// Connects to the API server and starts the thread for NVML.
    pub async fn new(args: Args) -> Result<Self, Error> {
        let config = Config::infer().await.map_err(|error| format!("no cluster: {error}"))?;
        let refused = Arc::new(Notify::new());
        let rights_client = client::named(config.clone(), "").map_err(|error| sentence(&error))?;
        let client = gputenancy_cluster::rights::client(config, refused.clone()).map_err(|error| sentence(&error))?;
        let (channels, metrics, warm_up, seen) =
            (Channels::default(), Metrics::default(), WarmUp::default(), SeenPods::default());
        let calls = Calls::new(metrics.clone());
        let nvml = NvmlThread::start(args.paths(), calls.clone(), Deadlines::default())
            .map_err(|error| format!("starting the thread for NVML: {error}"))?;
        let publisher = Publisher::new(client.clone(), "gputenancy.io/agent", &args.plugin.node_name);
        let publish = event::publish(publisher);
        let logs = args.plugin.host_root.join(LOGS);
        let origins = Origins { proc_root: "/proc".into(), logs, pods: seen.clone() };
        let lookup = OwnerLookup::new(&args.plugin, channels.requests.subscribe(), warm_up.clone());
        let mps = Mps::new(Host {
            root: args.plugin.mps_dir.clone(),
            proc_root: origins.proc_root.clone(),
            cgroup_root: CGROUPS.into(),
            inventory: inventory(channels.state.subscribe()),
            owners: host::owners(move || {
                let lookup = lookup.clone();
                async move { lookup.owners().await }
            }),
            tenant: host::tenant(client.clone()),
            set_exclusive: host::set_exclusive(nvml.clone()),
            publish: publish.clone(),
            node: args.plugin.node_name.clone(),
        });
        Ok(Self {
            client,
            rights_client,
            refused,
            metrics,
            publish,
            calls,
            boot_id: boot_id(&args.plugin.host_root),
            seen,
            warm_up,
            handover: HandoverCheck::through(nvml.clone(), origins.clone()),
            nvml,
            origins,
            mps,
            sandboxes: sandboxes(&args, &channels),
            channels,
            args,
        })
    }

    /// Name of the node, and of its `GpuNode`.
    pub fn node(&self) -> String {
        self.args.plugin.node_name.clone()
    }

    /// Driver and boards, as NVML reported them last.
    pub fn inventory(&self) -> LatestInventory {
        inventory(self.channels.state.subscribe())
    }

    /// Folder of the shares' files.
    pub fn shares(&self) -> PathBuf {
        self.args.plugin.enforcement_dir.join(SHARES)
    }

    /// Finds the cgroups of containers.
    pub fn cgroups(&self) -> Cgroups {
        // the agent's own mount has the host's cgroups with version 2; with version 1 only the host's root has
        let roots = vec![CGROUPS.into(), self.args.plugin.host_root.join(CGROUPS.trim_start_matches('/'))];
        Cgroups::new(roots, self.origins.logs.clone())
    }

    /// The container runtime of this node.
    pub fn runtime(&self) -> Runtime {
        Runtime::new(&self.args.plugin.host_root, self.args.runtime_socket.as_deref())
    }

    /// How processes are found, and whether those that keep a device are ended.
    pub fn process_policy(&self) -> ProcessPolicy {
        let terminator = || Terminator {
            deadline: self.args.unattributed_deadline,
            origins: self.origins.clone(),
            pod_resources: PodResources::at(&self.args.plugin.pod_resources_socket()),
            metrics: self.metrics.clone(),
        };
        ProcessPolicy {
            origins: self.origins.clone(),
            terminator: (self.args.unattributed_processes == Policy::Terminate).then(terminator),
        }
    }
}

fn inventory(state: watch::Receiver<PartitionState>) -> LatestInventory {
    Arc::new(move || state.borrow().inventory.clone())
}

fn sandboxes(args: &Args, channels: &Channels) -> Option<Sandboxes> {
    let limited = args.plugin.memory_limits == MemoryLimits::Shim && args.plugin.allocate == Allocation::Cdi;
    limited.then(|| Sandboxes {
        handlers: args.plugin.sandboxed_handlers.as_slice().into(),
        classes: channels.classes.subscribe(),
        requests: channels.requests.subscribe(),
        view: channels.view.subscribe(),
        kubelet: channels.kubelet.subscribe(),
    })
}

/// The node's boot id; a container's own `/proc` may have another.
fn boot_id(host_root: &Path) -> String {
    let file = "proc/sys/kernel/random/boot_id";
    let read = |root: &Path| std::fs::read_to_string(root.join(file));
    let id = read(host_root).or_else(|_| read(Path::new("/"))).unwrap_or_default();
    id.trim().to_owned()
}
