//! The GPUs of this node.
//!
//! [`thread`] owns NVML: it reads the [`inventory`] and executes one [`operation`] at a time. [`policy`] holds all deadlines and retries.
//! [`processes`] finds processes that NVML does not list, and the containers that processes belong to.

mod activity;
pub mod calls;
mod check;
pub mod driver;
pub mod error;
pub mod faults;
pub mod memory_limits;
pub mod operation;
pub mod platform;
pub mod processes;
mod reader;
mod reset;
pub mod thread;

pub use calls::Calls;
pub use driver::{DriverRoot, NodePaths};
pub use error::NvmlError;
pub use gputenancy_agent_core::gpu::{
    Connections, Inventory, ObservedBoard, ObservedCompute, ObservedGpu, ObservedInstance, Scan, fault_class,
    inventory, policy,
};
pub use memory_limits::LimitCall;
pub use operation::{Operation, OperationError};
pub use policy::Deadlines;
pub use processes::cap_minors::CapMinors;
pub use thread::NvmlThread;

/// Returns the latest inventory; none before the first scan.
pub type LatestInventory = std::sync::Arc<dyn Fn() -> Option<Inventory> + Send + Sync>;
