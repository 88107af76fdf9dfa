//! Why a device is not allocated.

use std::io;

use crate::device::{DeviceId, DeviceOwner};

/// Why a device is not allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Withdrawn, unhealthy or unknown.
    #[error("device {0} is not advertised")]
    NotOffered(DeviceId),
    /// Kubelet allocates a device that a container has.
    #[error(
        "device {id} is allocated to container {} of pod {}/{}, and kubelet dropped that allocation (kubernetes/kubernetes#137534)",
        owner.container, owner.namespace, owner.pod
    )]
    Held {
        /// The device.
        id: DeviceId,
        /// The container.
        owner: DeviceOwner,
    },
    /// It was allocated before, and kubelet does not report whether that container still has it.
    #[error("device {0} may be allocated to a container: kubelet's pod resources API does not answer: {1}")]
    Unknown(DeviceId, String),
    /// A process of another pod uses it, or one of no pod.
    #[error("device {id} is still in use by {process}: it is free when that process has ended; wait, or end it")]
    InUse {
        /// The device.
        id: DeviceId,
        /// The process, without names of another pod.
        process: String,
    },
    /// NVML does not list its processes.
    #[error("device {0} may be in use by another pod: NVML does not list its processes: {1}")]
    Unchecked(DeviceId, String),
}

/// Why the memory of a share is not limited.
#[derive(Debug, thiserror::Error)]
pub enum NotLimited {
    /// A container has one ledger.
    #[error("share {0}: a container gets one share with a memory limit: ask for one, or for a larger one")]
    Second(DeviceId),
    /// The files could not be written.
    #[error("limits of share {0} were not written: {1}")]
    Unwritten(DeviceId, #[source] io::Error),
}

impl Refusal {
    /// The reason as a label of a metric.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotOffered(_) => "NotOffered",
            Self::Held { .. } => "Held",
            Self::Unknown(..) => "Unknown",
            Self::InUse { .. } => "InUse",
            Self::Unchecked(..) => "Unchecked",
        }
    }
}
