//! Which layout of a GPU stays although the spec has another, or none. The spec loses a device only after its pod has ended; one that lacks devices of
//! running pods is an older spec, restored from a backup, or one of an object that was created again. Pure.

use gputenancy_crds::{GpuSpec, Layout, SharingMode};

use super::devices::devices;
use crate::{
    device::{Device, Owners},
    gpu::ObservedGpu,
};

/// The layout that was served last, if pods own devices of it that the spec lacks.
pub fn retained<'l>(
    served: &'l Layout,
    spec: Option<&GpuSpec>,
    gpu: &ObservedGpu,
    owners: &Owners,
) -> Option<&'l Layout> {
    // as on most GPUs at most times
    if spec.is_some_and(|spec| spec.layout() == *served) {
        return None;
    }
    let listed = listed(spec, gpu);
    let lost = |device: &Device| !is_among(device, &listed) && is_owned(device, owners);
    devices(&of_layout(gpu, served), gpu).iter().any(lost).then_some(served)
}

/// The spec to serve in place of one that lacks devices of pods. Beside an older spec, devices that it lacks go to no further pod.
pub fn served_spec(layout: &Layout, spec: Option<&GpuSpec>, gpu: &ObservedGpu, owners: &Owners) -> GpuSpec {
    let mut served = of_layout(gpu, layout);
    let Some(spec) = spec else { return served };
    let listed = listed(Some(spec), gpu);
    let held = |device: &Device| {
        if is_among(device, &listed) { spec.hold.contains(&number(device)) } else { !is_owned(device, owners) }
    };
    served.withdrawn.clone_from(&spec.withdrawn);
    served.hold = devices(&served, gpu).iter().filter(|device| held(device)).map(number).collect();
    served
}

/// The layout of a spec without devices that a canary pod verifies, which go to no other pod; `None`: nothing is left.
pub fn verified(spec: &GpuSpec) -> Option<Layout> {
    let mut layout = spec.layout();
    if spec.trial.is_empty() {
        return Some(layout);
    }
    let tried = |number: &i32| spec.trial.contains(number);
    layout.instances.retain(|instance| !instance.numbers().iter().any(tried));
    if let Some(sharing) = &mut layout.sharing {
        sharing.shares.iter_mut().for_each(|group| group.numbers.retain(|number| !tried(number)));
        sharing.shares.retain(|group| !group.numbers.is_empty());
    }
    let left = match &layout.sharing {
        Some(sharing) => !sharing.shares.is_empty(),
        None => layout.mig || !tried(&0),
    };
    left.then_some(layout)
}

/// Devices of the spec under the resources that they have for good.
fn listed(spec: Option<&GpuSpec>, gpu: &ObservedGpu) -> Vec<Device> {
    spec.map(|spec| devices(&of_layout(gpu, &spec.layout()), gpu)).unwrap_or_default()
}

fn of_layout(gpu: &ObservedGpu, layout: &Layout) -> GpuSpec {
    let Layout { mig, instances, resource, sharing } = layout.clone();
    GpuSpec { uuid: gpu.uuid.clone(), mig, instances, resource, sharing, ..GpuSpec::default() }
}

/// The same device is listed. Another size is a change of a fraction that its pod may have.
fn is_among(device: &Device, listed: &[Device]) -> bool {
    let mode = |device: &Device| -> Option<SharingMode> { device.share.as_ref().map(|share| share.mode) };
    let key = |device: &Device| (device.id.clone(), device.resource.clone(), mode(device));
    listed.iter().any(|other| key(other) == key(device))
}

fn is_owned(device: &Device, owners: &Owners) -> bool {
    owners.contains_key(&device.id) || device.legacy_id().is_some_and(|id| owners.contains_key(&id))
}

/// The number of the device in holds.
fn number(device: &Device) -> i32 {
    let start = device.mig.as_ref().and_then(|mig| i32::try_from(mig.start).ok());
    device.share.as_ref().map(|share| share.number).or(start).unwrap_or(0)
}
