//! Liveness and readiness of the agent.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use gputenancy_cluster::service::endpoints::Probes;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::{metrics::Metrics, partition::PartitionState};

/// The slowest reconcile waits for NVML's deadlines; a loop that takes longer is stuck, and a restart may help.
const STUCK: Duration = Duration::from_mins(3);

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
        if age < STUCK { Ok(()) } else { Err(format!("no reconcile for {} s", age.as_secs())) }
    }

    fn ready(&self) -> Result<(), impl Display> {
        if let Some(lacks) = self.lacks.borrow().clone() {
            return Err(lacks);
        }
        ready(&self.state.borrow())
    }

    fn registry(&self) -> &Registry {
        self.metrics.registry()
    }
}

fn ready(state: &PartitionState) -> Result<(), String> {
    match (&state.nvml_error, &state.inventory, state.generation) {
        (Some(error), ..) => Err(format!("NVML: {error}")),
        (None, None, _) => Err("waiting for the first inventory from NVML".to_owned()),
        (None, Some(_), None) => Err("waiting for the GpuNode".to_owned()),
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
        assert_eq!(ready(&state), Err("waiting for the first inventory from NVML".into()));
        state.inventory = Some(Inventory::default());
        assert_eq!(ready(&state), Err("waiting for the GpuNode".into()));
        state.generation = Some(1);
        assert_eq!(ready(&state), Ok(()));
    }
}
