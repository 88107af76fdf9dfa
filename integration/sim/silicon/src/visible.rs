//! Which devices a process may see: those whose device nodes it can open.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::ids;
use crate::machine::{Machine, MigDevice};

/// Variable with another folder than `/dev`, or `all` for every device.
pub const VARIABLE: &str = "NVSIM_DEV";

/// Devices visible to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// Every device.
    All,
    /// The devices with nodes in this folder.
    Nodes(PathBuf),
}

impl View {
    /// The view of this process.
    pub fn of(machine: &Machine, variable: Option<OsString>) -> Self {
        match variable {
            _ if machine.devices.is_none() => Self::All,
            Some(value) if value == "all" => Self::All,
            Some(folder) => Self::Nodes(folder.into()),
            None => Self::Nodes("/dev".into()),
        }
    }

    /// Whether a GPU is visible.
    pub fn gpu(&self, index: u32) -> bool {
        self.opens(&format!("nvidia{index}"))
    }

    /// Whether a MIG device is visible: both its capabilities, or the one to configure MIG, which gives all.
    pub fn mig(&self, device: &MigDevice<'_>) -> bool {
        let (gpu, gi, ci) = (device.gpu.index, device.gi.id, device.ci.id);
        self.configure() || (self.cap(ids::gi_minor(gpu, gi)) && self.cap(ids::ci_minor(gpu, gi, ci)))
    }

    /// Whether this process may configure MIG.
    pub fn configure(&self) -> bool {
        self.cap(1)
    }

    fn cap(&self, minor: u32) -> bool {
        self.opens(&format!("nvidia-caps/nvidia-cap{minor}"))
    }

    fn opens(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Nodes(folder) => accessible(&folder.join(name)),
        }
    }
}

/// Whether a device node may be opened: the device cgroup refuses before the missing driver does.
fn accessible(node: &Path) -> bool {
    match OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(node) {
        Ok(_) => true,
        Err(e) => matches!(e.raw_os_error().map(Errno::from_raw), Some(Errno::ENXIO | Errno::ENODEV)),
    }
}
