//! Telling the operator: `GpuNode.status`, made from what is seen and written only when it changed.

pub mod boards;
pub mod conditions;
pub mod object;
pub mod status;
pub mod writer;

pub use status::{Sources, status, without_inventory};

#[cfg(test)]
mod tests;
