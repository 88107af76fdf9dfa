//! What pods do on their devices: `kubectl gpu top`.
//!
//! [`gather`] reads the metrics of the agents, and [`report`] joins them by device and container.

mod gather;
mod report;

pub use gather::{TopError, gather};
pub use gputenancy_cluster::agent_metrics::{Agent, Sample};
pub use report::{DeviceUse, PodUse, TopReport, report};
