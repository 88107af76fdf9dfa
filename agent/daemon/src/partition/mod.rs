//! Partitions each GPU as `GpuNode.spec` says, one NVML call at a time.
//!
//! [`gputenancy_agent_core::partition`] decides. [`reconcile`] executes the decisions and publishes the [`PartitionState`]; [`served`] keeps the
//! layouts on the node.

pub mod reconcile;
pub mod served;
pub mod state;

pub use gputenancy_agent_core::partition::{
    DecisionInput, GpuProgress, PartitionDecision, WaitCause, decide, devices, idle, progress, retention,
};
pub use reconcile::Reconciler;
pub use served::ServedLayouts;
pub use state::{DesiredLayout, PartitionState};
