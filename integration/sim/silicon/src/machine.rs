//! The GPUs of one node: the state between NVML calls.

use serde::{Deserialize, Serialize};

use crate::board::{Board, Placement, Profile, Variant};
use crate::clients::Client;
use crate::code::Code;
use crate::memory_limits::MemoryLimits;
use crate::{boards, compute_profile, ids};

/// Version of the simulated driver.
pub const DRIVER_VERSION: &str = "580.95.05";
/// Version of the simulated NVML.
pub const NVML_VERSION: &str = "13.580.95.05";
/// CUDA version, as the driver encodes it.
pub const CUDA_VERSION: i32 = 13000;
/// Xid events kept for event sets that have not read them.
const EVENTS_KEPT: usize = 256;

/// The GPUs of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the node, which the UUIDs derive from.
    pub node: String,
    /// Under a hypervisor.
    #[serde(default)]
    pub virtualization: Virtualization,
    /// A virtual machine's vGPUs have no licence.
    #[serde(default)]
    pub unlicensed: bool,
    /// `NVLink` between the GPUs.
    #[serde(default)]
    pub links: Links,
    /// Memory limits of cgroups, which drivers have from version 615 on.
    #[serde(default)]
    pub memory_limits: MemoryLimits,
    /// Which half of the memory axis is half 1.
    pub variant: Variant,
    /// The GPUs by index.
    pub gpus: Vec<Gpu>,
    /// Latency of driver calls, in thousandths of real hardware.
    pub latency_permille: u32,
    /// Device nodes; `None`: no device nodes, and visibility is not checked.
    pub devices: Option<Devices>,
    /// Serial of the next instance, part of handles, so that a handle of a destroyed instance is detected.
    pub next_serial: u32,
    /// Xid events, oldest first.
    pub events: Vec<Xid>,
    /// Number of the next event.
    pub next_event: u64,
}

/// NVML's `nvmlGpuVirtualizationMode_t`, for all GPUs of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Virtualization {
    /// Bare metal.
    #[default]
    None,
    /// A whole GPU that is passed to this virtual machine.
    Passthrough,
    /// A vGPU of NVIDIA's vGPU software in this virtual machine. It has no MIG mode of its own.
    Guest,
    /// A hypervisor that gives vGPUs to virtual machines.
    Host,
}

impl Virtualization {
    /// NVML's number.
    pub fn nvml(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Passthrough => 1,
            Self::Guest => 2,
            Self::Host => 3,
        }
    }
}

/// `NVLink` between the GPUs of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Links {
    /// None.
    #[default]
    None,
    /// A bridge between the GPUs 0 and 2, 1 and 3, 4 and 6, 5 and 7, …: neighbours by index are not connected.
    Bridges,
    /// Every GPU is connected to switches, and through them to every other GPU.
    Switches,
}

/// Links of one bridge, and from one GPU to the switches: as an A100 has them.
pub const LINKS: u32 = 12;

impl Links {
    /// The GPU at the other end of a bridge.
    pub fn bridge(gpu: u32) -> u32 {
        gpu ^ 2
    }
}

/// Device numbers of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// Major of `/dev/nvidia-caps/*`.
    pub caps_major: u32,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the hardware")]
pub struct Gpu {
    /// Index, and minor of `/dev/nvidiaN`.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Its board, which may differ from that of other GPUs.
    pub board: Board,
    /// Active MIG mode.
    pub mig: bool,
    /// MIG mode after the next reset.
    pub mig_pending: bool,
    /// GPU instances, in order of creation.
    pub instances: Vec<GpuInstance>,
    /// Fell off the bus.
    pub lost: bool,
    /// Persistence mode.
    pub persistence: bool,
    /// NVML's `nvmlComputeMode_t`: 0 default, 2 prohibited, 3 exclusive to one process. A reset returns to 0.
    #[serde(default)]
    pub compute_mode: u32,
    /// Accounting of processes: off until it is switched on, which outlives no restart of the driver.
    #[serde(default)]
    pub accounting: bool,
    /// Memory in use that belongs to no process, until a reset.
    #[serde(default)]
    pub leaks: Vec<Leak>,
    /// NVML's `nvmlDeviceGpuRecoveryAction_t`: 0 none, 1 reset the GPU, 2 restart the node; `None`: the driver does not say it. A reset returns to 0.
    #[serde(default = "no_action")]
    pub recovery_action: Option<u32>,
    /// Uncorrected ECC errors since the last reset.
    pub ecc_volatile: u64,
    /// Uncorrected ECC errors over the lifetime.
    pub ecc_aggregate: u64,
}

