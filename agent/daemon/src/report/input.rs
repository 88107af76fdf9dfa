//! What the status is built from.

use std::time::Duration;

use gputenancy_crds::{GpuNodeStatus, Sandbox};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    attribution::Attributed,
    audit::Bypasses,
    device::{Device, DeviceOwner, DeviceView, KubeletView},
    enforcement::{OtherLimits, ShareSizes},
    gpu::processes::process_origin::Origin,
    mps::MpsView,
    partition::PartitionState,
};

/// What the status is built from.
pub struct StatusInput<'a> {
    /// Inventory and progress.
    pub state: &'a PartitionState,
    /// The devices.
    pub view: &'a DeviceView,
    /// The MPS daemons.
    pub mps: &'a MpsView,
    /// Kubelet's view of the devices.
    pub kubelet: &'a KubeletView,
    /// The processes on devices by container, those that NVML does not list, and memory that none of them explains.
    pub processes: &'a Attributed,
    /// The sandbox of the owner of a share, if it runs in one.
    pub sandbox: &'a dyn Fn(&Device, &DeviceOwner) -> Option<Sandbox>,
    /// Shares whose memory limit is bypassed.
    pub bypasses: &'a Bypasses,
    /// Memory of containers on fractions.
    pub sizes: &'a ShareSizes,
    /// Limits that other products give to pods.
    pub other_limits: &'a OtherLimits,
    /// The NVML call in progress.
    pub nvml_call: Option<(&'static str, Duration)>,
    /// Command and origin of a process.
    pub origin: &'a dyn Fn(u32) -> (String, Origin),
    /// The kernel's boot id.
    pub boot_id: &'a str,
    /// The driver is simulated.
    pub simulated: bool,
    /// The previous conditions, for their transition times.
    pub old: &'a [Condition],
    /// The last status of an earlier run.
    pub earlier: &'a GpuNodeStatus,
}
