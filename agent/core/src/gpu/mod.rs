//! The GPUs of a node: their [`inventory`], one [`operation`] that changes one of them, and the [`policy`] of its retries.

pub mod fault_class;
pub mod inventory;
pub mod operation;
pub mod policy;

pub use inventory::{
    Connections, DriverRoot, Inventory, ObservedBoard, ObservedCompute, ObservedGpu, ObservedInstance, Scan,
};
pub use operation::{Operation, OperationError};
