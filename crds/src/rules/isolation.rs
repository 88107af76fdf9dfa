//! The isolation of pods on one GPU.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::tolerant::Extensible;

/// Means that separate or limit pods on one GPU, strongest first: Hardware (MIG or a whole GPU), Driver, Server (MPS), Software (memory limit in the container), None. The isolation of a profile is never Software, because a hostile program can bypass that limit; the enforcement of a GpuNode is about the memory of new containers.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
pub enum Isolation {
    /// MIG or a whole GPU.
    Hardware,
    /// Limits in the driver.
    Driver,
    /// Limits in the MPS server.
    Server,
    /// Limits in a library inside the container.
    Software,
    /// Nothing.
    #[default]
    None,
}

impl Extensible for Isolation {
    /// The weakest means.
    const UNKNOWN: Self = Self::None;
}

impl Isolation {
    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hardware => "Hardware",
            Self::Driver => "Driver",
            Self::Server => "Server",
            Self::Software => "Software",
            Self::None => "None",
        }
    }

    /// Whether it is as strong as this one, or stronger.
    pub fn is_at_least(self, minimum: Self) -> bool {
        self <= minimum
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
