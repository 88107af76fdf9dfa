//! The devices of a GPU: what exists, matches the spec, and is not about to be removed.

use gputenancy_crds::{
    GpuSpec, Health,
    names::{WHOLE_GPU_RESOURCE, canary_resource},
};

use super::decide::matches;
use crate::{
    device::{Device, DeviceId, MigIds},
    gpu::{ObservedGpu, ObservedInstance},
};

/// The devices of one GPU with this spec, withdrawn ones included.
pub fn devices(spec: &GpuSpec, gpu: &ObservedGpu) -> Vec<Device> {
    let listed = |list: &[i32], start: u32| list.iter().any(|listed| u32::try_from(*listed) == Ok(start));
    let device = |id, resource, start: u32, uuid: &str, mig| {
        // a new device has the resource of its canary pod until it is verified
        let canary = listed(&spec.trial, start);
        Device {
            id,
            resource: if canary { canary_resource(gpu.index, start) } else { resource },
            gpu_uuid: gpu.uuid.clone(),
            gpu_minor: gpu.minor,
            uuid: uuid.to_owned(),
            mig,
            numa: gpu.numa,
            held: listed(&spec.hold, start) && !canary,
            healthy: gpu.health == Health::Healthy,
        }
    };
    if !spec.mig {
        let whole = gpu.mode.is_none_or(|mode| !mode.current && !mode.pending) && gpu.instances.is_empty();
        let resource = spec.resource.clone().unwrap_or_else(|| WHOLE_GPU_RESOURCE.to_owned());
        let id = DeviceId::whole(&gpu.uuid);
        return whole.then(|| device(id, resource, 0, &gpu.uuid, None)).into_iter().collect();
    }
    // a mode that the next reset turns off removes all instances
    if gpu.mode.is_none_or(|mode| !mode.current || !mode.pending) {
        return Vec::new();
    }
    let wanted = gpu.instances.iter().filter_map(|instance| {
        let wanted = spec.instances.iter().find(|wanted| matches(wanted, instance))?;
        let (ci, uuid) = instance.whole_compute()?;
        let ObservedInstance { gi, start, size, .. } = *instance;
        let mig = MigIds { gi, ci, start, profile: instance.profile.clone(), size };
        Some(device(instance_id(gpu, instance), wanted.resource_name(), start, uuid, Some(mig)))
    });
    wanted.collect()
}

/// Kubelet's id of an instance.
pub fn instance_id(gpu: &ObservedGpu, instance: &ObservedInstance) -> DeviceId {
    DeviceId::mig(&gpu.uuid, instance.start, &instance.profile)
}
