//! Reports to the operator: `GpuNode.status`, a pure function of the [`StatusInput`], written when it changes.

pub mod boards;
pub mod conditions;
pub mod devices_ready;
pub mod gpu_node;
pub mod input;
pub mod node_condition;
mod processes;
pub mod reporter;
mod scrub;
pub mod status;
pub mod writer;

pub use input::StatusInput;
pub use reporter::Reporter;
pub use status::{status, without_inventory};

#[cfg(test)]
mod tests;
