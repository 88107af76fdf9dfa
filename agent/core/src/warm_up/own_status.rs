//! Owners in a `GpuNode` status.

use gputenancy_crds::{DeviceState, GpuNodeStatus, GpuState, InstanceState, slice_of};

use crate::device::{DeviceId, Owners};

/// The owner of each device.
pub(super) fn owners(status: &GpuNodeStatus) -> Owners {
    status.gpus.iter().flat_map(of_gpu).filter_map(|(id, device)| Some((id?, device.owner.clone()?))).collect()
}

fn of_gpu(gpu: &GpuState) -> Vec<(Option<DeviceId>, &DeviceState)> {
    let whole = gpu.whole.iter().map(|device| (Some(DeviceId::new(&gpu.uuid)), device));
    let instances =
        gpu.instances.iter().filter_map(|instance| Some((instance_id(gpu, instance), instance.device.as_ref()?)));
    let shares = gpu.shares.iter().map(|share| (share_id(gpu, share.number), &share.device));
    whole.chain(instances).chain(shares).collect()
}

/// A large status leaves the UUIDs of instances out: then the id of earlier releases stands for the device.
fn instance_id(gpu: &GpuState, instance: &InstanceState) -> Option<DeviceId> {
    let legacy = || Some(DeviceId::legacy(&gpu.uuid, instance.start.try_into().ok()?, &instance.profile));
    instance.uuid.as_deref().map(DeviceId::new).or_else(legacy)
}

fn share_id(gpu: &GpuState, number: i32) -> Option<DeviceId> {
    if !gpu.mig.is_some_and(|mig| mig.enabled) {
        return Some(DeviceId::share(&gpu.uuid, number));
    }
    let (start, slice) = slice_of(number);
    let instance = gpu.instances.iter().find(|instance| instance.start == start)?;
    Some(DeviceId::share(instance.uuid.as_deref()?, slice))
}
