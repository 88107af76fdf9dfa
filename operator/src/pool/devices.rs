//! Devices of the fleet, counted the same way for pools, profiles and tenants.

use std::collections::BTreeMap;

use gputenancy_crds::{Capacity, DeviceState, GpuNode, GpuSpec, GpuState, Health, names};

use gputenancy_engine::{fleet::Fleet, projection::SlimPod};

use crate::{fleet_view::Claim, plan::PodName};

/// What can be had of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A pod holds it.
    Held,
    /// A new pod could get it now.
    Free,
    /// It exists and is neither held nor offered.
    Withdrawn,
}

/// A device that the platform advertises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its node.
    pub node: String,
    /// Extended resource.
    pub resource: String,
    /// What can be had of it.
    pub usage: Use,
    /// Its pod.
    pub pod: Option<PodName>,
}

/// All devices of GPUs that the platform manages.
pub fn all(fleet: &Fleet) -> Vec<Device> {
    fleet.gpu_nodes.iter().flat_map(|(name, node)| on_node(name, node, fleet.answers(name))).collect()
}

fn on_node(name: &str, node: &GpuNode, answers: bool) -> Vec<Device> {
    let Some(status) = &node.status else { return Vec::new() };
    let managed = |state: &GpuState| node.spec.gpus.iter().find(|g| g.uuid == state.uuid).cloned();
    let gpus = status.gpus.iter().filter_map(|state| Some((managed(state)?, state)));
    gpus.flat_map(|(spec, state)| on_gpu(name, &spec, state, answers)).collect()
}

fn on_gpu(node: &str, spec: &GpuSpec, state: &GpuState, answers: bool) -> Vec<Device> {
    let sound = answers && state.health == Health::Healthy;
    let listed = |start: i32, profile: &str| spec.instances.iter().find(|s| s.start == start && s.profile == profile);
    // what a canary has is nobody's yet, and counts under the name that it will have
    let named = |device: &DeviceState| device.resource.clone().filter(|r| !names::is_canary_resource(r));
    let device = |start: i32, resource: String, device: &DeviceState| {
        let tried = spec.trial.contains(&start) || device.resource.as_deref().is_some_and(names::is_canary_resource);
        if tried {
            return Device { node: node.into(), resource, usage: Use::Withdrawn, pod: None };
        }
        let offered = sound && device.allocatable && !spec.hold.contains(&start);
        let usage = match (&device.owner, offered) {
            (Some(_), _) => Use::Held,
            (None, true) => Use::Free,
            (None, false) => Use::Withdrawn,
        };
        let pod =
            device.owner.as_ref().map(|o| PodName { namespace: o.namespace.as_str().into(), name: o.pod.clone() });
        Device { node: node.into(), resource, usage, pod }
    };
    let instances = state.instances.iter().map(|i| {
        let listed = listed(i.start, &i.profile).map(gputenancy_crds::InstanceSpec::resource_name);
        let named = named(&i.device).or(listed);
        device(i.start, named.unwrap_or_else(|| names::mig_resource(&i.profile)), &i.device)
    });
    let whole = state.whole.iter().filter(|_| !spec.mig).map(|w| {
        let named = named(w).or_else(|| spec.resource.clone());
        device(0, named.unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.into()), w)
    });
    instances.chain(whole).collect()
}

/// Counts the devices of one resource.
pub fn count<'a>(devices: impl Iterator<Item = &'a Device>, resource: &str) -> Capacity {
    devices.filter(|d| d.resource == resource).fold(Capacity::default(), |mut sum, device| {
        sum.total += 1;
        match device.usage {
            Use::Held => sum.allocated += 1,
            Use::Free => sum.free += 1,
            Use::Withdrawn => sum.unschedulable += 1,
        }
        sum
    })
}

/// Devices that pods hold, by namespace and resource.
pub fn held(devices: &[Device]) -> BTreeMap<Claim, i32> {
    let mut held = BTreeMap::new();
    for (pod, device) in devices.iter().filter_map(|d| Some((d.pod.as_ref()?, d))) {
        *held.entry((pod.namespace.to_string(), device.resource.clone())).or_default() += 1;
    }
    held
}

/// Pods that wait for a node, by namespace and resource.
pub fn waiting(fleet: &Fleet) -> BTreeMap<Claim, i32> {
    let mut waiting = BTreeMap::new();
    let pending = |p: &SlimPod| p.spec.node_name.is_none() && !p.is_over() && p.metadata.deletion_timestamp.is_none();
    for (name, pod) in fleet.pods.iter().filter(|(_, p)| pending(p)) {
        for resource in pod.resources() {
            *waiting.entry((name.namespace.to_string(), resource)).or_default() += 1;
        }
    }
    waiting
}
