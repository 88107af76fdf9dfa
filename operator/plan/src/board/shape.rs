//! The demand of a profile on the hardware; a board resolves it.

use gputenancy_crds::{ComputeMode, Interval, ResizePolicy, SharingMode};

/// The hardware of one device of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A whole GPU without MIG.
    Whole,
    /// A MIG instance, by NVIDIA's name.
    Named(String),
    /// The smallest MIG instance with at least so many compute slices and MiB of memory.
    AtLeast {
        /// Compute slices.
        slices: i32,
        /// MiB.
        memory: i64,
    },
    /// A share of a GPU without MIG.
    Share(ShareShape),
    /// A time-slice of a MIG instance.
    Slice {
        /// The instance: `Named` or `AtLeast`.
        of: Box<Shape>,
        /// Time-slices of one instance.
        replicas: i32,
    },
}

impl Shape {
    /// How pods share the hardware; `None`: they do not.
    pub fn sharing_mode(&self) -> Option<SharingMode> {
        match self {
            Self::Share(share) => Some(share.mode),
            Self::Slice { .. } => Some(SharingMode::TimeSlice),
            Self::Whole | Self::Named(_) | Self::AtLeast { .. } => None,
        }
    }

    /// Time-slices of one MIG instance; `None`: an instance is one device.
    pub fn replicas(&self) -> Option<i32> {
        if let Self::Slice { replicas, .. } = self { Some(*replicas) } else { None }
    }
}

/// A share of a GPU, as a profile has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareShape {
    /// How the pods are kept apart.
    pub mode: SharingMode,
    /// Length of a time-slice.
    pub interval: Interval,
    /// Effect of a smaller memory on pods that hold more.
    pub resize: ResizePolicy,
    /// Whether it may use compute that its neighbours leave idle.
    pub compute_mode: ComputeMode,
    /// Its size.
    pub size: ShareSize,
}

/// The size of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareSize {
    /// One of so many equal shares.
    Equal(i32),
    /// Memory in MiB and compute in percent of the GPU.
    Part {
        /// MiB.
        memory: i64,
        /// Percent.
        compute: i32,
    },
}
