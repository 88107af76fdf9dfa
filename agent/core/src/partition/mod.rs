//! Partitions each GPU as `GpuNode.spec` says, one NVML call at a time.
//!
//! [`decide()`] keeps no state: the next operation follows from the spec and the current inventory, so the agent may be killed between any
//! two calls. [`devices`] says which devices exist meanwhile, [`idle`] what is provably unused, [`retention`] which layouts stay although the
//! spec lacks them, and [`progress`] what the status reports.

pub mod decide;
pub mod devices;
pub mod idle;
pub mod progress;
pub mod retention;

pub use decide::{DecisionInput, PartitionDecision, WaitCause, decide};
pub use progress::GpuProgress;

#[cfg(test)]
mod tests;
