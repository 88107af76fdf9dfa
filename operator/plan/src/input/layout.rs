//! Layouts as objects state them, in one form.

use gputenancy_crds::{GpuSpec, GpuState, InstanceSpec, Layout, names};

/// The layout that NVML shows.
pub fn seen(state: &GpuState) -> Layout {
    let instances = state.instances.iter().map(|i| InstanceSpec {
        start: i.start,
        profile: i.profile.clone(),
        resource: i.device.resource.clone(),
    });
    let resource = state.whole.as_ref().and_then(|w| w.resource.clone());
    plain(Layout { mig: mig_enabled(state), instances: instances.collect(), resource })
}

/// The canonical form of a layout: sorted, without default resources and without those of canaries, which are temporary.
pub fn plain(mut layout: Layout) -> Layout {
    let lasts = |r: &String| !names::is_canary_resource(r);
    for instance in &mut layout.instances {
        instance.resource =
            instance.resource.take().filter(|r| lasts(r) && *r != names::mig_resource(&instance.profile));
    }
    layout.instances.sort();
    layout.resource = layout.resource.filter(|r| !layout.mig && lasts(r) && r != names::WHOLE_GPU_RESOURCE);
    layout
}

pub(super) fn mig_enabled(state: &GpuState) -> bool {
    state.mig.is_some_and(|m| m.enabled)
}

/// Whether NVML shows exactly the instances that the spec lists.
pub(super) fn is_realized(spec: Option<&GpuSpec>, state: &GpuState) -> bool {
    let Some(spec) = spec else { return false };
    let mut listed: Vec<_> = spec.instances.iter().map(|i| (i.start, &i.profile)).collect();
    let mut shown: Vec<_> = state.instances.iter().map(|i| (i.start, &i.profile)).collect();
    listed.sort();
    shown.sort();
    listed.dedup();
    shown.dedup();
    spec.mig == mig_enabled(state) && listed == shown
}
