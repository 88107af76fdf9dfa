//! What one reading of a GPU shows, as NVML measures it.

use std::collections::BTreeMap;

/// Utilization of a GPU without MIG in NVML's last sample period, of a sixth of a second to one second (`nvmlUtilization_t` in nvml.h): parts of the time,
/// from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// At least one kernel ran.
    pub gpu: f64,
    /// Memory was read or written.
    pub memory: f64,
}

/// The part of a GPU's time that a process used in NVML's last sample period, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessRate {
    /// Its id in this pid namespace.
    pub pid: u32,
    /// Part of the time, by NVML's `smUtil`.
    pub time: f64,
}

/// Performance monitoring (GPM) of a GPU or GPU instance between two readings, each from 0 to 1; `None` where the board has no such metric.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Performance {
    /// Part of the time in which a kernel ran.
    pub graphics: Option<f64>,
    /// Part of the multiprocessors with work.
    pub sm: Option<f64>,
    /// Resident warps.
    pub occupancy: Option<f64>,
    /// Part of the time in which tensor cores worked.
    pub tensor: Option<f64>,
    /// Memory bandwidth in use.
    pub dram: Option<f64>,
}

/// Bytes since the driver was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the GPU.
    pub transmit: Option<u64>,
    /// To the GPU.
    pub receive: Option<u64>,
}

/// Why the clock of a GPU is lower than it could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClockLimit {
    /// The configured limit of power.
    PowerCap,
    /// The power supply asks for less.
    PowerBrake,
    /// Temperature.
    Thermal,
    /// The hardware slows down, for power or temperature.
    Slowdown,
}

impl ClockLimit {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::PowerCap, Self::PowerBrake, Self::Thermal, Self::Slowdown];

    /// Its bits in `nvmlClocksEventReasons` (nvml.h).
    pub fn bits(self) -> u64 {
        match self {
            Self::PowerCap => 0x4,
            Self::Slowdown => 0x8,
            // by software, and by hardware
            Self::Thermal => 0x20 | 0x40,
            Self::PowerBrake => 0x80,
        }
    }

    /// Value of the label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PowerCap => "power-cap",
            Self::PowerBrake => "power-brake",
            Self::Thermal => "thermal",
            Self::Slowdown => "slowdown",
        }
    }
}

/// What only a board has, never an instance of it; `None` where the driver does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Board {
    /// Power, in milliwatts.
    pub power: Option<u32>,
    /// Energy since the driver was loaded, in millijoules.
    pub energy: Option<u64>,
    /// Temperature of the GPU, in degrees Celsius.
    pub temperature: Option<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub clock: Option<u32>,
    /// Why the clock is lowered, as a bit mask of NVML: see [`ClockLimit::bits`].
    pub clock_events: Option<u64>,
    /// Traffic over the PCI bus.
    pub pcie: Traffic,
    /// Traffic over `NVLink`.
    pub nvlink: Traffic,
}

/// One reading of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// UUID of the GPU.
    pub uuid: String,
    /// Utilization by NVML's counters; `None` in MIG mode.
    pub rates: Option<Rates>,
    /// Processes that ran a kernel in the sample period; `None` in MIG mode, and where the board does not know them.
    pub processes: Option<Vec<ProcessRate>>,
    /// GPM since the reading before, by GPU instance, `None` for the whole GPU; empty on boards without it and in the first reading.
    pub performance: BTreeMap<Option<u32>, Performance>,
    /// The same by NVIDIA's dcgm-exporter, as an average of its own interval; empty without one.
    pub dcgm: BTreeMap<Option<u32>, Performance>,
    /// The board.
    pub board: Board,
}
