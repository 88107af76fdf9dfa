//! Liveness and readiness of the agent.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use gputenancy_cluster::service::endpoints::Probes;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::{gpu::NvmlError, metrics::Metrics, partition::PartitionState};

/// The slowest reconcile waits for NVML's deadlines; a loop that takes longer is stuck, and a restart may help.
const STUCK: Duration = Duration::from_mins(3);

/// Why the agent is not alive, or not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The loop that partitions the GPUs has not begun again for this time.
    #[error("no reconcile for {} s", .0.as_secs())]
    Stuck(Duration),
    /// Rights are missing, one per line.
    #[error("{0}")]
    Lacks(String),
    /// NVML does not answer.
    #[error("NVML: {0}")]
    Nvml(NvmlError),
    /// NVML has not been read yet.
    #[error("waiting for the first inventory from NVML")]
    NoInventory,
    /// The operator has not written the spec of this node yet, or it has not been read.
    #[error("waiting for the GpuNode")]
    NoGpuNode,
}

/// What the endpoints report.
pub struct Health {
    /// The start of the latest reconcile.
    pub heartbeat: watch::Receiver<Instant>,
    /// State of the partitioning.
    pub state: watch::Receiver<PartitionState>,
    /// Missing rights, one per line.
    pub lacks: watch::Receiver<Option<String>>,
    /// Metrics.
    pub metrics: Metrics,
}

impl Probes for Health {
    fn alive(&self) -> Result<(), impl Display> {
        let age = self.heartbeat.borrow().elapsed();
        if age < STUCK { Ok(()) } else { Err(Error::Stuck(age)) }
    }

    fn ready(&self) -> Result<(), impl Display> {
        if let Some(lacks) = self.lacks.borrow().clone() {
            return Err(Error::Lacks(lacks));
        }
        ready(&self.state.borrow())
    }

    fn registry(&self) -> &Registry {
        self.metrics.registry()
    }
}

fn ready(state: &PartitionState) -> Result<(), Error> {
    match (&state.nvml_error, &state.inventory, state.generation) {
        (Some(error), ..) => Err(Error::Nvml(error.clone())),
        (None, None, _) => Err(Error::NoInventory),
        (None, Some(_), None) => Err(Error::NoGpuNode),
        (None, Some(_), Some(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Inventory;

    #[test]
    fn readiness_names_what_is_missing() {
        let mut state = PartitionState::default();
        assert_eq!(ready(&state), Err(Error::NoInventory));
        state.inventory = Some(Inventory::default());
        assert_eq!(ready(&state), Err(Error::NoGpuNode));
        state.generation = Some(1);
        assert_eq!(ready(&state), Ok(()));
    }
}
