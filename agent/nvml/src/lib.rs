//! NVML, typed: what the node agent reads from the driver, and the few calls by which it changes MIG mode and MIG instances.
//!
//! The only unsafe code of the agent. A failed call returns an [`NvmlFailure`] with the call, NVML's code and NVML's message.

mod activity;
mod compute;
mod connection;
mod event;
mod failure;
mod gpm;
mod gpu;
mod instance;
mod library;
mod memory_limit;
mod name;
mod process;
mod profile;
mod recovery;

pub use compute::{ComputeInstance, ComputeInstanceInfo, ComputeProfile, full_width};
pub use connection::NvLinks;
pub use event::{EventSet, FaultEvent};
pub use failure::OpenError;
pub use gpm::GpmSample;
pub use gpu::{Activation, Gpu, Memory};
pub use gputenancy_agent_core::nvml::{
    ComputeMode, Connection, Engines, FaultKind, InstanceProfile, MemoryUse, MigMode, NvmlFailure, Process, Vgpu, code,
};
pub use instance::{GpuInstance, GpuInstanceInfo};
pub use library::{Nvml, Observer, Silent, find_library};
pub use memory_limit::{MemoryLimit, NO_LIMIT};
pub use name::profile_name;
pub use recovery::RecoveryAction;
