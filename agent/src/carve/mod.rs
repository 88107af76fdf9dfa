//! Bringing each GPU to the layout of `GpuNode.spec`, one NVML call at a time.
//!
//! [`step`] decides and keeps no state: what to do next follows from the spec and from what NVML shows now, so the agent may be
//! killed between any two calls. [`policy`] says what a failed call means, [`offer`] which devices may be advertised meanwhile,
//! and [`shell`] does what was decided.

pub mod idle;
pub mod offer;
pub mod policy;
pub mod progress;
pub mod shell;
pub mod step;

pub use progress::GpuProgress;
pub use shell::{Carved, Shell, Wanted};
pub use step::{Decision, Facts, Rest, step};

#[cfg(test)]
pub(crate) mod tests;
