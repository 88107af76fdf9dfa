//! Devices of a shared GPU.

use std::collections::BTreeMap;

use gputenancy_crds::{DeviceOwner, GpuSpec, ShareGroup, Sharing, SharingMode};

use super::model::{UUID, gpu, partition, spec};
use crate::{
    device::{Device, DeviceId},
    partition::devices::{cordon_conflicts, cordon_withdrawn, devices},
};

fn shared(numbers: &[i32]) -> GpuSpec {
    let group = ShareGroup {
        resource: "gputenancy.io/small".into(),
        memory: Some(gputenancy_crds::MemoryText::from_mib(10_240)),
        compute: Some(15),
        numbers: numbers.to_vec(),
        ..ShareGroup::default()
    };
    let sharing = Sharing { mode: SharingMode::Fraction, shares: vec![group], ..Sharing::default() };
    GpuSpec { sharing: Some(sharing), ..spec(false, &[]) }
}

fn offered(devices: &[Device]) -> Vec<&str> {
    devices.iter().filter(|d| d.advertised()).map(|d| d.id.as_str()).collect()
}

fn owned(ids: &[DeviceId]) -> BTreeMap<DeviceId, DeviceOwner> {
    let owner = DeviceOwner { namespace: "team".into(), pod: "p".into(), container: "main".into() };
    ids.iter().map(|id| (id.clone(), owner.clone())).collect()
}

#[test]
fn shared_gpu_has_a_device_for_each_share_and_none_for_the_whole() {
    let devices = devices(&GpuSpec { hold: vec![3], ..shared(&[1, 3]) }, &gpu(false, false));
    let ids: Vec<&str> = devices.iter().map(|d| d.id.as_str()).collect();
    assert_eq!(ids, ["GPU-a::1", "GPU-a::3"]);
    assert_eq!(offered(&devices), ["GPU-a::1"], "a held share is withdrawn");
    let share = devices[0].share.clone().unwrap();
    assert_eq!((share.memory_mib, share.compute, devices[0].id.uuid()), (Some(10_240), Some(15), UUID));
    assert!(devices.iter().all(|d| d.resource == "gputenancy.io/small"));
}

#[test]
fn gpu_with_mig_has_no_shares() {
    assert_eq!(devices(&shared(&[0, 1]), &gpu(true, false)), []);
}

#[test]
fn shared_instance_has_a_device_for_each_time_slice_and_none_for_itself() {
    let mut wanted = spec(true, &[(0, "1g.10gb"), (1, "1g.10gb")]);
    let mut seen = gpu(true, false);
    partition(&wanted, &mut seen);
    (wanted.instances[1].replicas, wanted.instances[1].resource) =
        (Some(2), Some("nvidia.com/mig-1g.10gb.shared".into()));
    wanted.hold = vec![17];
    let all = devices(&wanted, &seen);
    let uuid = |start| seen.instances.iter().find(|i| i.start == start).and_then(|i| i.uuid()).unwrap();
    let (exclusive, shared) = (uuid(0), uuid(1));
    let ids: Vec<String> = all.iter().map(|d| d.id.to_string()).collect();
    assert_eq!(ids, [exclusive.to_owned(), format!("{shared}::0"), format!("{shared}::1")]);
    assert!(all[1..].iter().all(|d| d.resource.ends_with(".shared") && d.mig == all[1].mig && d.legacy_id().is_none()));
    assert_eq!(offered(&all), [exclusive, &format!("{shared}::0")], "a held time-slice is withdrawn");

    // a pod has the instance from before
    let mut before = all.clone();
    cordon_conflicts(&mut before, &owned(&[DeviceId::new(shared)]));
    assert_eq!(offered(&before), [exclusive]);
    wanted.instances[1].replicas = None;
    let mut after = devices(&wanted, &seen);
    cordon_conflicts(&mut after, &owned(&[DeviceId::share(shared, 1)]));
    assert_eq!(offered(&after), [exclusive], "a pod has a time-slice from before");
}

#[test]
fn gpu_in_use_as_a_whole_is_not_offered_in_shares_and_the_other_way_round() {
    let whole = DeviceId::new(UUID);
    let mut shares = devices(&shared(&[0, 1]), &gpu(false, false));
    cordon_conflicts(&mut shares, &owned(&[DeviceId::share(UUID, 0), DeviceId::share("GPU-b", 0)]));
    assert_eq!(offered(&shares).len(), 2, "other shares and other GPUs do not matter");
    cordon_conflicts(&mut shares, &owned(std::slice::from_ref(&whole)));
    assert_eq!(offered(&shares), [""; 0]);
    let mut one = devices(&spec(false, &[]), &gpu(false, false));
    cordon_conflicts(&mut one, &owned(&[whole]));
    assert_eq!(offered(&one).len(), 1);
    cordon_conflicts(&mut one, &owned(&[DeviceId::share(UUID, 7)]));
    assert_eq!(offered(&one), [""; 0]);
}

#[test]
fn withdrawn_gpu_offers_no_free_device_and_keeps_those_of_pods() {
    let (spec, owners) = (shared(&[0, 1]), owned(&[DeviceId::share(UUID, 1)]));
    let withdrawn = |uuid: &str| GpuSpec { uuid: uuid.into(), withdrawn: Some("hot".into()), ..spec.clone() };
    let mut shares = devices(&spec, &gpu(false, false));
    cordon_withdrawn(&mut shares, &[spec.clone(), withdrawn("GPU-b")], &owners);
    assert_eq!(offered(&shares).len(), 2, "a verdict on another GPU");
    cordon_withdrawn(&mut shares, &[withdrawn(UUID)], &owners);
    assert_eq!(offered(&shares), [format!("{UUID}::1")], "the device of a pod is counted until the pod ends");
}
