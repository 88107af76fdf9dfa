//! The condition `gputenancy.io/DevicesReady` of the Node, for products that read Nodes and no `GpuNode`. Pure.

use gputenancy_crds::{
    AgentStep, GpuSpec, Health,
    condition::ConditionUpdate,
    names::NODE_DEVICES_READY,
    reasons::{self, Reason},
    words::counted,
};

use crate::{
    device::{Device, DeviceView},
    partition::{DesiredLayout, PartitionState},
};

/// Most GPUs that the message names.
const MOST_NAMED: usize = 8;

/// The condition; `None`: no GPU of the node is in a layout of the operator, or nothing is known yet.
pub fn condition(desired: &DesiredLayout, state: &PartitionState, view: &DeviceView) -> Option<ConditionUpdate> {
    let (specs, inventory) = (&desired.spec.gpus, state.inventory.as_ref()?);
    // before the first verified layout nothing is advertised, which is no fault
    if specs.is_empty() || !desired.spec.advertiser.is_agent() || view.generation == 0 {
        return None;
    }
    let faults = specs.iter().filter_map(|spec| {
        let Some(gpu) = inventory.gpu(&spec.uuid) else {
            return Some((reasons::GPU_MISSING, format!("{}: NVML does not list it", spec.uuid)));
        };
        let named = |why: &str| format!("GPU {} ({}): {why}", gpu.index, spec.uuid);
        if gpu.health != Health::Healthy {
            return Some((reasons::GPU_UNHEALTHY, named(gpu.fault.as_deref().unwrap_or("it is unhealthy"))));
        }
        if let Some(failure) = &gpu.failure {
            return Some((reasons::GPU_UNHEALTHY, named(&format!("{} fails", failure.call))));
        }
        if let Some(why) = &spec.withdrawn {
            return Some((reasons::GPU_WITHDRAWN, named(why)));
        }
        let step = state.gpus.get(&spec.uuid).map(|gpu| gpu.step);
        not_advertised(spec, view, step).map(|why| (reasons::DEVICES_NOT_ADVERTISED, named(&why)))
    });
    let faults: Vec<(Reason, String)> = faults.collect();
    let Some((reason, _)) = faults.first() else {
        let message = format!("all devices of {} are advertised and healthy", counted(specs.len(), "GPU"));
        return Some(ConditionUpdate::yes(NODE_DEVICES_READY, reasons::DEVICES_ADVERTISED, message));
    };
    let more = faults.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let named: Vec<&str> = faults.iter().take(MOST_NAMED).map(|(_, text)| text.as_str()).collect();
    Some(ConditionUpdate::no(NODE_DEVICES_READY, *reason, format!("{}{more}", named.join("; "))))
}

