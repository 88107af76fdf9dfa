//! The GPUs of this node: one thread that owns NVML, and what it tells.

pub mod calls;
pub mod health;
pub mod holders;
pub mod inventory;
pub mod order;
pub mod origin;
mod read;
mod reset;
mod thread;

use std::path::PathBuf;

use gputenancy_nvml::find_library;

pub use calls::Calls;
pub use inventory::{Inventory, SeenBoard, SeenCompute, SeenGpu, SeenInstance};
pub use order::{Order, OrderError};
pub use thread::{Deadlines, Depth, Silicon, Trouble};

/// A place where the driver's files may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    /// As the host sees it: what goes into CDI specifications.
    pub host: PathBuf,
    /// As seen from here.
    pub seen: PathBuf,
}

/// Where the driver and the kernel's trees are.
#[derive(Clone, Debug)]
pub struct Places {
    /// Where the driver's files may be; the first that has the library counts. A driver container may bring it at any time.
    pub driver_roots: Vec<DriverRoot>,
    /// `/proc` with the host's processes.
    pub proc_root: PathBuf,
    /// `/sys` of the host.
    pub sys_root: PathBuf,
}

impl Places {
    /// The driver root that has the library now, and the library.
    pub fn driver(&self) -> Option<(&DriverRoot, PathBuf)> {
        self.driver_roots.iter().find_map(|root| Some((root, find_library(&root.seen)?)))
    }
}
