//! The GPU processes of this node by container: those that NVML lists, and those that only have the device file of a GPU open; and memory that none of
//! them explains.
//!
//! [`gputenancy_agent_core::attribution`] decides which container each process is of, and what the status lists of it; this loop reads the files and the
//! [`tenants`] of namespaces, and publishes metrics, events and what the status lists.

mod notices;
pub mod tenants;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_agent_core::attribution::{
    containers::{Containers, Memory, STEP_MIB, in_steps, text},
    memory::{Ghosts, all_layers},
    processes::{GpuProcesses, pods, processes},
};
use gputenancy_crds::{GhostMemory, Holder};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::{notices::ghost_memory, tenants::Tenants};
use crate::{
    device_memory::{Ghost, Place},
    event::Publish,
    gpu::{
        Inventory,
        processes::{
            device_files::gpu_holders,
            process_origin::{Origins, command},
        },
    },
    metrics::Metrics,
    partition::PartitionState,
    send_if_changed, to_i32,
};

/// Interval of the reads of open files. A process that NVML does not list appears when two reads have found it, so that short programs such as
/// nvidia-smi change no status; all others with the first one. Each appears within ten seconds.
const INTERVAL: Duration = Duration::from_secs(4);
/// After this time an event is given up.
const PUBLISH_LIMIT: Duration = Duration::from_secs(30);
/// Most processes listed for one GPU.
const MOST: usize = 8;

/// Unattributed processes that NVML does not list, by UUID of the GPU.
pub type Unlisted = BTreeMap<String, Vec<Holder>>;

/// What the status lists of processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributed {
    /// Unattributed processes that NVML does not list.
    pub unlisted: Unlisted,
    /// Containers with processes on each device.
    pub containers: Containers,
    /// Memory that no living process explains, by UUID of the GPU.
    pub ghosts: BTreeMap<String, Vec<GhostMemory>>,
}

/// Attributes the processes of a node.
pub struct Attributor {
    /// The latest inventory, with the owners of devices.
    pub state: watch::Receiver<PartitionState>,
    /// What the status lists.
    pub attributed: watch::Sender<Attributed>,
    /// Where processes come from.
    pub origins: Origins,
    /// Reads the tenants of namespaces.
    pub tenants: tenants::Read,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// Publishes events.
    pub publish: Publish,
    /// Name of the node.
    pub node: String,
}

impl Attributor {
    /// Publishes for as long as it is polled.
    pub async fn run(self) {
        let Self { state, attributed, origins, metrics, .. } = &self;
        let (mut before, mut known) = (BTreeMap::new(), BTreeMap::new());
        let (mut tenants, mut shown) = (Tenants::new(self.tenants.clone()), Memory::default());
        let mut ghosts = Ghosts::default();
        loop {
            sleep(INTERVAL).await;
            let proc_root = origins.proc_root.clone();
            // reading the files of thousands of processes blocks
            let Ok(open) = tokio::task::spawn_blocking(move || gpu_holders(&proc_root)).await else { continue };
            let (inventory, owners, answered) = {
                let state = state.borrow();
                let (inventory, owners) = (state.inventory.clone(), state.owners.clone());
                (inventory.unwrap_or_default(), owners.unwrap_or_default(), state.nvml_error.is_none())
            };
            let now = processes(&inventory, &owners, &open, &|pid| origins.of(pid));
            let at = Instant::now();
            let ghosts = if answered {
                ghosts.find(&inventory, &now, at)
            } else {
                // the inventory is that of before, and processes in it may have ended since
                ghosts.keep_only(&known);
                known.clone()
            };
            self.count(&inventory, &now, &ghosts);
            metrics.set_pods(pods(&inventory, &owners));
            let tenants = tenants.of(namespaces(&now), at).await;
            let found = Attributed {
                unlisted: twice(&before, &now, &|pid| command(&origins.proc_root, pid)),
                containers: shown.show(&now, &tenants, at),
                ghosts: listed(&inventory, &ghosts, &attributed.borrow().ghosts),
            };
            send_if_changed(attributed, found);
            for (place, ghost) in ghosts.iter().filter(|(place, _)| !known.contains_key(*place)) {
                tokio::spawn(timeout(PUBLISH_LIMIT, (self.publish)(ghost_memory(&self.node, place, ghost))));
            }
            (before, known) = (now, ghosts);
        }
    }

