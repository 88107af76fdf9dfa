//! Tells every pod that a fault of its GPU concerns. NVML reports the fault, and kubelet the owners of the GPU's devices; [`affected`]
//! decides which pods hear what, and this loop publishes it.

mod affected;

use futures::future::BoxFuture;
use gputenancy_service::events::Notice;
use tokio::sync::watch;

pub use affected::{Incident, notices};

use crate::{device::Owners, gpu::fault_class::FaultClass, metrics::Metrics, partition::PartitionState};

/// Publishes the faults of this node's GPUs, for ever.
pub async fn run<P>(mut state: watch::Receiver<PartitionState>, node: &str, metrics: &Metrics, publish: P)
where
    P: Fn(Notice) -> BoxFuture<'static, ()>,
{
    let mut seen = Seen::default();
    while state.changed().await.is_ok() {
        let found = seen.incidents(&state.borrow_and_update());
        for incident in found {
            metrics.gpu_fault(class_name(FaultClass::of(incident.fault.kind)));
            for notice in notices(node, &incident) {
                publish(notice).await;
            }
        }
    }
}

fn class_name(class: FaultClass) -> &'static str {
    match class {
        FaultClass::Application => "application",
        FaultClass::Hardware => "hardware",
        FaultClass::Node => "node",
    }
}

/// What was published, and the owners at the scan before: a container may have ended through the fault by the time it is read.
#[derive(Default)]
struct Seen {
    last: u64,
    owners: Owners,
}

impl Seen {
    /// Faults that were not published yet, oldest first.
    fn incidents(&mut self, state: &PartitionState) -> Vec<Incident> {
        let now = state.owners.clone().unwrap_or_default();
        let mut owners = std::mem::replace(&mut self.owners, now.clone());
        owners.extend(now);
        let Some(inventory) = &state.inventory else { return Vec::new() };
        let new: Vec<_> = inventory.faults.iter().filter(|fault| fault.number > self.last).collect();
        self.last = new.iter().map(|fault| fault.number).max().unwrap_or(self.last);
        new.into_iter().flat_map(|fault| affected::of(fault, inventory, &owners)).collect()
    }
}

#[cfg(test)]
mod tests;
