//! Nodes: the layout of every GPU as it should be and is, changes, faults, limits, processes.

mod change_phase;
mod enforcement;
mod gpu_fault;
mod gpu_node;
mod gpu_processes;
mod layout;
mod memory_scrub;
mod mig_manager;
mod node_enforcement;
mod node_health;

pub use change_phase::*;
pub use enforcement::*;
pub use gpu_fault::*;
pub use gpu_node::*;
pub use gpu_processes::*;
pub use layout::*;
pub use memory_scrub::*;
pub use mig_manager::*;
pub use node_enforcement::*;
pub use node_health::*;
