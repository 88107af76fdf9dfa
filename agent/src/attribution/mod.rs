//! The GPU processes of this node by container: those that NVML lists, and those that only have the device file of a GPU open.
//!
//! [`processes`] decides from the inventory and the open files; this loop reads the files, and publishes metrics and what the status lists.

pub mod processes;

use std::{collections::BTreeMap, time::Duration};

use gputenancy_crds::Holder;
use tokio::{sync::watch, time::sleep};

use self::processes::{GpuProcesses, pods, processes};
use crate::{
    gpu::{
        device_files::gpu_holders,
        process_origin::{Origins, command},
    },
    metrics::Metrics,
    partition::PartitionState,
    send_if_changed,
};

/// Interval of the reads of open files. A process is listed when two reads have found it, so that short programs such as nvidia-smi change
/// no status; a process appears within ten seconds.
const INTERVAL: Duration = Duration::from_secs(4);
/// Most processes listed for one GPU.
const MOST: usize = 8;

/// Unattributed processes that NVML does not list, by UUID of the GPU.
pub type Unlisted = BTreeMap<String, Vec<Holder>>;

/// Publishes for as long as it is polled.
pub async fn run(
    state: watch::Receiver<PartitionState>,
    origins: &Origins,
    metrics: &Metrics,
    unlisted: &watch::Sender<Unlisted>,
) {
    let mut before = BTreeMap::new();
    loop {
        sleep(INTERVAL).await;
        let proc_root = origins.proc_root.clone();
        // reading the files of thousands of processes blocks
        let Ok(open) = tokio::task::spawn_blocking(move || gpu_holders(&proc_root)).await else { continue };
        let (inventory, owners) = {
            let state = state.borrow();
            (state.inventory.clone().unwrap_or_default(), state.owners.clone().unwrap_or_default())
        };
        let now = processes(&inventory, &owners, &open, &|pid| origins.of(pid));
        metrics.set_pods(pods(&inventory, &owners));
        metrics.set_processes(now.iter().flat_map(|(uuid, gpu)| {
            gpu.listed.iter().map(|(container, count)| (uuid.as_str(), container.as_ref(), *count))
        }));
        metrics.set_unlisted_processes(now.iter().map(|(uuid, gpu)| (uuid.as_str(), gpu.unlisted.len() as u64)));
        send_if_changed(unlisted, twice(&before, &now, &|pid| command(&origins.proc_root, pid)));
        before = now;
    }
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
