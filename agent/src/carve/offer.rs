//! Which devices may be advertised: what exists, is wanted as it is, and is not about to go.

use gputenancy_crds::{
    GpuSpec, Health,
    names::{WHOLE_GPU_RESOURCE, canary_resource},
};

use super::step::matches;
use crate::{
    device::{Device, DeviceId, MigIds},
    gpu::{SeenGpu, SeenInstance},
};

/// The devices of one GPU that is to be as `spec` says, held ones included.
pub fn devices(spec: &GpuSpec, gpu: &SeenGpu) -> Vec<Device> {
    let listed = |list: &[i32], start: u32| list.iter().any(|listed| u32::try_from(*listed) == Ok(start));
    let held = |start: u32| listed(&spec.hold, start) && !listed(&spec.trial, start);
    // what is on trial is the canary's, and has its own name until it was proven
    let named = |start: u32, resource: String| {
        if listed(&spec.trial, start) { canary_resource(gpu.index, start) } else { resource }
    };
    let device = |id, resource, uuid: &str, mig, held| Device {
        id,
        resource,
        gpu_uuid: gpu.uuid.clone(),
        gpu_minor: gpu.minor,
        uuid: uuid.to_owned(),
        mig,
        numa: gpu.numa,
        held,
        healthy: gpu.health == Health::Healthy,
    };
    if !spec.mig {
        let whole = gpu.mode.is_none_or(|mode| !mode.current && !mode.pending) && gpu.instances.is_empty();
        let resource = spec.resource.clone().unwrap_or_else(|| WHOLE_GPU_RESOURCE.to_owned());
        let id = DeviceId::whole(&gpu.uuid);
        return whole.then(|| device(id, named(0, resource), &gpu.uuid, None, held(0))).into_iter().collect();
    }
    // A mode that goes off at the next reset takes all instances with it.
    if gpu.mode.is_none_or(|mode| !mode.current || !mode.pending) {
        return Vec::new();
    }
    let wanted = gpu.instances.iter().filter_map(|seen| {
        let wanted = spec.instances.iter().find(|wanted| matches(wanted, seen))?;
        let (ci, uuid) = seen.whole_compute()?;
        let ids = MigIds { gi: seen.gi, ci, start: seen.start, profile: seen.profile.clone(), size: seen.size };
        Some(device(
            instance_id(gpu, seen),
            named(seen.start, wanted.resource_name()),
            uuid,
            Some(ids),
            held(seen.start),
        ))
    });
    wanted.collect()
}

/// Kubelet's name of an instance.
pub fn instance_id(gpu: &SeenGpu, seen: &SeenInstance) -> DeviceId {
    DeviceId::mig(&gpu.uuid, seen.start, &seen.profile)
}
