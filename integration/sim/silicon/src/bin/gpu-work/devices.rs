//! The devices that NVML shows to this process.

use std::error::Error;
use std::fmt;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use silicon::Machine;

/// A device that a program could use: a MIG device, or a GPU that is not in MIG mode.
pub struct Device {
    /// GPU index on the node.
    pub gpu: u32,
    /// GPU-instance and compute-instance id.
    pub instance: Option<(u32, u32)>,
    gpu_uuid: String,
    mig_uuid: Option<String>,
    /// Name of the MIG profile, or of the GPU.
    name: String,
    memory_mib: u64,
}

impl Device {
    /// Is this its UUID?
    pub fn is(&self, uuid: &str) -> bool {
        uuid == self.mig_uuid.as_ref().unwrap_or(&self.gpu_uuid)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu={}", self.gpu_uuid)?;
        match (&self.mig_uuid, self.instance) {
            (Some(uuid), Some((gi, ci))) => write!(f, " mig={uuid} profile={} gi={gi} ci={ci}", self.name)?,
            _ => write!(f, " name={:?}", self.name)?,
        }
        write!(f, " memory={}MiB", self.memory_mib)
    }
}

/// The usable devices among those that NVML shows; the machine gives the ids to attach with.
pub fn visible(nvml: &Nvml, machine: &Machine) -> Result<Vec<Device>, Box<dyn Error>> {
    let mut found = Vec::new();
    for index in 0..nvml.device_count()? {
        let gpu = nvml.device_by_index(index)?;
        let gpu_uuid = gpu.uuid()?;
        let on_node = machine.gpus.iter().find(|g| g.uuid == gpu_uuid).ok_or("a GPU that the state does not have")?;
        if !on_node.mig {
            found.push(Device {
                gpu: on_node.index,
                instance: None,
                name: gpu.name()?,
                memory_mib: gpu.memory_info()?.total >> 20,
                gpu_uuid,
                mig_uuid: None,
            });
            continue;
        }
        for slot in 0..gpu.mig_device_count()? {
            let mig = match gpu.mig_device_by_index(slot) {
                Ok(mig) => mig,
                Err(NvmlError::NotFound) => continue,
                Err(e) => return Err(e.into()),
            };
            let uuid = mig.uuid()?;
            let devices = machine.mig_devices();
            let known = devices.iter().find(|d| d.uuid() == uuid).ok_or("a MIG device that the state does not have")?;
            let full = mig.name()?;
            found.push(Device {
                gpu: on_node.index,
                instance: Some((known.gi.id, known.ci.id)),
                name: full.rsplit_once(" MIG ").map_or(full.as_str(), |(_, profile)| profile).into(),
                memory_mib: mig.memory_info()?.total >> 20,
                gpu_uuid: gpu_uuid.clone(),
                mig_uuid: Some(uuid),
            });
        }
    }
    Ok(found)
}
