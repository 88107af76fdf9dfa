//! What NVML reports, as plain data. `gputenancy-nvml` reads it.

/// NVML's return codes that this project uses.
pub mod code {
    #![allow(missing_docs, reason = "NVML's names")]
    pub const SUCCESS: u32 = 0;
    pub const UNINITIALIZED: u32 = 1;
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NOT_FOUND: u32 = 6;
    pub const INSUFFICIENT_SIZE: u32 = 7;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const TIMEOUT: u32 = 10;
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    pub const GPU_IS_LOST: u32 = 15;
    pub const RESET_REQUIRED: u32 = 16;
    pub const OPERATING_SYSTEM: u32 = 17;
    pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
    pub const IN_USE: u32 = 19;
    pub const MEMORY: u32 = 20;
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
    pub const NOT_READY: u32 = 27;
    pub const UNKNOWN: u32 = 999;
}

/// A call that NVML refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message} ({code})")]
pub struct NvmlFailure {
    /// Name of the C function.
    pub call: &'static str,
    /// NVML's return code, see [`code`].
    pub code: u32,
    /// NVML's message for the code.
    pub message: String,
}

impl NvmlFailure {
    /// `None` if device or library do not support the call.
    pub fn optional<T>(result: Result<T, Self>) -> Result<Option<T>, Self> {
        Self::none_for(&[code::NOT_SUPPORTED, code::FUNCTION_NOT_FOUND], result)
    }

    /// `None` if the call failed with one of these codes.
    pub fn none_for<T>(codes: &[u32], result: Result<T, Self>) -> Result<Option<T>, Self> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failure) if codes.contains(&failure.code) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

/// All memory of a GPU or MIG device by its use, in bytes: the sum is its total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Reserved by the driver.
    pub reserved: u64,
    /// In use, without what the driver reserves.
    pub used: u64,
    /// Neither.
    pub free: u64,
}

/// MIG mode of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigMode {
    /// The current mode.
    pub current: bool,
    /// The mode after the next reset.
    pub pending: bool,
}

/// Which processes may create contexts on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One process, such as an MPS server: a program that does not find the server fails instead of running at the same time.
    ExclusiveProcess,
    /// Another mode, such as `NVML_COMPUTEMODE_PROHIBITED`; NVML's number.
    Other(u32),
}

/// How NVIDIA's vGPU software uses a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vgpu {
    /// It is a vGPU in a virtual machine.
    Guest,
    /// It is on a hypervisor, which gives parts of it to virtual machines.
    Host,
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id in this pid namespace; 0 if it has none here.
    pub pid: u32,
    /// GPU instance that it uses, with MIG.
    pub gi: Option<u32>,
    /// Compute instance that it uses, with MIG.
    pub ci: Option<u32>,
    /// Bytes of the device that it uses; `None` where the driver does not report them.
    pub memory: Option<u64>,
}

/// Engines of one instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    /// Copy engines.
    pub copy: u32,
    /// Decoders.
    pub decoder: u32,
    /// Encoders.
    pub encoder: u32,
    /// JPEG decoders.
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub ofa: u32,
}

/// A profile of the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceProfile {
    /// The device's id, which creation takes; not the enum by which the profile was found.
    pub id: u32,
    /// NVIDIA's name, such as `1g.10gb`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// Most instances on one GPU.
    pub max: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory of one instance, in MiB.
    pub memory_mib: u64,
    /// Engines of one instance.
    pub engines: Engines,
    /// Memory slices that one instance covers.
    pub size: u32,
    /// Memory slices at which one may start.
    pub starts: Vec<u32>,
}

/// The best path between two GPUs, from the slowest to the fastest kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connection {
    /// Through the link between two NUMA nodes (`NVML_TOPOLOGY_SYSTEM`).
    System,
    /// Through PCI host bridges of one NUMA node (`NVML_TOPOLOGY_NODE`).
    NumaNode,
    /// Through one PCI host bridge (`NVML_TOPOLOGY_HOSTBRIDGE`).
    HostBridge,
    /// Through several PCI switches (`NVML_TOPOLOGY_MULTIPLE`).
    Switches,
    /// Through one PCI switch (`NVML_TOPOLOGY_SINGLE`).
    Switch,
    /// On one board (`NVML_TOPOLOGY_INTERNAL`).
    Board,
    /// Through this many active links of `NVLink`, directly or through its switches.
    NvLink(u32),
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An Xid error with this number.
    Xid(u64),
    /// A memory error that ECC could not correct.
    UncorrectableEcc,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nvlink_is_faster_than_pci() {
        assert!(Connection::NvLink(1) > Connection::Board && Connection::NvLink(2) > Connection::NvLink(1));
        assert!(Connection::Switch > Connection::Switches && Connection::NumaNode > Connection::System);
    }
}
