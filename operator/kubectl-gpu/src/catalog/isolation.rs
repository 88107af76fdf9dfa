//! What a device isolates and what it does not, in plain words.

use gputenancy_crds::{Device, TimeSlice};

/// Field of `GpuProfile.spec.device`.
pub(super) fn mode(device: &Device) -> &'static str {
    match device {
        Device { whole: Some(_), .. } => "whole",
        Device { mig: Some(_), .. } => "mig",
        Device { mps: Some(_), .. } => "mps",
        Device { fraction: Some(_), .. } => "fraction",
        Device { whole: None, mig: None, mps: None, fraction: None, time_slice: _ } => "timeSlice",
    }
}

/// The same, and whether time-slices are of a MIG instance.
fn kind(device: &Device) -> &'static str {
    match device {
        Device { time_slice: Some(TimeSlice { of: Some(_), .. }), .. } => "timeSlice of mig",
        _ => mode(device),
    }
}

/// Position in the catalog: strongest isolation first.
pub(super) fn rank(device: &Device) -> u8 {
    match mode(device) {
        "whole" => 0,
        "mig" => 1,
        "mps" => 2,
        "fraction" => 3,
        _ if device.instance().is_some() => 4,
        _ => 5,
    }
}

/// Whether several pods share the GPU without isolation by hardware.
pub(super) fn is_shared(device: &Device) -> bool {
    device.whole.is_none() && device.mig.is_none()
}

/// The shim of the agent: see docs/sharing/memory-limits.md.
const MEMORY: &str = "Memory, against a program that bypasses the limit in its container, or where the platform has switched the limit off: such a \
    program can take all free memory, and allocations of its neighbours then fail.";

/// What separates a pod from its neighbours.
pub(super) fn isolated(device: &Device) -> &'static [&'static str] {
    match kind(device) {
        "whole" => &["No other pod is on the GPU: memory, compute and faults are separate by hardware."],
        // NVIDIA's MIG user guide: separate paths through the memory system, and error isolation between instances
        "mig" => &[
            "Memory, caches and compute are the instance's own, by hardware.",
            "A fault of a neighbour does not end your pod.",
        ],
        // NVIDIA's MPS guide: limits of pinned device memory and of active threads, and an address space for each client since Volta
        "mps" => &[
            "NVIDIA's MPS server limits the memory and the percentage of threads of each pod.",
            "Each pod has an address space of its own: a neighbour does not read your memory.",
        ],
        "timeSlice of mig" => {
            &["The instance from the other instances of the GPU: memory, caches, compute and faults, by hardware."]
        }
        // the limit of the agent holds no hostile program
        _ => &[],
    }
}

/// What does not separate them.
pub(super) fn not_isolated(device: &Device) -> &'static [&'static str] {
    match kind(device) {
        "whole" => &["The node: PCIe, network and CPU are shared with the pods on its other GPUs."],
        "mig" => {
            &["Power and clocks of the board, PCIe, and a reset of the GPU, which ends the pods of all its instances."]
        }
        "mps" => &[
            "A fatal fault of one pod ends all pods of the same MPS server.",
            "Memory bandwidth and caches are shared: speed depends on the neighbours.",
        ],
        "fraction" => &[
            MEMORY,
            "Compute: a library in the container limits the part of the time; a program that avoids it is not held.",
            "Faults: a fault of one pod can end the others.",
        ],
        "timeSlice of mig" => &[
            MEMORY,
            "Faults: a fault of one pod can end the others on the instance.",
            "Compute: the pods on the instance get equal turns and no guaranteed part.",
        ],
        // NVIDIA's device plugin: no memory or fault isolation between replicas
        _ => &[
            MEMORY,
            "Faults: a fault of one pod can end the others.",
            "Compute: pods get equal turns and no guaranteed part. Speed depends on how many neighbours work at the same time.",
        ],
    }
}
