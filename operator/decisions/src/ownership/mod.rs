//! Conflicting owners of a node's GPUs: two programs that manage MIG destroy each other's instances, so the other one is detected.

use std::collections::BTreeMap;

use gputenancy_crds::{Partitioner, names::HAMI_REGISTER};
use gputenancy_plan::ConflictingOwner;

use crate::partitioner;

/// The properties of a node by which another owner is detected.
#[derive(Clone, Copy, Debug)]
pub struct OwnershipSigns<'a> {
    /// The node's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The node's annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// NVIDIA's DRA driver publishes a `ResourceSlice` for this node.
    pub dra: bool,
    /// NVML reports a hypervisor that gives vGPUs to virtual machines.
    pub vgpu_host: bool,
    /// The partitioner of the node's pool.
    pub partitioner: Partitioner,
    /// The `GpuNode` has a value that this release does not know.
    pub newer_release: bool,
}

/// Label by which nos partitions a node.
pub const NOS_PARTITIONING: &str = "nos.nebuly.com/gpu-partitioning";
/// Driver name of NVIDIA's DRA driver.
pub const DRA_DRIVER: &str = "gpu.nvidia.com";

/// Another owner of a node's GPUs; of several the one that destroys most. Programs that only partition are no conflict in pools with
/// another partitioner than our agent.
pub fn conflicting_owner(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    vgpu_host(signs)
        .or_else(|| newer_release(signs))
        .or_else(|| dra(signs))
        .or_else(|| hami(signs))
        .or_else(|| nos(signs))
        .or_else(|| partitioner::conflict(signs.partitioner, signs.labels))
}

/// Virtual machines use the GPUs of a hypervisor.
fn vgpu_host(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    signs.vgpu_host.then(|| ConflictingOwner {
        by: "NVIDIA's vGPU manager",
        sign: "its GPUs are those of a hypervisor (GpuNode status.boards[].vgpu: Host)".into(),
        remedy: "take the node out of the pool; virtual machines with vGPUs can be nodes of a pool".into(),
    })
}

/// An older operator that leads again does not know what it would remove.
fn newer_release(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    signs.newer_release.then(|| ConflictingOwner {
        by: "a newer release of this operator",
        sign: "GpuNode spec.gpus[].sharing.mode has a value that this release does not know".into(),
        remedy: "install the newer release again; before going back, take profiles with its modes out of the pool"
            .into(),
    })
}

/// It destroys at its start all MIG devices that are not in its checkpoint.
fn dra(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    signs.dra.then(|| ConflictingOwner {
        by: "NVIDIA's DRA driver",
        sign: format!("driver {DRA_DRIVER} publishes a ResourceSlice for it"),
        remedy: "take the node out of the DRA driver's kubelet plugin DaemonSet, or out of the pool".into(),
    })
}

fn hami(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    let register = signs.annotations.get(HAMI_REGISTER)?;
    (!register.is_empty()).then(|| ConflictingOwner {
        by: "HAMi",
        sign: format!("annotation {HAMI_REGISTER} is set"),
        remedy: format!(
            "take the node out of HAMi's device plugin and remove annotation {HAMI_REGISTER}, or take it out of the pool"
        ),
    })
}

fn nos(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    let kind = signs.labels.get(NOS_PARTITIONING).filter(|_| signs.partitioner != Partitioner::None)?;
    Some(ConflictingOwner {
        by: "nos",
        sign: format!("label {NOS_PARTITIONING}={kind} is set"),
        remedy: format!("remove label {NOS_PARTITIONING} from the node, or take it out of the pool"),
    })
}

#[cfg(test)]
mod tests;
