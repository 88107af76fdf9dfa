//! Partitions each GPU as `GpuNode.spec` says, one NVML call at a time.
//!
//! [`decide()`] is pure and keeps no state: the next operation follows from the spec and the current inventory, so the agent may be
//! killed between any two calls. [`devices`] says which devices exist meanwhile, [`idle`] what is provably unused, and
//! [`reconcile`] executes the decisions and publishes the [`PartitionState`]. [`served`] keeps the layouts on the node, and [`retention`] decides
//! which of them stay although the spec lacks them.

pub mod decide;
pub mod devices;
pub mod idle;
pub mod progress;
pub mod reconcile;
pub mod retention;
pub mod served;
pub mod state;

pub use decide::{DecisionInput, PartitionDecision, WaitCause, decide};
pub use progress::GpuProgress;
pub use reconcile::Reconciler;
pub use served::ServedLayouts;
pub use state::{DesiredLayout, PartitionState};

#[cfg(test)]
pub(crate) mod tests;
