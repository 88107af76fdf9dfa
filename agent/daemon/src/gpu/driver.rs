//! Where the driver and the kernel's trees are.

use std::path::PathBuf;

pub use gputenancy_agent_core::gpu::DriverRoot;
use gputenancy_nvml::{Nvml, find_library};

/// Paths of the driver and of the kernel's trees.
#[derive(Clone, Debug)]
pub struct NodePaths {
    /// Candidates, of which the first with the library counts. A driver container may bring it at any time.
    pub driver_roots: Vec<DriverRoot>,
    /// `/proc` with the host's processes.
    pub proc_root: PathBuf,
    /// `/sys` of the host.
    pub sys_root: PathBuf,
}

impl NodePaths {
    /// The driver root that has the library now, and the library.
    pub fn driver(&self) -> Option<(&DriverRoot, PathBuf)> {
        self.driver_roots.iter().find_map(|root| Some((root, find_library(&root.local)?)))
    }
}

/// An open library and where it was loaded from.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) nvml: &'a Nvml,
    pub(super) driver_root: &'a DriverRoot,
    pub(super) paths: &'a NodePaths,
}
