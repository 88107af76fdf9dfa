//! The event about memory that no living process explains. Pure.

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::reasons;

use crate::{
    device_memory::{Ghost, Place},
    event,
};

/// The event on the `GpuNode`.
pub fn ghost_memory(node: &str, (uuid, gi): &Place, ghost: &Ghost) -> Notice {
    let device = gi.map_or_else(|| format!("GPU {uuid}"), |gi| format!("GPU instance {gi} of GPU {uuid}"));
    let mib = ghost.bytes >> 20;
    let what = if ghost.pids.is_empty() {
        format!(
            "{mib} MiB of {device} of node {node} are in use and belong to no process; managed memory of running programs can be the cause"
        )
    } else {
        let pids: Vec<String> = ghost.pids.iter().map(ToString::to_string).collect();
        format!(
            "{mib} MiB of {device} of node {node} are in use by no living process: NVML lists {}, which ended more than 10 s ago",
            pids.join(", ")
        )
    };
    Notice {
        regarding: event::gpu_node(node),
        event_type: EventType::Warning,
        reason: reasons::GHOST_MEMORY,
        action: "Report".to_owned(),
        note: format!(
            "{what}; a device that a pod owns stays in use; end programs with /dev/nvidia* open on the node that belong to no pod, or reset the GPU when its pods have ended"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_device_memory_processes_and_remedy() {
        let note = |gi, pids: &[u32]| {
            let ghost = Ghost { pids: pids.iter().copied().collect(), bytes: 900 << 20 };
            ghost_memory("gpu-1", &("GPU-a".to_owned(), gi), &ghost).note
        };
        insta::assert_snapshot!(note(None, &[]), @"900 MiB of GPU GPU-a of node gpu-1 are in use and belong to no process; managed memory of running programs can be the cause; a device that a pod owns stays in use; end programs with /dev/nvidia* open on the node that belong to no pod, or reset the GPU when its pods have ended");
        insta::assert_snapshot!(note(Some(7), &[41, 42]), @"900 MiB of GPU instance 7 of GPU GPU-a of node gpu-1 are in use by no living process: NVML lists 41, 42, which ended more than 10 s ago; a device that a pod owns stays in use; end programs with /dev/nvidia* open on the node that belong to no pod, or reset the GPU when its pods have ended");
    }
}
