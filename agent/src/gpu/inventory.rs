//! What NVML shows of a node: plain data, the observation that everything else decides by.

use std::sync::Arc;

use gputenancy_crds::Health;
use gputenancy_nvml::{InstanceProfile, MigMode, NvmlFailure, Process};

use super::DriverRoot;

/// The GPUs of a node as NVML showed them at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Where the driver was found.
    pub driver_root: Option<DriverRoot>,
    /// Version of the kernel driver.
    pub driver_version: String,
    /// CUDA version that the driver supports.
    pub cuda_version: String,
    /// The GPUs, by index.
    pub gpus: Vec<SeenGpu>,
}

impl Inventory {
    /// The GPU with this UUID.
    pub fn gpu(&self, uuid: &str) -> Option<&SeenGpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }
}

/// A kind of board: what does not change while the driver runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenBoard {
    /// Product name as NVML writes it.
    pub name: String,
    /// All memory, in MiB.
    pub memory_mib: u64,
    /// Memory that the driver keeps for itself, in MiB.
    pub reserved_mib: Option<u64>,
    /// A change of MIG mode needs a reset.
    pub mode_needs_reset: bool,
    /// MIG profiles, by id; empty without MIG, and with MIG off on drivers that tell only while it is on.
    pub profiles: Vec<InstanceProfile>,
}

impl SeenBoard {
    /// The profile with this name.
    pub fn profile(&self, name: &str) -> Option<&InstanceProfile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenGpu {
    /// NVML's UUID.
    pub uuid: String,
    /// NVML's index.
    pub index: u32,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI address.
    pub pci_bus_id: String,
    /// NUMA node, where the host tells.
    pub numa: Option<i64>,
    /// Its kind.
    pub board: Arc<SeenBoard>,
    /// MIG mode; `None` where the board has none.
    pub mode: Option<MigMode>,
    /// GPU instances that exist, by start.
    pub instances: Vec<SeenInstance>,
    /// Processes on it.
    pub clients: Vec<Process>,
    /// Healthy, or why not.
    pub health: Health,
    /// What condemned it.
    pub fault: Option<String>,
    /// A call that failed while this GPU was read: what is said above is then what was seen last.
    pub trouble: Option<NvmlFailure>,
}

impl SeenGpu {
    /// Processes on one GPU instance.
    pub fn clients_of(&self, gi: u32) -> impl Iterator<Item = &Process> {
        self.clients.iter().filter(move |process| process.gi == Some(gi))
    }
}

/// One GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenInstance {
    /// GPU instance id.
    pub gi: u32,
    /// NVIDIA's name of the profile, or `profile-<id>` when the board does not list it.
    pub profile: String,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Compute instances in it.
    pub compute: Vec<SeenCompute>,
}

impl SeenInstance {
    /// The one compute instance over all of it, with a UUID: then, and only then, it is a device.
    pub fn whole_compute(&self) -> Option<(u32, &str)> {
        match self.compute.as_slice() {
            [SeenCompute { ci, full_width: true, uuid: Some(uuid) }] => Some((*ci, uuid)),
            _ => None,
        }
    }
}

/// One compute instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenCompute {
    /// Compute instance id.
    pub ci: u32,
    /// It covers the whole GPU instance.
    pub full_width: bool,
    /// UUID of the MIG device, once the driver lists it.
    pub uuid: Option<String>,
}
