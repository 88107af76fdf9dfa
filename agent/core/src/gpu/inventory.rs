//! What NVML reports of a node: plain data that all decisions are based on.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use gputenancy_crds::{FaultRecovery, Health, MemoryScrub};

use super::fault_class::SeenFault;
use crate::nvml::{Connection, InstanceProfile, MemoryUse, MigMode, NvmlFailure, Process, Vgpu};

/// What follows from a missing licence, and what to do.
pub const UNLICENSED: &str = "NVIDIA's driver limits an unlicensed vGPU after some time, and programs on it become slow or fail: read \
    the log of nvidia-gridd in the virtual machine, and see that it reaches the licence server";

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// MIG mode, processes, licences, faults, and whether the known instances still exist.
    Quick,
    /// Everything.
    Full,
}

/// A folder that may hold the driver's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    /// Path on the host, which goes into CDI specifications.
    pub host: PathBuf,
    /// Path in this container.
    pub local: PathBuf,
}

/// The GPUs of a node as NVML reported them in one scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Where the driver was found.
    pub driver_root: Option<DriverRoot>,
    /// Version of the kernel driver.
    pub driver_version: String,
    /// CUDA version that the driver supports.
    pub cuda_version: String,
    /// The GPUs, by index.
    pub gpus: Vec<ObservedGpu>,
    /// Faults that the driver reported recently, oldest first.
    pub faults: Vec<SeenFault>,
    /// How GPUs without MIG mode are connected.
    pub connections: Arc<Connections>,
    /// Whether the driver overwrites freed memory.
    pub memory_scrub: MemoryScrub,
}

/// How GPUs are connected: the best path between two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections(BTreeMap<(String, String), Connection>);

impl Connections {
    /// Records the path between two GPUs, by UUID.
    pub fn insert(&mut self, a: &str, b: &str, path: Connection) {
        self.0.insert(pair(a, b), path);
    }

    /// The path between two GPUs, by UUID; `None` if it is not known.
    pub fn between(&self, a: &str, b: &str) -> Option<Connection> {
        self.0.get(&pair(a, b)).copied()
    }
}

fn pair(a: &str, b: &str) -> (String, String) {
    let (first, second) = if a < b { (a, b) } else { (b, a) };
    (first.to_owned(), second.to_owned())
}

impl Inventory {
    /// Whether freed memory of the GPUs is overwritten. In a virtual machine with vGPUs the hypervisor's driver decides.
    pub fn scrub(&self) -> MemoryScrub {
        let guest = self.gpus.iter().any(|gpu| gpu.board.vgpu == Some(Vgpu::Guest));
        if guest { MemoryScrub::Unknown } else { self.memory_scrub }
    }

    /// The GPU with this UUID.
    pub fn gpu(&self, uuid: &str) -> Option<&ObservedGpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }
}

/// A board model: what does not change while the driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedBoard {
    /// NVML's product name.
    pub name: String,
    /// Total memory, in MiB.
    pub memory_mib: u64,
    /// Memory reserved by the driver, in MiB.
    pub reserved_mib: Option<u64>,
    /// A change of MIG mode needs a reset.
    pub mode_needs_reset: bool,
    /// How NVIDIA's vGPU software uses it; if at all, no MIG call is made on it.
    pub vgpu: Option<Vgpu>,
    /// The architecture is older than Volta.
    pub before_volta: bool,
    /// MIG profiles, by id; empty without MIG, and on some drivers while MIG is off.
    pub profiles: Vec<InstanceProfile>,
}

impl ObservedBoard {
    /// The profile with this name.
    pub fn profile(&self, name: &str) -> Option<&InstanceProfile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedGpu {
    /// NVML's UUID.
    pub uuid: String,
    /// NVML's index.
    pub index: u32,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI address.
    pub pci_bus_id: String,
    /// NUMA node, if the host reports one.
    pub numa: Option<i64>,
    /// Board model.
    pub board: Arc<ObservedBoard>,
    /// MIG mode; `None` on a board without MIG.
    pub mode: Option<MigMode>,
    /// GPU instances, by start.
    pub instances: Vec<ObservedInstance>,
    /// Processes on the GPU.
    pub clients: Vec<Process>,
    /// Memory in use, in MiB, of devices on which there is no process: by GPU instance, `None` for the whole GPU. Read in full scans,
    /// and in quick ones after a device has lost its last process.
    pub unexplained: BTreeMap<Option<u32>, u64>,
    /// All memory of devices by its use: by GPU instance, `None` for the whole GPU without MIG. Read as `unexplained`, and in each scan for devices with a
    /// process.
    pub memory: BTreeMap<Option<u32>, MemoryUse>,
    /// A vGPU has a licence; `None` for every other GPU.
    pub licensed: Option<bool>,
    /// Health.
    pub health: Health,
    /// The fault that made it unhealthy.
    pub fault: Option<String>,
    /// How it returns after its faults; `None`: there were none.
    pub recovery: Option<FaultRecovery>,
    /// The call that failed in the latest scan: all other fields are then of the scan before.
    pub failure: Option<NvmlFailure>,
}

impl ObservedGpu {
    /// Processes on one GPU instance.
    pub fn clients_of(&self, gi: u32) -> impl Iterator<Item = &Process> {
        self.clients.iter().filter(move |process| process.gi == Some(gi))
    }

    /// MIG mode is enabled now.
    pub fn mig_enabled(&self) -> bool {
        self.mode.is_some_and(|mode| mode.current)
    }
}

/// One GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedInstance {
    /// GPU instance id.
    pub gi: u32,
    /// NVIDIA's name of the profile, or `profile-<id>` if the board does not list it.
    pub profile: String,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Its compute instances.
    pub compute: Vec<ObservedCompute>,
}

impl ObservedInstance {
    /// Id and UUID of the only compute instance, if it covers the whole instance and is listed: only then this is a device.
    pub fn whole_compute(&self) -> Option<(u32, &str)> {
        match self.compute.as_slice() {
            [ObservedCompute { ci, full_width: true, uuid: Some(uuid) }] => Some((*ci, uuid)),
            _ => None,
        }
    }

    /// UUID of the first MIG device.
    pub fn uuid(&self) -> Option<&str> {
        self.compute.first()?.uuid.as_deref()
    }
}

/// One compute instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedCompute {
    /// Compute instance id.
    pub ci: u32,
    /// It covers the whole GPU instance.
    pub full_width: bool,
    /// UUID of the MIG device, once the driver lists it.
    pub uuid: Option<String>,
}
