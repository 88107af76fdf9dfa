//! A board: geometry, GPU-instance profiles and engines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// MiB reserved by the driver on a whole GPU.
pub const RESERVED_MIB: u64 = 512;

/// A board as its data file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// Short name, the file's name.
    pub key: String,
    /// Product name as NVML reports it.
    pub name: String,
    /// GPU architecture.
    pub arch: Arch,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// PCI device and vendor id, `0xDDDDVVVV`.
    pub pci_device_id: u32,
    /// Framebuffer in MiB.
    pub memory_mib: u64,
    /// Most MIG devices the board can have; 0 without MIG.
    pub max_mig_devices: u32,
    /// The memory axis that instances are placed on; none without MIG.
    pub geometry: Option<Geometry>,
    /// GPU-instance profiles.
    pub profiles: Vec<Profile>,
}

/// Architectures that differ in how MIG mode changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arch {
    /// No MIG.
    Turing,
    /// A mode change waits for a reset and survives a reboot.
    Ampere,
    /// A mode change is immediate when idle and lost at a reboot.
    Hopper,
    /// As Hopper.
    Blackwell,
    /// As Hopper.
    BlackwellUltra,
}

impl Arch {
    /// Whether a MIG mode change waits for a GPU reset.
    pub fn mode_needs_reset(self) -> bool {
        self == Self::Ampere
    }

    /// Whether MIG mode survives a power cycle (it is kept in the `InfoROM`).
    pub fn mode_persists(self) -> bool {
        self == Self::Ampere
    }

    /// Whether NVML has performance monitoring (GPM): "For Hopper or newer fully supported devices" (nvml.h).
    pub fn has_gpm(self) -> bool {
        match self {
            Self::Turing | Self::Ampere => false,
            Self::Hopper | Self::Blackwell | Self::BlackwellUltra => true,
        }
    }

    /// NVML's `nvmlDeviceArchitecture_t`.
    pub fn nvml(self) -> u32 {
        match self {
            Self::Turing => 6,
            Self::Ampere => 7,
            Self::Hopper => 9,
            Self::Blackwell | Self::BlackwellUltra => 10,
        }
    }
}

/// The memory axis of a MIG board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Length of the axis in memory units.
    pub memory_units: u32,
    /// Compute slices of the whole GPU.
    pub compute_slices: u32,
    /// For each width, the starts in the order in which the driver tries them.
    pub create_preference: BTreeMap<u32, Vec<u32>>,
    /// GPU-instance id at `size:start` on normal boards.
    pub gi_ids_normal: BTreeMap<String, u32>,
    /// GPU-instance id at `size:start` on flipped boards.
    pub gi_ids_flipped: BTreeMap<String, u32>,
}

/// Two variants of the same board differ in which half of the memory axis is half 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Half 1 is at start 0.
    #[default]
    Normal,
    /// Half 1 is at the middle.
    Flipped,
}

impl Geometry {
    /// The id that an instance at this placement gets.
    pub fn gi_id(&self, variant: Variant, placement: Placement) -> Option<u32> {
        let ids = match variant {
            Variant::Normal => &self.gi_ids_normal,
            Variant::Flipped => &self.gi_ids_flipped,
        };
        ids.get(&format!("{}:{}", placement.size, placement.start)).copied()
    }
}

/// An interval on the memory axis, in memory units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// First unit.
    pub start: u32,
    /// Number of units.
    pub size: u32,
}

impl Placement {
    /// Whether two intervals share a unit.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

/// A GPU-instance profile of a board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Name as `nvidia-smi mig -lgip` prints it, without the prefix `MIG `.
    pub name: String,
    /// Id on the device: what the create calls take.
    pub id: u32,
    /// NVML's profile enum: what the profile-info calls take.
    pub nvml_enum: u32,
    /// Compute slices.
    pub slices: u32,
    /// Width in memory units.
    pub size: u32,
    /// Allowed starts.
    pub starts: Vec<u32>,
    /// Most instances of this profile at once.
    pub max_instances: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Engines of one instance.
    #[serde(flatten)]
    pub engines: Engines,
}

/// Engine counts of an instance, or a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engines {
    /// Streaming multiprocessors.
    pub sm: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG engines.
    pub jpeg: u32,
    /// Optical flow engines.
    pub ofa: u32,
}

impl Engines {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            sm: self.sm + other.sm,
            copy_engines: self.copy_engines + other.copy_engines,
            decoders: self.decoders + other.decoders,
            encoders: self.encoders + other.encoders,
            jpeg: self.jpeg + other.jpeg,
            ofa: self.ofa + other.ofa,
        }
    }

    /// Whether no count exceeds the limit's.
    pub fn within(self, limit: Self) -> bool {
        self.sm <= limit.sm
            && self.copy_engines <= limit.copy_engines
            && self.decoders <= limit.decoders
            && self.encoders <= limit.encoders
            && self.jpeg <= limit.jpeg
            && self.ofa <= limit.ofa
    }
}

impl Board {
    /// The profile with this device id.
    pub fn profile(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.id == id)
    }

    /// The profile with this NVML enum.
    pub fn profile_by_enum(&self, nvml_enum: u32) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.nvml_enum == nvml_enum)
    }

    /// Engines of the whole GPU.
    pub fn engines(&self) -> Engines {
        let units = self.geometry.as_ref().map_or(0, |g| g.memory_units);
        self.profiles.iter().find(|p| p.size == units).map(|p| p.engines).unwrap_or_default()
    }

    /// Whether the board has MIG.
    pub fn has_mig(&self) -> bool {
        self.geometry.is_some()
    }
}
