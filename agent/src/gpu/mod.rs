//! The GPUs of this node.
//!
//! [`thread`] owns NVML: it reads the [`inventory`] and executes one [`operation`] at a time. [`policy`] holds all deadlines and retries.
//! [`device_files`] and [`process_origin`] find processes that NVML does not list, and the containers that processes belong to.

pub mod calls;
pub mod cap_minors;
mod check;
mod connections;
pub mod device_files;
pub mod driver;
pub mod error;
pub mod fault_class;
pub mod faults;
pub mod inventory;
pub mod memory_limits;
mod memory_scrub;
pub mod operation;
pub mod platform;
pub mod policy;
pub mod process_origin;
mod reader;
pub mod recovery;
mod reset;
pub mod thread;

pub use calls::Calls;
pub use cap_minors::CapMinors;
pub use driver::{DriverRoot, NodePaths};
pub use error::NvmlError;
pub use inventory::{Connections, Inventory, ObservedBoard, ObservedCompute, ObservedGpu, ObservedInstance, Scan};
pub use memory_limits::LimitCall;
pub use operation::{Operation, OperationError};
pub use policy::Deadlines;
pub use thread::NvmlThread;
