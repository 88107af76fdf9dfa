//! Carving by NVIDIA's MIG manager, decided without any I/O or clock: which layout a node is asked to have, and what its answers mean.
//!
//! The MIG manager changes a node as a whole, drains nobody, acts only when the value of a label changes, and may stay `pending` for
//! ever with the GPU Operator's parts paused. What has to go is drained by the [change machine](crate::change) before it is asked. Where
//! things stand is in the node's labels and in `GpuNode.spec.migManager`.

mod adopt;
mod config;
mod node;
mod step;
#[cfg(test)]
mod tests;
mod types;
mod view;

pub use adopt::{adopted, placed};
pub use config::{MigConfig, MigConfigError, MigConfigs, Shape, base, is_ours, twin};
pub use node::{awaits_answer, is_engaged, is_managed};
pub use step::step;
pub use types::{MigManagerDecision, MigManagerObservation, MigManagerState, MigManagerTimeouts};
pub use view::{configs, sweeps};
