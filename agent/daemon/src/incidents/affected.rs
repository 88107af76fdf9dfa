//! Which containers a fault concerns, and the events about it. Pure.

use std::collections::BTreeSet;

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::reasons;

use crate::{
    device::{DeviceId, DeviceOwner, Owners},
    event,
    gpu::{
        Inventory, ObservedGpu, ObservedInstance,
        fault_class::{FaultClass, SeenFault, text},
        inventory::UNLICENSED,
    },
};

/// A fault of one GPU, and the containers with devices of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The fault.
    pub fault: SeenFault,
    /// UUID of the GPU.
    pub gpu: String,
    /// Containers with a device that it concerns.
    pub owners: BTreeSet<DeviceOwner>,
    /// The device is one of several shares of the GPU.
    pub shared: bool,
}

/// A MIG device that is gone although a container has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDevice {
    /// The device.
    pub id: DeviceId,
    /// UUID of its GPU.
    pub gpu: String,
    /// The container.
    pub owner: DeviceOwner,
}

/// The incident on each GPU that a fault concerns: on one, or on all if the GPU that reports it has no name any more.
pub fn of(fault: &SeenFault, inventory: &Inventory, owners: &Owners) -> Vec<Incident> {
    let concerned = inventory.gpus.iter().filter(|gpu| fault.uuid.as_ref().is_none_or(|uuid| *uuid == gpu.uuid));
    let incident = |gpu: &ObservedGpu| {
        let prefix = format!("{}::", gpu.uuid);
        let of_instance = |id: &str| {
            let mut instances = gpu.instances.iter().filter(|i| fault.instance.is_none_or(|gi| gi == i.gi));
            let base = id.split_once("::").map_or(id, |(uuid, _)| uuid);
            instances.any(|i| i.uuid() == Some(base) || id == format!("{prefix}{}::{}", i.start, i.profile))
        };
        // without MIG there are no instances, and a fault has none
        let of_gpu = |id: &str| fault.instance.is_none() && (id == gpu.uuid || id.starts_with(&prefix));
        let here = owners.iter().filter(|(id, _)| of_gpu(id.as_str()) || of_instance(id.as_str()));
        let instances = gpu.instances.iter().filter(|i| fault.instance.is_none_or(|gi| gi == i.gi));
        let uuids: Vec<&str> = instances.filter_map(ObservedInstance::uuid).chain([gpu.uuid.as_str()]).collect();
        let shared = owners.keys().any(|id| id.as_str() != id.uuid() && uuids.contains(&id.uuid()));
        let owners = here.map(|(_, owner)| owner.clone()).collect();
        Incident { fault: fault.clone(), gpu: gpu.uuid.clone(), owners, shared }
    };
    concerned.map(incident).collect()
}

/// An event on the `GpuNode` with all pods, and one on each pod, which names no other.
pub fn notices(node: &str, incident: &Incident) -> Vec<Notice> {
    let Incident { fault, gpu, owners, shared } = incident;
    let class = FaultClass::of(fault.kind);
    let (reason, place) = match class {
        FaultClass::Application => (reasons::GPU_PROGRAM_FAULT, "caused by a program"),
        FaultClass::Hardware => (reasons::GPU_HARDWARE_FAULT, "a fault of the hardware"),
        FaultClass::Node => (reasons::GPU_NODE_FAULT, "a fault that ends with a restart of the node"),
    };
    let instance = fault.instance.map(|gi| format!(" (GPU instance {gi})")).unwrap_or_default();
    let what = format!("{} on GPU {gpu}{instance} of node {node}, {place}", text(fault.kind));
    let notice = |regarding, note| Notice {
        regarding,
        event_type: EventType::Warning,
        reason,
        action: "Report".to_owned(),
        note,
    };
    let pods: BTreeSet<String> = owners.iter().map(|o| format!("{}/{}", o.namespace, o.pod)).collect();
    let count = pods.len();
    let pods = if pods.is_empty() { "none".to_owned() } else { pods.into_iter().collect::<Vec<_>>().join(", ") };
    // the names may be too long for an event
    let of_node = format!("{what}; {}; pods with its devices: {pods}", remedy_of_platform(class));
    // a pod learns how many others are concerned, and not which
    let together = if *shared { format!("; pods with its devices: {count}") } else { String::new() };
    let of_pod = |owner: &DeviceOwner| {
        let remedy = remedy_of_team(class, *shared);
        notice(event::pod(owner), format!("container {}: {what}{together}; {remedy}", owner.container))
    };
    [notice(event::gpu_node(node), of_node)].into_iter().chain(owners.iter().map(of_pod)).collect()
}

