//! The GPUs of this node: one thread that owns NVML, and what it tells.

pub mod calls;
pub mod health;
pub mod holders;
pub mod inventory;
pub mod order;
mod read;
mod reset;
mod thread;

use std::path::PathBuf;

pub use calls::Calls;
pub use inventory::{Inventory, SeenBoard, SeenCompute, SeenGpu, SeenInstance};
pub use order::{Order, OrderError};
pub use thread::{Depth, Silicon, Trouble};

/// Where the driver and the kernel's trees are, as seen from here.
#[derive(Clone, Debug)]
pub struct Places {
    /// Root of the driver's files.
    pub driver_root: PathBuf,
    /// `/proc` of the host.
    pub proc_root: PathBuf,
    /// `/sys` of the host.
    pub sys_root: PathBuf,
}