    fn count(
        &self,
        inventory: &Inventory,
        processes: &BTreeMap<String, GpuProcesses>,
        ghosts: &BTreeMap<Place, Ghost>,
    ) {
        self.metrics.set_processes(processes.iter().flat_map(|(uuid, gpu)| {
            gpu.listed.iter().map(|(container, count)| (uuid.as_str(), container.as_ref(), *count))
        }));
        self.metrics
            .set_unlisted_processes(processes.iter().map(|(uuid, gpu)| (uuid.as_str(), gpu.unlisted.len() as u64)));
        self.metrics.set_memory(&all_layers(inventory), ghosts);
    }
}

/// Namespaces of pods with processes that NVML lists.
fn namespaces(processes: &BTreeMap<String, GpuProcesses>) -> BTreeSet<&str> {
    let containers = processes.values().flat_map(|gpu| gpu.groups.keys());
    containers.filter_map(|(_, container)| Some(container.as_ref()?.namespace.as_str())).collect()
}

/// Ghosts as the status lists them. Memory that has changed by less than a step is as `before`.
fn listed(
    inventory: &Inventory,
    ghosts: &BTreeMap<Place, Ghost>,
    before: &BTreeMap<String, Vec<GhostMemory>>,
) -> BTreeMap<String, Vec<GhostMemory>> {
    let mut all: BTreeMap<String, Vec<GhostMemory>> = BTreeMap::new();
    for ((uuid, gi), Ghost { pids, bytes }) in ghosts {
        let mut instances = inventory.gpu(uuid).into_iter().flat_map(|gpu| &gpu.instances);
        let start = instances.find(|instance| Some(instance.gi) == *gi).map(|instance| to_i32(instance.start));
        let known = before.get(uuid).into_iter().flatten().find(|ghost| ghost.start == start);
        let near = known.filter(|ghost| {
            let shown = ghost.memory.mib().ok().and_then(|mib| u64::try_from(mib).ok());
            shown.is_some_and(|mib| mib.abs_diff(bytes >> 20) < STEP_MIB)
        });
        let memory = near.map_or_else(|| text(in_steps(*bytes)), |ghost| ghost.memory.clone());
        let pids = pids.iter().take(MOST).map(|pid| i64::from(*pid)).collect();
        all.entry(uuid.clone()).or_default().push(GhostMemory { start, pids, memory });
    }
    all
}

/// Processes that both reads have found.
fn twice(
    before: &BTreeMap<String, GpuProcesses>,
    now: &BTreeMap<String, GpuProcesses>,
    command: &dyn Fn(u32) -> String,
) -> Unlisted {
    let of_gpu = |(uuid, gpu): (&String, &GpuProcesses)| {
        let known = before.get(uuid)?;
        let both = gpu.unlisted.iter().filter(|(pid, container)| known.unlisted.get(pid) == Some(container));
        let holder = |(pid, container): (&u32, &Option<_>)| Holder {
            pid: i64::from(*pid),
            command: command(*pid),
            start: None,
            container: container.clone(),
        };
        let listed: Vec<Holder> = both.take(MOST).map(holder).collect();
        (!listed.is_empty()).then(|| (uuid.clone(), listed))
    };
    now.iter().filter_map(of_gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(unlisted: &[u32]) -> BTreeMap<String, GpuProcesses> {
        let unlisted = unlisted.iter().map(|pid| (*pid, None)).collect();
        [("GPU-a".to_owned(), GpuProcesses { unlisted, ..GpuProcesses::default() })].into()
    }

    #[test]
    fn process_is_listed_when_two_reads_have_found_it() {
        let listed = |before: &[u32], now: &[u32]| -> Vec<(i64, String)> {
            let listed = twice(&gpus(before), &gpus(now), &|pid| format!("command-{pid}"));
            listed.into_values().flatten().map(|holder| (holder.pid, holder.command)).collect()
        };
        assert_eq!(listed(&[7, 8], &[8, 9]), [(8, "command-8".to_owned())]);
        assert!(listed(&[7], &[9]).is_empty());
        assert!(twice(&BTreeMap::new(), &gpus(&[7]), &|_| String::new()).is_empty());
    }
}