#[expect(clippy::unnecessary_wraps, reason = "the default of a field")]
fn no_action() -> Option<u32> {
    Some(0)
}

/// Memory that a driver has not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leak {
    /// Id of the GPU instance; `None` on a whole GPU.
    pub instance: Option<u32>,
    /// In bytes.
    pub bytes: u64,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// Id, given by the placement.
    pub id: u32,
    /// Device profile id.
    pub profile: u32,
    /// Placement on the memory axis.
    pub placement: Placement,
    /// Distinguishes instances that had the same id at different times.
    pub serial: u32,
    /// Compute instances, in order of creation.
    pub compute: Vec<ComputeInstance>,
}

/// A compute instance: together with its GPU instance a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Id within the GPU instance.
    pub id: u32,
    /// Compute-instance profile id.
    pub profile: u32,
    /// Placement on the GPU instance's compute slices.
    pub placement: Placement,
    /// As for GPU instances.
    pub serial: u32,
    /// Index of the MIG device on its GPU; a destroyed one leaves a hole.
    pub mig_index: u32,
}

/// A critical error event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    /// Event number.
    pub number: u64,
    /// GPU index.
    pub gpu: u32,
    /// GPU instance, if the error is of one.
    #[serde(default)]
    pub instance: Option<u32>,
    /// Xid code.
    pub xid: u64,
}

/// A MIG device with its GPU, GPU instance and compute instance.
#[derive(Clone, Copy, Debug)]
pub struct MigDevice<'a> {
    /// Its GPU.
    pub gpu: &'a Gpu,
    /// Its GPU instance.
    pub gi: &'a GpuInstance,
    /// Its compute instance.
    pub ci: &'a ComputeInstance,
}

impl Machine {
    /// A machine of equal GPUs after power-on: no instances, MIG mode from the `InfoROM`.
    pub fn power_on(node: &str, board: Board, variant: Variant, count: u32, inforom: &[bool]) -> Self {
        Self::with_boards(node, &[board], variant, count, inforom)
    }

    /// As [`Machine::power_on`], with these boards of its GPUs, as [`boards::of_gpu`] assigns them.
    pub fn with_boards(node: &str, boards: &[Board], variant: Variant, count: u32, inforom: &[bool]) -> Self {
        let gpu = |index: u32| {
            let kept = inforom.get(index as usize).copied().unwrap_or(false);
            Some(Gpu::power_on(node, index, boards::of_gpu(boards, index)?.clone(), kept))
        };
        Self {
            node: node.into(),
            virtualization: Virtualization::None,
            unlicensed: false,
            links: Links::None,
            memory_limits: MemoryLimits::default(),
            variant,
            gpus: (0..count).filter_map(gpu).collect(),
            latency_permille: 0,
            devices: None,
            next_serial: 1,
            events: Vec::new(),
            next_event: 1,
        }
    }

    /// Content of the `InfoROM`: the MIG mode after the next power-on, on architectures that keep it.
    pub fn inforom_modes(&self) -> Vec<bool> {
        self.gpus.iter().map(|g| g.mig_pending && g.board.arch.mode_persists()).collect()
    }

    /// The GPU at this index, in working order.
    pub fn gpu(&self, index: u32) -> Result<&Gpu, Code> {
        let gpu = self.gpus.get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        if gpu.lost { Err(Code::GPU_IS_LOST) } else { Ok(gpu) }
    }

