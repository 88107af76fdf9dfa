//! The GPUs of this node.
//!
//! [`thread`] owns NVML: it reads the [`inventory`] and executes one [`operation`] at a time. [`policy`] holds all deadlines and retries.
//! [`processes`] finds processes that NVML does not list, and the containers that processes belong to.

pub mod calls;
mod check;
pub mod driver;
pub mod error;
pub mod fault_class;
pub mod faults;
pub mod inventory;
pub mod memory_limits;
pub mod operation;
pub mod platform;
pub mod policy;
pub mod processes;
mod reader;
mod reset;
pub mod thread;

pub use calls::Calls;
pub use driver::{DriverRoot, NodePaths};
pub use error::NvmlError;
pub use inventory::{
    Connections, Inventory, LatestInventory, ObservedBoard, ObservedCompute, ObservedGpu, ObservedInstance, Scan,
};
pub use memory_limits::LimitCall;
pub use operation::{Operation, OperationError};
pub use policy::Deadlines;
pub use processes::cap_minors::CapMinors;
pub use thread::NvmlThread;