/// The event about a device whose memory no process explains.
pub fn unexplained_memory(node: &str, device: &DeviceId, mib: u64) -> Notice {
    let message = format!(
        "{mib} MiB of device {device} of node {node} are in use, and NVML lists no process on it: it gets no new pods until the memory is free; end programs with /dev/nvidia* open on the node, or reset the GPU"
    );
    Notice {
        regarding: event::gpu_node(node),
        event_type: EventType::Warning,
        reason: reasons::UNEXPLAINED_MEMORY,
        action: "Report".to_owned(),
        note: message,
    }
}

/// The events about a device that is gone: on the `GpuNode`, and on the pod that has it.
pub fn lost(node: &str, LostDevice { id, gpu, owner }: &LostDevice) -> Vec<Notice> {
    let what = format!(
        "MIG device {id} of GPU {gpu} of node {node} is gone: another program has destroyed the instance or turned MIG mode off"
    );
    let notice = |regarding, note| Notice {
        regarding,
        event_type: EventType::Warning,
        reason: reasons::DEVICE_LOST,
        action: "Report".to_owned(),
        note,
    };
    let DeviceOwner { namespace, pod, container } = owner;
    let of_node =
        format!("{what}; pod {namespace}/{pod} had it: find the program in the node's audit log, and stop it");
    let of_pod = format!(
        "container {container}: {what}; an incident of the platform: delete the pod, and it gets another device"
    );
    vec![notice(event::gpu_node(node), of_node), notice(event::pod(owner), of_pod)]
}

/// The event about a GPU that gets new pods again after a fault.
pub fn cleared(node: &str, gpu: &str, why: Option<&str>) -> Notice {
    let why = why.unwrap_or("it was reset, its driver was loaded again, or a person has cleared its faults");
    Notice {
        regarding: event::gpu_node(node),
        event_type: EventType::Normal,
        reason: reasons::FAULT_CLEARED,
        action: "Report".to_owned(),
        note: format!("GPU {gpu} of node {node} gets new pods again: {why}"),
    }
}

/// The event about a vGPU without a licence.
pub fn unlicensed(node: &str, index: u32) -> Notice {
    Notice {
        regarding: event::gpu_node(node),
        event_type: EventType::Warning,
        reason: reasons::VGPU_UNLICENSED,
        action: "Report".to_owned(),
        note: format!("gpu {index} of node {node} has no vGPU licence: {UNLICENSED}"),
    }
}

fn remedy_of_platform(class: FaultClass) -> &'static str {
    match class {
        FaultClass::Application => "the GPU stays in use: the teams look at their programs",
        FaultClass::Hardware => {
            "it gets no new pods: see status.gpus[].recovery of the GpuNode, and reset or replace it unless it returns by itself"
        }
        FaultClass::Node => "it gets no new pods: drain the node and restart it",
    }
}

fn remedy_of_team(class: FaultClass, shared: bool) -> &'static str {
    match (class, shared) {
        (FaultClass::Application, false) => "look at the log of its program, and restart the container",
        (FaultClass::Application, true) => {
            "expected on a shared GPU, where the program of another share may be the cause and end this one: restart the container if its program has failed"
        }
        (FaultClass::Hardware | FaultClass::Node, _) => {
            "an incident of the platform, reported on the GpuNode: delete the pod if its program has failed, and it gets another device"
        }
    }
}
