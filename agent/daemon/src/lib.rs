//! The node agent.
//!
//! [`gpu`] reads and changes GPUs through NVML, [`partition`] decides how, [`kubelet`] advertises the devices, [`handover`] keeps devices
//! from containers while other pods use them, [`enforcement`] limits the memory of shares, [`audit`] compares what they use with their
//! limits, [`attribution`] finds the container of each GPU process, [`warm_up`] states when an empty
//! answer of each of these sources is believed, [`unlimited_containers`] reports containers that
//! cannot be limited, [`forbidden_variables`] checks the variables of tenants' containers, [`usage`] samples what GPUs do, with a [`dcgm`] exporter as a further source, and [`report`] writes `GpuNode.status`.

pub mod args;
pub mod attribution;
pub mod audit;
pub mod dcgm;
pub mod enforcement;
pub mod event;
pub mod forbidden_variables;
pub mod gpu;
pub mod grpc;
pub mod handover;
pub mod health;
pub mod host_folders;
pub mod incidents;
pub mod kubelet;
pub mod metrics;
pub mod mps;
pub mod partition;
mod pod_watch;
pub mod pods_past_grace;
pub mod refusal;
pub mod report;
pub mod rights;
pub mod run;
pub mod seen_pods;
mod series;
pub mod unlimited_containers;
pub mod usage;

use gputenancy_agent_core::to_i32;
pub use gputenancy_agent_core::{device, device_memory, warm_up};

/// Longest delay before a failed watch starts again. Thousands of agents return to an API server that restarts.
const LONGEST_WATCH_DELAY: std::time::Duration = std::time::Duration::from_secs(10);

/// Sends a value that differs from the latest one; true if it does.
fn send_if_changed<T: PartialEq>(sender: &tokio::sync::watch::Sender<T>, new: T) -> bool {
    sender.send_if_modified(|latest| {
        let changed = *latest != new;
        *latest = new;
        changed
    })
}
