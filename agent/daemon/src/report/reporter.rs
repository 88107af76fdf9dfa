//! The loop that builds the status from the latest state of all tasks, and has it written.

use std::time::{Duration, Instant};

use gputenancy_crds::GpuNodeStatus;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use tokio::{sync::watch, time::sleep};

use super::{
    StatusInput,
    gpu_node::Watched,
    status, without_inventory,
    writer::{DEBOUNCE, RateLimit, WriteOutcome, Writer},
};
use crate::{
    attribution::Attributed,
    audit::Bypasses,
    device::{Device, DeviceOwner, DeviceView, KubeletView},
    enforcement::{OtherLimits, ShareSizes},
    gpu::{
        Calls,
        processes::process_origin::{Origins, command},
    },
    kubelet::node::sandbox::Sandboxes,
    mps::MpsView,
    partition::PartitionState,
};

/// Interval of reports without a change, which notice a hanging call.
const INTERVAL: Duration = Duration::from_secs(5);
/// Delay after a status that was not written.
const RETRY: Duration = Duration::from_secs(3);

/// Reports the state of the node.
pub struct Reporter {
    /// The `GpuNode`: its first status, and whether it was overwritten.
    pub watched: watch::Receiver<Watched>,
    /// Inventory and progress.
    pub state: watch::Receiver<PartitionState>,
    /// The devices.
    pub view: watch::Receiver<DeviceView>,
    /// How kubelet uses them.
    pub kubelet: watch::Receiver<KubeletView>,
    /// The MPS daemons.
    pub mps: watch::Receiver<MpsView>,
    /// Processes by container.
    pub attributed: watch::Receiver<Attributed>,
    /// Shares whose memory limit is bypassed.
    pub bypasses: watch::Receiver<Bypasses>,
    /// Memory of containers on fractions.
    pub sizes: watch::Receiver<ShareSizes>,
    /// Limits that other products give to pods.
    pub other_limits: watch::Receiver<OtherLimits>,
    /// The NVML call in progress.
    pub calls: Calls,
    /// Where processes come from.
    pub origins: Origins,
    /// Which pods run in a sandbox.
    pub sandboxes: Option<Sandboxes>,
    /// The node's boot id.
    pub boot_id: String,
    /// Writes the status.
    pub writer: Writer,
}

impl Reporter {
    /// Reports for as long as it is polled.
    pub async fn run(&mut self) {
        let known = self.watched.wait_for(|watched| watched.desired.is_some()).await;
        let Ok(first) = known.map(|watched| watched.first_status.clone()) else { return };
        let earlier = first.clone().unwrap_or_default();
        let mut conditions = earlier.conditions.clone();
        self.writer.continue_from(first);
        let (mut limit, mut overwritten) = (RateLimit::new(Instant::now()), 0);
        loop {
            let (mut pause, mut outcome) = (INTERVAL, WriteOutcome::Unchanged);
            if let Some(status) = self.status(&conditions, &earlier) {
                conditions.clone_from(&status.conditions);
                match self.writer.delay(&status, Instant::now()) {
                    Some(delay) => pause = delay,
                    None => outcome = self.writer.write(status).await,
                }
            }
            match outcome {
                WriteOutcome::Unchanged => {}
                WriteOutcome::Written => sleep(limit.after_write(Instant::now())).await,
                WriteOutcome::Failed => {
                    sleep(RETRY).await;
                    continue;
                }
            }
            self.changed(pause).await;
            let now = self.watched.borrow_and_update().overwritten;
            if std::mem::replace(&mut overwritten, now) != now {
                self.writer.forget();
            }
            sleep(DEBOUNCE).await;
        }
    }

    /// Reports that the agent has stopped.
    pub async fn stopped(&mut self) {
        self.writer.write_stopped(Timestamp::now()).await;
    }

    /// The status of now; `None` while the status of an earlier run is better. `old`: the conditions of the latest one.
    fn status(&mut self, old: &[Condition], earlier: &GpuNodeStatus) -> Option<GpuNodeStatus> {
        let (origins, sandboxes) = (&self.origins, &self.sandboxes);
        let origin = |pid: u32| (command(&origins.proc_root, pid), origins.of(pid));
        let sandbox = |device: &Device, owner: &DeviceOwner| sandboxes.as_ref()?.of(device, owner);
        let state = self.state.borrow_and_update();
        let input = StatusInput {
            state: &state,
            view: &self.view.borrow_and_update(),
            mps: &self.mps.borrow_and_update(),
            kubelet: &self.kubelet.borrow_and_update(),
            processes: &self.attributed.borrow_and_update(),
            sandbox: &sandbox,
            bypasses: &self.bypasses.borrow_and_update(),
            sizes: &self.sizes.borrow_and_update(),
            other_limits: &self.other_limits.borrow_and_update(),
            nvml_call: self.calls.in_progress(),
            origin: &origin,
            boot_id: &self.boot_id,
            simulated: is_simulated(&state),
            old,
            earlier,
        };
        match (&state.inventory, &state.nvml_error) {
            // before the first spec the earlier status is better than "unmanaged"
            (Some(_), None) if state.generation.is_none() => None,
            (Some(_), _) => Some(status(&input, Timestamp::now())),
            (None, Some(_)) => Some(without_inventory(&input, Timestamp::now())),
            (None, None) => None,
        }
    }

    /// Waits for a change, at most this long.
    async fn changed(&mut self, most: Duration) {
        tokio::select! {
            Ok(()) = self.watched.changed() => {}
            Ok(()) = self.state.changed() => {}
            Ok(()) = self.view.changed() => {}
            Ok(()) = self.kubelet.changed() => {}
            Ok(()) = self.mps.changed() => {}
            Ok(()) = self.attributed.changed() => {}
            Ok(()) = self.bypasses.changed() => {}
            Ok(()) = self.sizes.changed() => {}
            Ok(()) = self.other_limits.changed() => {}
            () = sleep(most) => {}
        }
    }
}

/// The simulated driver keeps its state below its own root.
fn is_simulated(state: &PartitionState) -> bool {
    let root = state.inventory.as_ref().and_then(|inventory| inventory.driver_root.as_ref());
    root.is_some_and(|root| root.local.join("run/nvsim").is_dir())
}