/// Why devices of a GPU go to no pod, without numbers that change with every pod.
fn not_advertised(spec: &GpuSpec, view: &DeviceView, step: Option<AgentStep>) -> Option<String> {
    let of_gpu = |device: &&Device| device.gpu_uuid == spec.uuid;
    let mut devices = view.devices.iter().filter(of_gpu).peekable();
    let partitioned = !spec.mig || !spec.instances.is_empty();
    if devices.peek().is_none() && partitioned {
        return Some(format!(
            "it has no device yet (step {})",
            step.map_or("Unknown".into(), |step| format!("{step:?}"))
        ));
    }
    devices.any(|device| !device.advertised()).then(|| "some of its devices are withdrawn, as in a change".to_owned())
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{Advertiser, GpuNodeSpec};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        device::DeviceId,
        gpu::{Inventory, ObservedGpu},
        partition::devices::devices,
    };

    const GPUS: [&str; 2] = ["GPU-a", "GPU-b"];

    fn parts() -> (DesiredLayout, PartitionState, DeviceView) {
        let specs = GPUS.map(|uuid| GpuSpec { uuid: uuid.into(), ..GpuSpec::default() });
        let gpus = GPUS.map(|uuid| ObservedGpu { uuid: uuid.into(), ..ObservedGpu::default() });
        let all = specs.iter().zip(&gpus).flat_map(|(spec, gpu)| devices(spec, gpu)).collect();
        let inventory = Inventory { gpus: gpus.into(), ..Inventory::default() };
        (
            DesiredLayout {
                spec: GpuNodeSpec { gpus: specs.into(), ..GpuNodeSpec::default() },
                ..DesiredLayout::default()
            },
            PartitionState { inventory: Some(inventory), ..PartitionState::default() },
            DeviceView { generation: 1, devices: all, ..DeviceView::default() },
        )
    }

    fn found(parts: &(DesiredLayout, PartitionState, DeviceView)) -> Option<(Option<bool>, String, String)> {
        let (desired, state, view) = parts;
        condition(desired, state, view).map(|c| (c.status, c.reason.to_string(), c.message))
    }

    #[test]
    fn healthy_and_advertised_devices_are_ready() {
        let (status, reason, message) = found(&parts()).unwrap();
        assert_eq!((status, reason.as_str()), (Some(true), "DevicesAdvertised"), "{message}");
    }

    #[test]
    fn fault_withdrawal_absence_and_a_cordon_name_their_gpu_alone() {
        type Edit = fn(&mut (DesiredLayout, PartitionState, DeviceView));
        let cases: [(Edit, &str, &str); 4] = [
            (
                |parts| {
                    let gpu = &mut parts.1.inventory.as_mut().unwrap().gpus[1];
                    (gpu.health, gpu.fault) = (Health::Unhealthy, Some("Xid 48".into()));
                },
                "GpuUnhealthy",
                "Xid 48",
            ),
            (
                |parts| parts.0.spec.gpus[1].withdrawn = Some("row remapping failed".into()),
                "GpuWithdrawn",
                "row remapping",
            ),
            (|parts| drop(parts.1.inventory.as_mut().unwrap().gpus.pop()), "GpuMissing", "NVML does not list it"),
            (|parts| parts.2.devices[1].cordoned = true, "DevicesNotAdvertised", "withdrawn"),
        ];
        for (edit, reason, excerpt) in cases {
            let mut parts = parts();
            edit(&mut parts);
            let (status, found, message) = found(&parts).unwrap();
            assert_eq!((status, found.as_str()), (Some(false), reason), "{message}");
            assert!(message.contains("GPU-b") && message.contains(excerpt) && !message.contains("GPU-a"), "{message}");
        }
    }

    #[test]
    fn node_without_a_layout_or_with_another_advertiser_has_no_condition() {
        let mut none = parts();
        none.0.spec.gpus.clear();
        assert_eq!(found(&none), None);
        let mut plugin = parts();
        plugin.0.spec.advertiser = Advertiser::NvidiaDevicePlugin;
        assert_eq!(found(&plugin), None);
        let mut fresh = parts();
        fresh.2.generation = 0;
        assert_eq!(found(&fresh), None, "nothing was advertised yet");
    }

    proptest! {
        /// The condition is True exactly if every device is advertised and every GPU healthy and not withdrawn.
        #[test]
        fn ready_exactly_if_nothing_is_missing(faulty in any::<[bool; 2]>(), withdrawn in any::<[bool; 2]>(), cordoned in any::<[bool; 2]>()) {
            let mut parts = parts();
            for gpu in 0..2 {
                if faulty[gpu] {
                    parts.1.inventory.as_mut().unwrap().gpus[gpu].health = Health::Unhealthy;
                }
                parts.0.spec.gpus[gpu].withdrawn = withdrawn[gpu].then(|| "why".to_owned());
                let id = DeviceId::new(GPUS[gpu]);
                parts.2.devices.iter_mut().filter(|device| device.id == id).for_each(|device| device.cordoned = cordoned[gpu]);
            }
            let bad = |gpu: usize| faulty[gpu] || withdrawn[gpu] || cordoned[gpu];
            let (status, _, message) = found(&parts).unwrap();
            prop_assert_eq!(status, Some(!bad(0) && !bad(1)));
            for (gpu, uuid) in GPUS.iter().enumerate() {
                prop_assert_eq!(message.contains(uuid), bad(gpu), "{}", message);
            }
        }
    }
}
