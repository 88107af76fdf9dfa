//! The condition about freed GPU memory.

use gputenancy_crds::{MemoryScrub, condition::ConditionUpdate, reasons};

use super::input::StatusInput;

/// The driver overwrites GPU memory that a process frees.
const MEMORY_SCRUBBED: &str = "MemoryScrubbed";

const OFF: &str = "the driver is loaded with the registry key RMDisableScrubOnFree, so that a pod can read in GPU memory what the pod \
    before it has left: remove the key from NVreg_RegistryDwords and NVreg_RegistryDwordsPerDevice, in /etc/modprobe.d or in \
    driver.kernelModuleConfig of the GPU Operator, then drain the node and reboot it. Unless \
    spec.enforcement.unscrubbedMemory of the GpuPool is Accept, the agent gives no device to a new pod; with NVIDIA's device plugin cordon \
    the node";

/// None before the first inventory, and without GPUs.
pub(super) fn condition(input: &StatusInput<'_>) -> Option<ConditionUpdate> {
    let inventory = input.state.inventory.as_ref().filter(|inventory| !inventory.gpus.is_empty())?;
    Some(match inventory.scrub() {
        MemoryScrub::On => ConditionUpdate::yes(
            MEMORY_SCRUBBED,
            reasons::SCRUBBED,
            "no registry key disables that the driver overwrites freed GPU memory",
        ),
        MemoryScrub::Off => ConditionUpdate::no(MEMORY_SCRUBBED, reasons::SCRUB_DISABLED, OFF),
        MemoryScrub::Unknown => {
            let message = if inventory.memory_scrub == MemoryScrub::Unknown {
                "/proc/driver/nvidia/params cannot be read, so it is not known whether the driver overwrites freed GPU memory"
            } else {
                "the hypervisor's driver decides whether freed memory of a vGPU is overwritten"
            };
            let message = message.to_owned();
            ConditionUpdate { type_: MEMORY_SCRUBBED, status: None, reason: reasons::SCRUB_UNKNOWN, message }
        }
    })
}
