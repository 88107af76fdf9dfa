//! How long the driver takes, as measured on real hardware.

use std::time::Duration;

use crate::machine::Machine;

/// A driver call with a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// Creating a GPU instance.
    CreateGpuInstance,
    /// Destroying a GPU instance.
    DestroyGpuInstance,
    /// Creating a compute instance.
    CreateComputeInstance,
    /// Destroying a compute instance.
    DestroyComputeInstance,
    /// Changing MIG mode at once.
    SetMode,
    /// Resetting a GPU.
    Reset,
}

impl Slow {
    /// Milliseconds on real hardware.
    pub const fn real_ms(self) -> u64 {
        match self {
            Self::CreateGpuInstance => 250,
            Self::DestroyGpuInstance => 1000,
            Self::CreateComputeInstance | Self::DestroyComputeInstance => 80,
            Self::SetMode => 1500,
            Self::Reset => 4000,
        }
    }

    /// Duration on this machine.
    pub fn on(self, machine: &Machine) -> Duration {
        Duration::from_micros(self.real_ms() * u64::from(machine.latency_permille))
    }
}