    /// As [`Machine::gpu`], to change it.
    pub fn gpu_mut(&mut self, index: u32) -> Result<&mut Gpu, Code> {
        let gpu = self.gpus.get_mut(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        if gpu.lost { Err(Code::GPU_IS_LOST) } else { Ok(gpu) }
    }

    /// All MIG devices, by GPU and MIG index.
    pub fn mig_devices(&self) -> Vec<MigDevice<'_>> {
        let mut all: Vec<_> = self
            .gpus
            .iter()
            .flat_map(|gpu| gpu.instances.iter().map(move |gi| (gpu, gi)))
            .flat_map(|(gpu, gi)| gi.compute.iter().map(move |ci| MigDevice { gpu, gi, ci }))
            .collect();
        all.sort_by_key(|d| (d.gpu.index, d.ci.mig_index));
        all
    }

    /// A MIG device by its instances' ids.
    pub fn mig_device(&self, gpu: u32, gi: u32, ci: u32) -> Result<MigDevice<'_>, Code> {
        let gpu = self.gpu(gpu)?;
        let gi = gpu.instance(gi)?;
        let ci = gi.compute.iter().find(|c| c.id == ci).ok_or(Code::NOT_FOUND)?;
        Ok(MigDevice { gpu, gi, ci })
    }

    /// Records an Xid event and drops the oldest ones.
    pub fn raise_xid(&mut self, gpu: u32, instance: Option<u32>, xid: u64) -> Result<(), Code> {
        self.gpus.get(gpu as usize).ok_or(Code::INVALID_ARGUMENT)?;
        self.events.push(Xid { number: self.next_event, gpu, instance, xid });
        self.next_event += 1;
        let excess = self.events.len().saturating_sub(EVENTS_KEPT);
        self.events.drain(..excess);
        Ok(())
    }

    /// A serial that no instance had before.
    pub(crate) fn take_serial(&mut self) -> u32 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1).max(1);
        serial
    }
}

impl Gpu {
    /// A GPU after power-on; `kept`: the `InfoROM` has MIG mode.
    fn power_on(node: &str, index: u32, board: Board, kept: bool) -> Self {
        let mig = kept && board.arch.mode_persists() && board.has_mig();
        Self {
            index,
            uuid: ids::gpu_uuid(node, index),
            board,
            mig,
            mig_pending: mig,
            instances: Vec::new(),
            lost: false,
            persistence: false,
            compute_mode: 0,
            accounting: false,
            leaks: Vec::new(),
            recovery_action: no_action(),
            ecc_volatile: 0,
            ecc_aggregate: 0,
        }
    }

    /// The profile of one of its GPU instances.
    pub fn profile_of(&self, gi: &GpuInstance) -> Result<&Profile, Code> {
        self.board.profile(gi.profile).ok_or(Code::UNKNOWN)
    }

    /// The GPU instance with this id.
    pub fn instance(&self, id: u32) -> Result<&GpuInstance, Code> {
        self.instances.iter().find(|gi| gi.id == id).ok_or(Code::NOT_FOUND)
    }

    /// As [`Gpu::instance`], to change it.
    pub fn instance_mut(&mut self, id: u32) -> Result<&mut GpuInstance, Code> {
        self.instances.iter_mut().find(|gi| gi.id == id).ok_or(Code::NOT_FOUND)
    }
}

impl MigDevice<'_> {
    /// `MIG-…`.
    pub fn uuid(&self) -> String {
        ids::mig_uuid(&self.gpu.uuid, self.gi.id, self.ci.placement.start, self.ci.placement.size)
    }

    /// Name of its profile, such as `1g.10gb` or `1c.3g.40gb`.
    pub fn profile_name(&self) -> String {
        let Ok(profile) = self.gpu.profile_of(self.gi) else { return String::new() };
        compute_profile::device_name(&self.gpu.board, profile, self.ci.profile)
    }

    /// Whether this client is attached to this device.
    pub fn has(&self, client: &Client) -> bool {
        client.gpu == self.gpu.index && client.instance == Some((self.gi.id, self.ci.id))
    }
}
