//! What pods do on their devices: `kubectl gpu top`.
//!
//! [`gather`] reads the metrics of the agents, and [`report`] joins them by device and container.

use std::collections::{BTreeMap, VecDeque};

mod gather;
mod report;

pub use gather::{Gathered, TopError, check_names, gather};
pub use gputenancy_cluster::agent_metrics::{Agent, Sample};
pub use report::{DeviceUse, PodUse, TopReport, report};

/// Utilization of the last samples by UUID, GPU instance, namespace, pod and container.
pub type Trends = BTreeMap<[String; 5], VecDeque<Option<f64>>>;
