//! NVML's return codes.

use std::fmt;

/// An NVML return code other than success; any number is allowed because faults may inject any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Code(pub u32);

/// Code and message pairs, as `nvmlErrorString` words them.
const MESSAGES: &[(Code, &str)] = &[
    (Code(0), "Success"),
    (Code::UNINITIALIZED, "Uninitialized"),
    (Code::INVALID_ARGUMENT, "Invalid Argument"),
    (Code::NOT_SUPPORTED, "Not Supported"),
    (Code::NO_PERMISSION, "Insufficient Permissions"),
    (Code::NOT_FOUND, "Not Found"),
    (Code::INSUFFICIENT_SIZE, "Insufficient Size"),
    (Code::DRIVER_NOT_LOADED, "Driver Not Loaded"),
    (Code::TIMEOUT, "Timeout"),
    (Code(11), "Interrupt Request Issue"),
    (Code(12), "NVML Shared Library Not Found"),
    (Code(13), "Function Not Found"),
    (Code(14), "Corrupted infoROM"),
    (Code::GPU_IS_LOST, "GPU is lost"),
    (Code::RESET_REQUIRED, "GPU requires reset"),
    (Code(17), "GPU access blocked by the operating system"),
    (Code(18), "Driver/library version mismatch"),
    (Code::IN_USE, "In use by another client"),
    (Code(20), "Insufficient Memory"),
    (Code(21), "No data"),
    (Code(22), "The requested vgpu operation is not available on target device"),
    (Code::INSUFFICIENT_RESOURCES, "Insufficient Resources"),
    (Code(24), "Frequency not supported"),
    (Code::ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"),
    (Code(27), "Not ready"),
    (Code(28), "No GPUs found"),
    (Code(29), "Invalid state"),
    (Code::UNKNOWN, "Unknown Error"),
];

impl Code {
    /// NVML was not initialised by this process.
    pub const UNINITIALIZED: Self = Self(1);
    /// An argument is out of range, or a handle is stale.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// The board or its present mode has no such feature.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// This process may not change the GPU.
    pub const NO_PERMISSION: Self = Self(4);
    /// Nothing has this index, id or UUID.
    pub const NOT_FOUND: Self = Self(6);
    /// The caller's buffer is too small.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// There is no (simulated) driver.
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    /// The wait ended with nothing to report.
    pub const TIMEOUT: Self = Self(10);
    /// The GPU fell off the bus.
    pub const GPU_IS_LOST: Self = Self(15);
    /// The change takes effect at the next reset.
    pub const RESET_REQUIRED: Self = Self(16);
    /// A client process or a child instance uses it.
    pub const IN_USE: Self = Self(19);
    /// The instance does not fit: placement occupied, engines used up or the profile's maximum reached.
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
    /// A versioned struct of an unknown version.
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    /// Anything else.
    pub const UNKNOWN: Self = Self(999);

    /// The message of `nvmlErrorString`.
    pub fn message(self) -> &'static str {
        MESSAGES.iter().find(|(code, _)| *code == self).map_or("Unknown Error", |(_, text)| text)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message(), self.0)
    }
}

impl std::error::Error for Code {}
