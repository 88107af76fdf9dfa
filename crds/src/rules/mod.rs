//! Parts that several kinds have: how devices are shared and isolated, how changes proceed, and what a pool says of its nodes.

mod change_phase;
mod isolation;
mod memory_scrub;
mod mig_manager;
mod node_health;
mod rollout;
mod sharing;

pub use change_phase::*;
pub use isolation::*;
pub use memory_scrub::*;
pub use mig_manager::*;
pub use node_health::*;
pub use rollout::*;
pub use sharing::*;
