//! The GPUs and processes that NVML shows to this process.

use nvml_wrapper::enum_wrappers::device::{ComputeMode, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// Longest name of a program.
const NAME: usize = 256;

/// A GPU.
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// Name of the board.
    pub name: String,
    /// `GPU-…`.
    pub uuid: String,
    /// Memory; none if NVML does not show it.
    pub memory: Option<Memory>,
    /// What else NVML shows of it.
    pub readings: Readings,
    /// MIG devices.
    pub instances: Vec<Instance>,
    /// Processes.
    pub processes: Vec<Process>,
}

/// What NVML shows of a GPU; none is what it does not show.
#[derive(Default)]
pub struct Readings {
    /// Serial number of the board.
    pub serial: Option<String>,
    /// PCI address.
    pub address: Option<String>,
    /// CUDA compute capability.
    pub capability: Option<String>,
    /// Percent of time with a kernel, and with memory access.
    pub utilization: Option<(u32, u32)>,
    /// Power in milliwatts.
    pub power: Option<u32>,
    /// Most power in milliwatts.
    pub power_limit: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Compute mode.
    pub compute_mode: Option<&'static str>,
    /// Persistence mode is on.
    pub persistence: Option<bool>,
    /// Accounting mode is on.
    pub accounting: Option<bool>,
    /// MIG mode is on, and will be after a reset.
    pub mig: Option<(bool, bool)>,
    /// Uncorrected ECC errors since the last reset.
    pub ecc_errors: Option<u64>,
}

/// Memory of a device in MiB.
pub struct Memory {
    /// All.
    pub total: u64,
    /// Used by programs.
    pub used: u64,
    /// Not used.
    pub free: u64,
}

/// A MIG device.
pub struct Instance {
    index: u32,
    profile: String,
    uuid: String,
    /// Memory; none if NVML does not show it.
    pub memory: Option<Memory>,
}

impl Instance {
    /// Its number and profile.
    pub fn label(&self) -> String {
        format!("MIG {} {}", self.index, self.profile)
    }
}

/// A process on a GPU.
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// MiB.
    pub memory: Option<u64>,
    /// GPU instance and compute instance.
    pub instance: Option<(u32, u32)>,
}

impl Gpu {
    /// It is among these ids: indices or UUIDs; without ids every GPU is.
    pub fn is_named(&self, ids: Option<&str>) -> bool {
        let is = |id: &str| id == self.uuid || id.parse() == Ok(self.index);
        ids.is_none_or(|ids| ids.split(',').any(|id| is(id.trim())))
    }
}

/// All GPUs.
pub fn read(nvml: &Nvml) -> Result<Vec<Gpu>, NvmlError> {
    let gpu = |index| {
        let gpu = nvml.device_by_index(index)?;
        Ok(Gpu {
            index,
            name: gpu.name()?,
            uuid: gpu.uuid()?,
            memory: memory(&gpu),
            readings: readings(&gpu),
            instances: instances(&gpu)?,
            processes: processes(nvml, &gpu)?,
        })
    };
    (0..nvml.device_count()?).map(gpu).collect()
}

fn readings(gpu: &Device<'_>) -> Readings {
    let mode = |mode| match mode {
        ComputeMode::Default => "Default",
        ComputeMode::ExclusiveThread => "Exclusive_Thread",
        ComputeMode::Prohibited => "Prohibited",
        ComputeMode::ExclusiveProcess => "Exclusive_Process",
    };
    Readings {
        serial: gpu.serial().ok(),
        address: gpu.pci_info().ok().map(|pci| pci.bus_id),
        capability: gpu.cuda_compute_capability().ok().map(|of| format!("{}.{}", of.major, of.minor)),
        utilization: gpu.utilization_rates().ok().map(|rates| (rates.gpu, rates.memory)),
        power: gpu.power_usage().ok(),
        power_limit: gpu.enforced_power_limit().ok(),
        temperature: gpu.temperature(TemperatureSensor::Gpu).ok(),
        compute_mode: gpu.compute_mode().ok().map(mode),
        persistence: gpu.is_in_persistent_mode().ok(),
        accounting: gpu.is_accounting_enabled().ok(),
        mig: gpu.mig_mode().ok().map(|mode| (mode.current == 1, mode.pending == 1)),
        ecc_errors: gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
    }
}

fn memory(device: &Device<'_>) -> Option<Memory> {
    let info = device.memory_info().ok()?;
    Some(Memory { total: info.total >> 20, used: info.used >> 20, free: info.free >> 20 })
}

fn instances(gpu: &Device<'_>) -> Result<Vec<Instance>, NvmlError> {
    let mut found = Vec::new();
    // without MIG mode NVML has no such number
    for index in 0..gpu.mig_device_count().unwrap_or(0) {
        let device = match gpu.mig_device_by_index(index) {
            Ok(device) => device,
            Err(NvmlError::NotFound) => continue,
            Err(NvmlError::NotSupported) => break,
            Err(error) => return Err(error),
        };
        let name = device.name()?;
        let profile = name.rsplit_once(" MIG ").map_or(name.as_str(), |(_, profile)| profile).to_owned();
        found.push(Instance { index, profile, uuid: device.uuid()?, memory: memory(&device) });
    }
    Ok(found)
}

fn processes(nvml: &Nvml, gpu: &Device<'_>) -> Result<Vec<Process>, NvmlError> {
    let process = |info: nvml_wrapper::struct_wrappers::device::ProcessInfo| Process {
        pid: info.pid,
        name: nvml.sys_process_name(info.pid, NAME).unwrap_or_else(|_| "[Not Found]".to_owned()),
        memory: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes >> 20),
            UsedGpuMemory::Unavailable => None,
        },
        instance: info.gpu_instance_id.zip(info.compute_instance_id),
    };
    Ok(gpu.running_compute_processes()?.into_iter().map(process).collect())
}

/// The GPU and its MIG devices, as `-L` shows them.
pub fn line(gpu: &Gpu) -> String {
    let own = format!("GPU {}: {} (UUID: {})\n", gpu.index, gpu.name, gpu.uuid);
    let instance =
        |mig: &Instance| format!("  MIG {:<16} Device {:>2}: (UUID: {})\n", mig.profile, mig.index, mig.uuid);
    own + &gpu.instances.iter().map(instance).collect::<String>()
}
