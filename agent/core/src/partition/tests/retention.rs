//! Layouts that stay while pods use them, whatever the spec says.

use gputenancy_crds::{DeviceOwner, GpuSpec, InstanceSpec, MemoryText, ResizePolicy, ShareGroup, Sharing, SharingMode};

use super::model::{UUID, gpu, partition, spec};
use crate::{
    device::{Device, DeviceId, Owners},
    gpu::ObservedGpu,
    partition::{
        devices::devices,
        retention::{retained, served_spec, verified},
    },
};

fn shared(mode: SharingMode, resource: &str, numbers: &[i32]) -> GpuSpec {
    let fraction = mode != SharingMode::TimeSlice;
    let group = ShareGroup {
        resource: resource.into(),
        memory: fraction.then(|| MemoryText::from_mib(10_240)),
        compute: fraction.then_some(15),
        resize: ResizePolicy::Force,
        numbers: numbers.to_vec(),
        ..ShareGroup::default()
    };
    GpuSpec { sharing: Some(Sharing { mode, shares: vec![group], ..Sharing::default() }), ..spec(false, &[]) }
}

/// A GPU that has the layout of a spec.
fn realized(spec: &GpuSpec) -> ObservedGpu {
    let mut gpu = gpu(spec.mig, false);
    partition(spec, &mut gpu);
    gpu
}

fn owned(ids: &[&DeviceId]) -> Owners {
    let owner = DeviceOwner { namespace: "team".into(), pod: "p".into(), container: "main".into() };
    ids.iter().map(|id| ((*id).clone(), owner.clone())).collect()
}

/// One spec of each kind, with more than one device where it can have them.
fn kinds() -> Vec<GpuSpec> {
    let mut sliced = spec(true, &[(0, "3g.40gb"), (4, "3g.40gb")]);
    sliced.instances[0] = InstanceSpec {
        replicas: Some(2),
        resource: Some("nvidia.com/mig-3g.40gb.shared".into()),
        ..sliced.instances[0].clone()
    };
    let mut own = spec(true, &[(0, "3g.40gb"), (4, "3g.40gb")]);
    own.instances[1].resource = Some("gputenancy.io/half".into());
    vec![
        shared(SharingMode::TimeSlice, "nvidia.com/gpu.shared", &[0, 2, 3]),
        shared(SharingMode::Mps, "gputenancy.io/mps", &[1, 2]),
        shared(SharingMode::Fraction, "gputenancy.io/small", &[0, 5]),
        sliced,
        own,
        GpuSpec { resource: Some("gputenancy.io/whole".into()), ..spec(false, &[]) },
    ]
}

/// What pods have after the spec has become another one.
fn after(before: &GpuSpec, now: Option<&GpuSpec>, owners: &Owners) -> Option<Vec<Device>> {
    let (gpu, layout) = (realized(before), before.layout());
    let kept = retained(&layout, now, &gpu, owners)?;
    Some(devices(&served_spec(kept, now, &gpu, owners), &gpu))
}

#[test]
fn devices_of_each_kind_stay_the_same_without_a_spec_while_a_pod_owns_one() {
    for before in kinds() {
        let all = devices(&before, &realized(&before));
        for device in &all {
            assert_eq!(after(&before, None, &owned(&[&device.id])).as_ref(), Some(&all), "{before:?}");
        }
        assert_eq!(after(&before, None, &Owners::new()), None, "without pods the spec holds");
        assert_eq!(after(&before, None, &owned(&[&DeviceId::share("GPU-b", 0)])), None, "of another GPU");
    }
}

#[test]
fn spec_of_every_other_kind_takes_no_device_from_a_pod_and_gives_none_of_its_own() {
    for before in kinds() {
        let all = devices(&before, &realized(&before));
        for now in kinds().into_iter().filter(|now| *now != before) {
            let listed = devices(&now, &realized(&before));
            let last = all.last().unwrap();
            if listed.iter().any(|d| (&d.id, &d.resource) == (&last.id, &last.resource)) {
                continue;
            }
            let served = after(&before, Some(&now), &owned(&[&last.id])).unwrap();
            let advertised: Vec<&DeviceId> = served.iter().filter(|d| d.advertised()).map(|d| &d.id).collect();
            assert!(advertised.contains(&&last.id), "{advertised:?}");
            assert_eq!(served.len(), all.len());
        }
    }
}

#[test]
fn older_spec_with_fewer_shares_holds_those_that_it_lacks_and_no_pod_has() {
    let before = shared(SharingMode::Fraction, "gputenancy.io/small", &[0, 1, 2, 3]);
    let older = GpuSpec { hold: vec![1], ..shared(SharingMode::Fraction, "gputenancy.io/small", &[0, 1]) };
    let served = after(&before, Some(&older), &owned(&[&DeviceId::share(UUID, 3)])).unwrap();
    let held: Vec<i32> = served.iter().filter(|d| d.cordoned).map(|d| d.share.as_ref().unwrap().number).collect();
    assert_eq!(held, [1, 2], "share 1 by the spec, share 2 because nothing lists it");
}

#[test]
fn released_devices_and_new_sizes_follow_the_spec() {
    let before = shared(SharingMode::Fraction, "gputenancy.io/small", &[0, 1]);
    let owners = owned(&[&DeviceId::share(UUID, 0)]);
    let fewer = shared(SharingMode::Fraction, "gputenancy.io/small", &[0]);
    let mut larger = before.clone();
    larger.sharing.as_mut().unwrap().shares[0].memory = Some(MemoryText::from_mib(12_288));
    for now in [fewer, larger] {
        assert_eq!(after(&before, Some(&now), &owners), None);
    }
    // a share of another profile that has got the same number is not the pod's
    let other = shared(SharingMode::Fraction, "gputenancy.io/large", &[0, 1]);
    assert!(after(&before, Some(&other), &owners).is_some());
}

#[test]
fn device_under_verification_is_not_kept_for_its_canary_pod() {
    let tried = |spec: GpuSpec, trial: &[i32]| verified(&GpuSpec { trial: trial.to_vec(), ..spec });
    let shares = |numbers: &[i32]| shared(SharingMode::Mps, "gputenancy.io/mps", numbers);
    assert_eq!(tried(shares(&[0, 1]), &[1]), Some(shares(&[0]).layout()));
    assert_eq!(tried(shares(&[1]), &[1]), None);
    assert_eq!(tried(spec(false, &[]), &[0]), None);
    let halves = spec(true, &[(0, "3g.40gb"), (4, "3g.40gb")]);
    assert_eq!(tried(halves.clone(), &[4]), Some(spec(true, &[(0, "3g.40gb")]).layout()));
    assert_eq!(tried(halves.clone(), &[]), Some(halves.layout()));
}
