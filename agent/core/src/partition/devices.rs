//! The devices of a GPU: what exists, matches the spec, and is not about to be removed.

use std::borrow::Borrow;

use gputenancy_crds::{
    GpuSpec, Health, MemoryText, RecoveryState, ResizePolicy, ShareGroup, Sharing, SharingMode,
    names::{WHOLE_GPU_RESOURCE, canary_resource},
    slice_of,
};

use super::decide::matches;
use crate::{
    device::{Device, DeviceId, DeviceOwner, MigIds, Owners, Share},
    enforcement::{limit::of_time_slice, turns},
    gpu::{ObservedGpu, ObservedInstance},
};

/// The devices of one GPU with this spec, cordoned ones included.
pub fn devices(spec: &GpuSpec, gpu: &ObservedGpu) -> Vec<Device> {
    let listed = |list: &[i32], start: u32| list.iter().any(|listed| u32::try_from(*listed) == Ok(start));
    // after a fault only a canary pod gets a device
    let awaits_canary = gpu.recovery.as_ref().is_some_and(|recovery| recovery.state == RecoveryState::AwaitingCanary);
    let device = |uuid: &str, resource, start: u32, mig| {
        // a new device has the resource of its canary pod until it is verified
        let canary = listed(&spec.trial, start);
        Device {
            id: DeviceId::new(uuid),
            resource: if canary { canary_resource(gpu.index, start) } else { resource },
            gpu_uuid: gpu.uuid.clone(),
            gpu_minor: gpu.minor,
            mig,
            share: None,
            numa: gpu.numa,
            cordoned: listed(&spec.hold, start) && !canary,
            // without an answer of NVML nothing is known of its processes, and each allocation would be refused
            healthy: (gpu.health == Health::Healthy || canary && awaits_canary) && gpu.failure.is_none(),
        }
    };
    if !spec.mig {
        let whole = gpu.mode.is_none_or(|mode| !mode.current && !mode.pending) && gpu.instances.is_empty();
        if let Some(sharing) = spec.sharing.as_ref().filter(|_| whole) {
            let share = |(group, number): (&ShareGroup, i32)| Device {
                id: DeviceId::share(&gpu.uuid, number),
                share: Some(share(sharing, group, number, gpu)),
                ..device(&gpu.uuid, group.resource.clone(), u32::try_from(number).unwrap_or(0), None)
            };
            let groups = sharing.shares.iter().flat_map(|g| g.numbers.iter().map(move |number| (g, *number)));
            return groups.map(share).collect();
        }
        let resource = spec.resource.clone().unwrap_or_else(|| WHOLE_GPU_RESOURCE.to_owned());
        return whole.then(|| device(&gpu.uuid, resource, 0, None)).into_iter().collect();
    }
    // a mode that the next reset turns off removes all instances
    if gpu.mode.is_none_or(|mode| !mode.current || !mode.pending) {
        return Vec::new();
    }
    let wanted = gpu.instances.iter().filter_map(|instance| {
        let wanted = spec.instances.iter().find(|wanted| matches(wanted, instance))?;
        let (ci, uuid) = instance.whole_compute()?;
        let ObservedInstance { gi, start, .. } = *instance;
        let mig = MigIds { gi, ci, start, profile: instance.profile.clone() };
        let slice = |number: i32| Device {
            id: DeviceId::share(uuid, slice_of(number).1),
            share: Some(Share {
                number,
                mode: SharingMode::TimeSlice,
                memory_mib: None,
                compute: None,
                limit_mib: instance_limit(gpu, instance, wanted.numbers().len()),
                pace: None,
                resize: ResizePolicy::default(),
            }),
            ..device(uuid, wanted.resource_name(), u32::try_from(number).unwrap_or(0), Some(mig.clone()))
        };
        Some(match wanted.replicas {
            Some(_) => wanted.numbers().into_iter().map(slice).collect(),
            None => vec![device(uuid, wanted.resource_name(), start, Some(mig))],
        })
    });
    wanted.flatten().collect()
}

fn share(sharing: &Sharing, group: &ShareGroup, number: i32, gpu: &ObservedGpu) -> Share {
    let memory_mib = group.memory.as_ref().and_then(|memory: &MemoryText| memory.mib().ok());
    let limit_mib = match sharing.mode {
        // by its server
        SharingMode::Mps => None,
        SharingMode::Fraction => memory_mib,
        SharingMode::TimeSlice => {
            let replicas = sharing.shares.iter().map(|group| group.numbers.len()).sum();
            of_time_slice(gpu.board.memory_mib, gpu.board.reserved_mib.unwrap_or(0), replicas)
        }
    };
    let pace = turns::of_share(sharing, number);
    let (mode, compute, resize) = (sharing.mode, group.compute, group.resize);
    Share { number, mode, memory_mib, compute, limit_mib, pace, resize }
}

/// MiB for each time-slice of an instance.
fn instance_limit(gpu: &ObservedGpu, instance: &ObservedInstance, replicas: usize) -> Option<i64> {
    of_time_slice(gpu.board.profile(&instance.profile)?.memory_mib, 0, replicas)
}

/// Cordons the devices of GPUs and instances that a container still has in another form: as a whole while they are offered in shares, or
/// as a share while they are offered as a whole. The operator evicts such containers first; this also holds if it does not.
pub fn cordon_conflicts(devices: &mut [Device], owners: &Owners) {
    for device in devices.iter_mut() {
        let (uuid, shared) = (device.id.uuid(), device.share.is_some());
        let other_form = |id: &DeviceId| id.uuid() == uuid && (id.as_str() == uuid) == shared;
        device.cordoned |= owners.keys().any(other_form);
    }
}

/// Cordons the devices of a GPU that others have withdrawn, as far as no pod owns them: running pods keep theirs, and the scheduler counts them.
pub fn cordon_withdrawn(devices: &mut [Device], specs: &[impl Borrow<GpuSpec>], owners: &Owners) {
    let is_withdrawn = |device: &Device| {
        specs.iter().map(Borrow::borrow).any(|spec| spec.uuid == device.gpu_uuid && spec.withdrawn.is_some())
    };
    let owned = |device: &Device| {
        owners.contains_key(&device.id) || device.legacy_id().is_some_and(|id| owners.contains_key(&id))
    };
    for device in devices.iter_mut().filter(|device| is_withdrawn(device) && !owned(device)) {
        device.cordoned = true;
    }
}

/// The UUID of an instance's device, or of the whole GPU.
pub fn device_uuid<'g>(gpu: &'g ObservedGpu, instance: Option<&'g ObservedInstance>) -> Option<&'g str> {
    instance.map_or(Some(&gpu.uuid), ObservedInstance::uuid)
}

/// The owner of an instance or of the whole GPU, also if kubelet lists the device under its legacy id.
pub fn owner_of<'o>(
    owners: &'o Owners,
    gpu: &ObservedGpu,
    instance: Option<&ObservedInstance>,
) -> Option<&'o DeviceOwner> {
    let legacy = |i: &ObservedInstance| owners.get(&DeviceId::legacy(&gpu.uuid, i.start, &i.profile));
    device_uuid(gpu, instance).and_then(|uuid| owners.get(uuid)).or_else(|| legacy(instance?))
}
