//! Layouts as objects state them, in one form.

use gputenancy_crds::{GpuSpec, GpuState, InstanceSpec, Layout, Sharing, names, slice_of};

/// The layout that NVML shows. NVML does not know shares: those of a GPU without MIG are in the spec only.
pub fn seen(state: &GpuState) -> Layout {
    let slices = |start: i32| state.shares.iter().filter(move |share| slice_of(share.number).0 == start);
    let instances = state.instances.iter().map(|i| {
        let device = i.device.as_ref().or_else(|| slices(i.start).next().map(|share| &share.device));
        InstanceSpec {
            start: i.start,
            profile: i.profile.clone(),
            resource: device.and_then(|device| device.resource.clone()),
            replicas: slices(i.start).map(|share| slice_of(share.number).1 + 1).max(),
        }
    });
    let resource = state.whole.as_ref().and_then(|w| w.resource.clone());
    plain(Layout { mig: mig_enabled(state), instances: instances.collect(), resource, sharing: None })
}

/// The canonical form of a layout: sorted, without default resources and without those of canaries, which are temporary.
pub fn plain(mut layout: Layout) -> Layout {
    let lasts = |r: &String| !names::is_canary_resource(r);
    for instance in &mut layout.instances {
        instance.resource =
            instance.resource.take().filter(|r| lasts(r) && *r != names::mig_resource(&instance.profile));
    }
    layout.instances.sort();
    layout.sharing = layout.sharing.filter(|_| !layout.mig).map(Sharing::sorted);
    let has_whole = !layout.mig && layout.sharing.is_none();
    layout.resource = layout.resource.filter(|r| has_whole && lasts(r) && r != names::WHOLE_GPU_RESOURCE);
    layout
}

/// Whether this is the layout of the spec, without a copy of it where instances are in order. `layout` is in canonical form.
pub fn has_layout(spec: &GpuSpec, layout: &Layout) -> bool {
    if spec.sharing.is_some() || !spec.instances.is_sorted_by(|one, next| one.start < next.start) {
        return plain(spec.layout()) == *layout;
    }
    let named = |own: &Option<String>, usual: &dyn Fn() -> String| {
        own.clone().filter(|r| !names::is_canary_resource(r) && *r != usual())
    };
    let same = |(has, wanted): (&InstanceSpec, &InstanceSpec)| {
        (has.start, &has.profile, has.replicas) == (wanted.start, &wanted.profile, wanted.replicas)
            && named(&has.resource, &|| names::mig_resource(&has.profile)) == wanted.resource
    };
    let whole = || names::WHOLE_GPU_RESOURCE.to_owned();
    spec.mig == layout.mig
        && layout.sharing.is_none()
        && spec.instances.len() == layout.instances.len()
        && spec.instances.iter().zip(&layout.instances).all(same)
        && named(&spec.resource, &whole).filter(|_| !spec.mig) == layout.resource
}

pub(super) fn mig_enabled(state: &GpuState) -> bool {
    state.mig.is_some_and(|m| m.enabled)
}

/// Whether the agent shows exactly the instances and shares that the spec lists.
pub(super) fn is_realized(spec: Option<&GpuSpec>, state: &GpuState) -> bool {
    let Some(spec) = spec else { return false };
    let mut listed: Vec<_> = spec.instances.iter().map(|i| (i.start, &i.profile)).collect();
    let mut shown: Vec<_> = state.instances.iter().map(|i| (i.start, &i.profile)).collect();
    listed.sort();
    shown.sort();
    listed.dedup();
    shown.dedup();
    let mut served: Vec<i32> = state.shares.iter().map(|s| s.number).collect();
    served.sort_unstable();
    let shares = spec.layout().shares();
    spec.mig == mig_enabled(state) && listed == shown && shares == served
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::ShareGroup;
    use proptest::{collection::vec, option::of, prelude::*, sample::select};

    use super::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        let resource = || {
            let names = [
                "nvidia.com/mig-1g.10gb".to_owned(),
                "nvidia.com/gpu".to_owned(),
                "example.com/own".to_owned(),
                names::canary_resource(0, 1),
            ];
            of(select(names.to_vec()))
        };
        let instance = (0..3, select(vec!["1g.10gb", "2g.20gb"]), resource(), of(2..4)).prop_map(
            |(start, profile, resource, replicas)| InstanceSpec { start, profile: profile.into(), resource, replicas },
        );
        let group = (select(vec!["gputenancy.io/a", "gputenancy.io/b"]), vec(0..3, 0..3))
            .prop_map(|(resource, numbers)| ShareGroup { resource: resource.into(), numbers, ..ShareGroup::default() });
        let sharing = of(vec(group, 0..3).prop_map(|shares| Sharing { shares, ..Sharing::default() }));
        (any::<bool>(), vec(instance, 0..3), resource(), sharing)
            .prop_map(|(mig, instances, resource, sharing)| Layout { mig, instances, resource, sharing })
    }

    proptest! {
        #[test]
        fn has_layout_compares_canonical_forms(has in layouts(), other in layouts(), same in any::<bool>()) {
            let wanted = plain(if same { has.clone() } else { other });
            let Layout { mig, instances, resource, sharing } = has.clone();
            let spec = GpuSpec { mig, instances, resource, sharing, ..GpuSpec::default() };
            prop_assert_eq!(has_layout(&spec, &wanted), plain(has) == wanted);
        }
    }
}
