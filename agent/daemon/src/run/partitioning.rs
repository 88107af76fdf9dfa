//! When the GPUs are scanned.

use std::time::{Duration, Instant};

use tokio::{sync::watch, time::sleep};

use crate::{
    device::KubeletView,
    gpu::Scan,
    partition::{PartitionState, Reconciler},
    report::gpu_node::Watched,
};

/// Interval of scans when nothing is expected to change.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of scans while a GPU is in progress.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);
/// The pause between scans is at least this multiple of a scan's duration: with thousands of open files a scan is expensive.
const DUTY_CYCLE: u32 = 4;
/// Interval of scans while devices are withdrawn, after [`BUSY_SCANS`] scans without a change: a drain may take hours.
const DRAIN_INTERVAL: Duration = Duration::from_secs(1);
/// Scans after the latest change at which a withdrawn device is likely to become unused soon.
const BUSY_SCANS: u32 = 300;
/// Every so many idle scans one is full, which finds the changes of other programs.
const FULL_SCAN_EVERY: u32 = 15;

/// Partitions the GPUs as the `GpuNode` says.
pub struct Partitioning {
    /// The desired layout.
    pub watched: watch::Receiver<Watched>,
    /// Owners of devices, and the view that kubelet has applied.
    pub kubelet: watch::Receiver<KubeletView>,
    /// The state that the reconciler publishes.
    pub state: watch::Receiver<PartitionState>,
    /// Start of the latest reconcile.
    pub heartbeat: watch::Sender<Instant>,
    /// Executes the operations, and publishes devices and state.
    pub reconciler: Reconciler,
}

impl Partitioning {
    /// Reconciles for as long as it is polled.
    pub async fn run(self) {
        let Self { mut watched, mut kubelet, state, heartbeat, mut reconciler } = self;
        let (mut scan, mut scans, mut unchanged) = (Scan::Full, 0_u32, 0_u32);
        loop {
            heartbeat.send_replace(Instant::now());
            let desired = watched.borrow_and_update().desired.clone();
            kubelet.mark_unchanged();
            if reconciler.reconcile(desired.as_ref(), scan).await {
                scan = Scan::Full;
                continue;
            }
            let in_progress = state.borrow().is_in_progress();
            let draining = desired.is_some_and(|desired| desired.has_withdrawn());
            let busy = BUSY_INTERVAL.max(reconciler.scan_took() * DUTY_CYCLE);
            let pause = match (in_progress, draining) {
                (true, _) => busy.min(reconciler.until_proven().unwrap_or(busy)),
                (false, true) if unchanged < BUSY_SCANS => busy,
                (false, true) => DRAIN_INTERVAL.max(busy),
                (false, false) => IDLE_INTERVAL,
            };
            unchanged = unchanged.saturating_add(1);
            scan = tokio::select! {
                Ok(()) = watched.changed() => {
                    unchanged = 0;
                    Scan::Full
                }
                Ok(()) = kubelet.changed() => {
                    unchanged = 0;
                    if in_progress || draining {
                        Scan::Quick
                    } else {
                        // owners are published with a scan after them; this makes one scan of many pods
                        sleep(busy).await;
                        idle_scan(&mut scans)
                    }
                }
                () = sleep(pause) => idle_scan(&mut scans),
            };
        }
    }
}

fn idle_scan(scans: &mut u32) -> Scan {
    *scans = scans.wrapping_add(1);
    if scans.is_multiple_of(FULL_SCAN_EVERY) { Scan::Full } else { Scan::Quick }
}
