//! What pods do on their devices: `kubectl gpu top`.
//!
//! [`gather`] reads the metrics of the agents, [`series`] parses them, and [`report`] joins them by device and container.

mod gather;
mod report;
mod series;

pub use gather::{TopError, gather};
pub use report::{DeviceUse, PodUse, TopReport, report};
pub use series::{Agent, Sample};
