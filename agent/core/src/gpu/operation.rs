//! Operations that change a GPU: each is one NVML call or one reset, and fails if a process would lose its instance.

use std::fmt;

use gputenancy_crds::GpuError;

use crate::{
    nvml::{ComputeMode, NvmlFailure, code},
    to_i32,
};

/// The command that resets a GPU, as errors and metrics name it.
pub const RESET_CALL: &str = "nvidia-smi --gpu-reset";

/// One change of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Enable or disable MIG mode.
    SetMode {
        /// Enable.
        on: bool,
    },
    /// Reset the GPU, which applies a pending mode.
    Reset {
        /// PCI address.
        pci_bus_id: String,
    },
    /// Destroy an unused compute instance.
    DestroyCompute {
        /// GPU instance id.
        gi: u32,
        /// Compute instance id.
        ci: u32,
    },
    /// Destroy an unused GPU instance.
    DestroyInstance {
        /// GPU instance id.
        gi: u32,
    },
    /// Create a GPU instance at exactly this placement.
    CreateInstance {
        /// The device's id of the profile.
        profile_id: u32,
        /// First memory slice.
        start: u32,
        /// Memory slices.
        size: u32,
    },
    /// Create the compute instance that covers a whole GPU instance.
    CreateCompute {
        /// GPU instance id.
        gi: u32,
        /// Compute slices of the GPU instance.
        slices: u32,
    },
    /// Set the compute mode.
    SetComputeMode {
        /// The mode.
        mode: ComputeMode,
    },
}

impl Operation {
    /// Label in metrics, and the call that executes it.
    pub fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::SetMode { .. } => ("set-mode", "nvmlDeviceSetMigMode"),
            Self::Reset { .. } => ("reset", RESET_CALL),
            Self::DestroyCompute { .. } => ("destroy-compute", "nvmlComputeInstanceDestroy"),
            Self::DestroyInstance { .. } => ("destroy-instance", "nvmlGpuInstanceDestroy"),
            Self::CreateInstance { .. } => ("create-instance", "nvmlDeviceCreateGpuInstanceWithPlacement"),
            Self::CreateCompute { .. } => ("create-compute", "nvmlGpuInstanceCreateComputeInstance"),
            Self::SetComputeMode { .. } => ("set-compute-mode", "nvmlDeviceSetComputeMode"),
        }
    }
}

impl fmt::Display for Operation {
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
            Self::SetComputeMode { mode } => write!(f, "setting compute mode {mode:?}"),
        }
    }
}

/// Why an operation was not executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// NVML refused.
    #[error(transparent)]
    Nvml(#[from] NvmlFailure),
    /// Processes use the instance; nothing was changed.
    #[error("in use by {} process(es): {}", .pids.len(), list(.pids))]
    InUse {
        /// Process ids on the node; 0 for a process of another pid namespace.
        pids: Vec<u32>,
    },
    /// The object of the operation does not exist any more.
    #[error("{0} is gone")]
    Gone(String),
    /// The call succeeded, and NVML reports the same state as before.
    #[error("{call} succeeded and changed nothing")]
    NoEffect {
        /// The call.
        call: &'static str,
    },
    /// The reset failed.
    #[error("{RESET_CALL}: {message}")]
    Reset {
        /// Exit status of the tool; -1 if it could not be run.
        status: i32,
        /// Its output.
        message: String,
    },
}

impl OperationError {
    /// The error as the status records it. `doing` names the operation.
    pub fn to_status(&self, doing: &str, generation: i64) -> GpuError {
        let (call, code, message) = match self {
            Self::Nvml(failure) => (failure.call, to_i32(failure.code), failure.message.clone()),
            Self::Reset { status, message } => (RESET_CALL, *status, message.clone()),
            Self::NoEffect { call } => (*call, to_i32(code::UNKNOWN), self.to_string()),
            Self::InUse { .. } | Self::Gone(_) => ("", 0, self.to_string()),
        };
        GpuError { call: call.to_owned(), code, message: format!("{doing}: {message}"), generation }
    }
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
