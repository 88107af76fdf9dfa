//! The changes that the agent makes to a GPU, each one call to NVML (or one reset), carried out only when it harms nobody.

use std::fmt;

use gputenancy_nvml::{Activation, Gpu, GpuInstance, Nvml, NvmlFailure, code, full_width};

use super::{
    holders::{Capability, cap_minors, holders_of, minors_table},
    thread::Opened,
};

/// One change of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ask for a MIG mode.
    SetMode {
        /// On or off.
        on: bool,
    },
    /// Reset the GPU, so that a pending mode comes into force.
    Reset {
        /// PCI address, which the resetting tool takes.
        pci_bus_id: String,
    },
    /// Destroy a compute instance that nobody uses.
    DestroyCompute {
        /// GPU instance id.
        gi: u32,
        /// Compute instance id.
        ci: u32,
    },
    /// Destroy a GPU instance that nobody uses.
    DestroyInstance {
        /// GPU instance id.
        gi: u32,
    },
    /// Create a GPU instance at exactly this place.
    CreateInstance {
        /// The device's id of the profile.
        profile_id: u32,
        /// First memory slice.
        start: u32,
        /// Memory slices.
        size: u32,
    },
    /// Create the compute instance that covers all of a GPU instance.
    CreateCompute {
        /// GPU instance id.
        gi: u32,
        /// Compute slices of the GPU instance.
        slices: u32,
    },
}

impl Order {
    /// One word for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SetMode { .. } => "set-mode",
            Self::Reset { .. } => "reset",
            Self::DestroyCompute { .. } => "destroy-compute",
            Self::DestroyInstance { .. } => "destroy-instance",
            Self::CreateInstance { .. } => "create-instance",
            Self::CreateCompute { .. } => "create-compute",
        }
    }

    /// The call that carries it out.
    pub fn call(&self) -> &'static str {
        match self {
            Self::SetMode { .. } => "nvmlDeviceSetMigMode",
            Self::Reset { .. } => "nvidia-smi --gpu-reset",
            Self::DestroyCompute { .. } => "nvmlComputeInstanceDestroy",
            Self::DestroyInstance { .. } => "nvmlGpuInstanceDestroy",
            Self::CreateInstance { .. } => "nvmlDeviceCreateGpuInstanceWithPlacement",
            Self::CreateCompute { .. } => "nvmlGpuInstanceCreateComputeInstance",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetMode { on } => write!(f, "turning MIG {}", if *on { "on" } else { "off" }),
            Self::Reset { pci_bus_id } => write!(f, "resetting GPU {pci_bus_id}"),
            Self::DestroyCompute { gi, ci } => write!(f, "destroying compute instance {ci} of GPU instance {gi}"),
            Self::DestroyInstance { gi } => write!(f, "destroying GPU instance {gi}"),
            Self::CreateInstance { profile_id, start, size } => {
                write!(f, "creating an instance of profile id {profile_id} at {start}:{size}")
            }
            Self::CreateCompute { gi, .. } => write!(f, "creating the compute instance of GPU instance {gi}"),
        }
    }
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// NVML refused.
    #[error(transparent)]
    Nvml(#[from] NvmlFailure),
    /// Processes use what should go; nothing was touched.
    #[error("in use by {} process(es): {}", .pids.len(), list(.pids))]
    InUse {
        /// Their ids on the node; 0 for one that has none here.
        pids: Vec<u32>,
    },
    /// What should be changed is not there any more: look again.
    #[error("{0} is gone")]
    Gone(String),
    /// The call succeeded, and NVML shows what it showed before.
    #[error("{call} succeeded and changed nothing")]
    NoEffect {
        /// The call.
        call: &'static str,
    },
    /// The tool that resets GPUs failed.
    #[error("nvidia-smi --gpu-reset: {message}")]
    Reset {
        /// Its exit status; -1 when it could not be run.
        status: i32,
        /// What it said.
        message: String,
    },
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Carries out an order other than [`Order::Reset`], which needs NVML closed.
pub(super) fn carry_out(opened: &Opened<'_>, uuid: &str, order: &Order) -> Result<(), OrderError> {
    let gpu = find(opened.nvml, uuid)?;
    match *order {
        Order::SetMode { on } => {
            if let Activation::Pending(reason) = gpu.set_mig_mode(on)? {
                tracing::info!(gpu = uuid, %reason, "MIG mode is pending");
            }
        }
        Order::Reset { .. } => {}
        Order::DestroyCompute { gi, ci } => {
            let Some(instance) = gpu.gpu_instance(gi)? else { return Err(gone("GPU instance", gi)) };
            refuse_if_used(&gpu, opened, &instance, gi)?;
            let Some(compute) = instance.compute_instance(ci)? else { return Err(gone("compute instance", ci)) };
            compute.destroy()?;
        }
        Order::DestroyInstance { gi } => {
            let Some(instance) = gpu.gpu_instance(gi)? else { return Err(gone("GPU instance", gi)) };
            refuse_if_used(&gpu, opened, &instance, gi)?;
            instance.destroy()?;
        }
        Order::CreateInstance { profile_id, start, size } => {
            gpu.create_gpu_instance(profile_id, start, size)?;
        }
        Order::CreateCompute { gi, slices } => {
            let Some(instance) = gpu.gpu_instance(gi)? else { return Err(gone("GPU instance", gi)) };
            let profile = full_width(&instance.compute_profiles()?, slices).ok_or_else(|| NvmlFailure {
                call: "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                code: code::NOT_FOUND,
                message: format!("no compute profile of {slices} slices"),
            })?;
            instance.create_compute_instance(profile.id)?;
        }
    }
    Ok(())
}

fn gone(what: &str, id: u32) -> OrderError {
    OrderError::Gone(format!("{what} {id}"))
}

fn find<'n>(nvml: &'n Nvml, uuid: &str) -> Result<Gpu<'n>, OrderError> {
    for index in 0..nvml.gpu_count()? {
        // A lost neighbour must not keep this GPU from being found.
        let Ok(gpu) = nvml.gpu(index) else { continue };
        if gpu.uuid().is_ok_and(|found| found == uuid) {
            return Ok(gpu);
        }
    }
    Err(OrderError::Gone(format!("GPU {uuid}")))
}

/// The last look before a destroy: NVML by GPU, NVML by MIG device, and open capability files.
fn refuse_if_used(gpu: &Gpu<'_>, opened: &Opened<'_>, instance: &GpuInstance<'_>, gi: u32) -> Result<(), OrderError> {
    let mut pids: Vec<u32> = gpu.processes()?.iter().filter(|p| p.gi == Some(gi)).map(|p| p.pid).collect();
    let mut capabilities = vec![Capability::Instance { gi }];
    for compute in instance.compute_instances(&instance.compute_profiles()?)? {
        let info = compute.info()?;
        capabilities.push(Capability::Compute { gi, ci: info.id });
        if let Some(device) = compute.mig_device(gi, &info)? {
            pids.extend(device.processes()?.iter().map(|process| process.pid));
        }
    }
    let table = minors_table(&opened.places.proc_root, &opened.driver_root.seen);
    pids.extend(holders_of(&opened.places.proc_root, &cap_minors(&table, gpu.minor()?, &capabilities)));
    pids.sort_unstable();
    pids.dedup();
    if pids.is_empty() { Ok(()) } else { Err(OrderError::InUse { pids }) }
}
