//! Partitions a GPU in its status as an agent does, at once.

use gputenancy_crds::{DeviceState, GpuState, InstanceState, Layout, MigMode, names};

/// All devices of a GPU.
pub fn devices(gpu: &mut GpuState) -> impl Iterator<Item = &mut DeviceState> {
    gpu.instances.iter_mut().map(|i| &mut i.device).chain(&mut gpu.whole)
}

/// Destroys instances that the layout lacks, creates missing ones, keeps the others.
pub fn carve(gpu: &mut GpuState, layout: &Layout) {
    if gpu.mig.is_some() {
        gpu.mig = Some(MigMode { enabled: layout.mig, pending: None });
    }
    let offered =
        |resource: String| DeviceState { resource: Some(resource), allocatable: true, ..DeviceState::default() };
    if !layout.mig {
        let resource = layout.resource.clone().unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.into());
        gpu.instances.clear();
        let present = gpu.whole.take().filter(|w| w.resource.as_ref() == Some(&resource));
        gpu.whole = Some(present.unwrap_or_else(|| offered(resource)));
        return;
    }
    gpu.whole = None;
    let old = std::mem::take(&mut gpu.instances);
    for (number, wanted) in (0..).zip(&layout.instances) {
        let device = offered(wanted.resource_name());
        let same = |i: &&InstanceState| {
            i.start == wanted.start && i.profile == wanted.profile && i.device.resource == device.resource
        };
        let present = old.iter().find(same).cloned();
        gpu.instances.push(present.unwrap_or_else(|| InstanceState {
            start: wanted.start,
            profile: wanted.profile.clone(),
            gi: number,
            ci: Some(0),
            uuid: Some(format!("MIG-{}-{}", gpu.uuid, wanted.start)),
            device,
        }));
    }
}
