//! Partitioning by NVIDIA's MIG manager, without I/O or clock: which layout is requested for a node, and what its state label means.
//!
//! The MIG manager partitions a node as a whole, evicts no pods, acts only when the value of a label changes, and may stay `pending`
//! for ever while components of the GPU Operator are paused. The [change machine](crate::change) evicts owners of removed devices
//! before a request. All state is in the node's labels and in `GpuNode.spec.migManager`.

mod adopt;
mod config;
mod effects;
mod node;
mod step;
#[cfg(test)]
mod tests;
mod types;
mod view;

pub use adopt::{adopted, placed};
pub use config::{MigConfig, MigConfigError, MigConfigs, Shape, base, is_ours, twin};
pub use effects::{REPARTITIONED_WITH_NODE, effects};
pub(super) use node::MigManager;
pub use node::{awaits_answer, conflict, is_engaged};
pub use step::step;
pub use types::{RequestDecision, RequestObservation, RequestState, RequestTimeouts};
pub use view::{configs, sweeps};
