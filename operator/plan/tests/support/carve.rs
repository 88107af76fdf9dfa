//! Partitions a GPU in its status as an agent does, at once.

use gputenancy_crds::{DeviceState, GpuState, InstanceState, Layout, MigMode, ShareState, names};

/// All devices of a GPU.
pub fn devices(gpu: &mut GpuState) -> impl Iterator<Item = &mut DeviceState> {
    gpu.devices_mut()
}

/// Destroys instances that the layout lacks, creates missing ones, keeps the others.
pub fn carve(gpu: &mut GpuState, layout: &Layout) {
    if gpu.mig.is_some() {
        gpu.mig = Some(MigMode { enabled: layout.mig, pending: None });
    }
    let offered =
        |resource: String| DeviceState { resource: Some(resource), allocatable: true, ..DeviceState::default() };
    let served = std::mem::take(&mut gpu.shares);
    if let Some(sharing) = &layout.sharing {
        gpu.instances.clear();
        gpu.whole = None;
        let groups = sharing.shares.iter().flat_map(|g| g.numbers.iter().map(|n| (*n, g.resource.clone())));
        gpu.shares.extend(groups.map(|(number, resource)| {
            let same = |s: &&ShareState| s.number == number && s.device.resource.as_ref() == Some(&resource);
            let present = served.iter().find(same).cloned();
            present.unwrap_or_else(|| ShareState { number, device: offered(resource), ..ShareState::default() })
        }));
        return;
    }
    if !layout.mig {
        let resource = layout.resource.clone().unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.into());
        gpu.instances.clear();
        let present = gpu.whole.take().filter(|w| w.resource.as_ref() == Some(&resource));
        gpu.whole = Some(present.unwrap_or_else(|| offered(resource)));
        return;
    }
    gpu.whole = None;
    let old = std::mem::take(&mut gpu.instances);
    for number in layout.shares() {
        let resource = layout.share_resource(number).unwrap();
        let same = |s: &&ShareState| s.number == number && s.device.resource.as_ref() == Some(&resource);
        let present = served.iter().find(same).cloned();
        gpu.shares.push(present.unwrap_or_else(|| ShareState {
            number,
            device: offered(resource),
            ..ShareState::default()
        }));
    }
    for (number, wanted) in (0..).zip(&layout.instances) {
        let device = wanted.replicas.is_none().then(|| offered(wanted.resource_name()));
        let named = |d: &Option<DeviceState>| d.as_ref().map(|d| d.resource.clone());
        let same = |i: &&InstanceState| {
            i.start == wanted.start && i.profile == wanted.profile && named(&i.device) == named(&device)
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
