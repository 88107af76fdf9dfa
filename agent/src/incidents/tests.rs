use std::collections::BTreeSet;

use gputenancy_nvml::FaultKind;

use super::*;
use crate::{
    device::{DeviceId, DeviceOwner},
    gpu::{Inventory, ObservedGpu, fault_class::SeenFault, inventory::ObservedInstance},
};

fn owner(pod: &str) -> DeviceOwner {
    DeviceOwner { namespace: format!("team-{pod}"), pod: pod.into(), container: "work".into() }
}

fn owners(of: &[(&str, &str)]) -> Owners {
    of.iter().map(|(id, pod)| (DeviceId::new(*id), owner(pod))).collect()
}

fn state(faults: &[(u64, Option<&str>, Option<u32>, u64)], owned: &[(&str, &str)]) -> PartitionState {
    let instances = [(7, 0), (8, 4)].map(|(gi, start)| ObservedInstance {
        gi,
        start,
        profile: "3g.40gb".into(),
        ..ObservedInstance::default()
    });
    let gpu = |uuid: &str| ObservedGpu { uuid: uuid.into(), ..ObservedGpu::default() };
    let gpus = vec![gpu("GPU-a"), ObservedGpu { instances: instances.into(), ..gpu("GPU-b") }];
    let fault = |(number, uuid, instance, xid): &(u64, Option<&str>, Option<u32>, u64)| SeenFault {
        number: *number,
        uuid: uuid.map(str::to_owned),
        instance: *instance,
        kind: FaultKind::Xid(*xid),
    };
    let inventory = Inventory { gpus, faults: faults.iter().map(fault).collect(), ..Inventory::default() };
    PartitionState { inventory: Some(inventory), owners: Some(owners(owned)), ..PartitionState::default() }
}

const SHARED: [(&str, &str); 3] = [("GPU-a::0", "p"), ("GPU-a::1", "q"), ("GPU-b::4::3g.40gb", "r")];

/// Pods that hear of an incident.
fn told(incident: &Incident) -> BTreeSet<String> {
    let all = notices("n", incident).into_iter().filter(|n| n.regarding.kind.as_deref() == Some("Pod"));
    all.filter_map(|n| n.regarding.name).collect()
}

#[test]
fn fault_of_a_shared_gpu_is_told_to_each_of_its_pods_once_and_names_no_other() {
    let mut seen = Seen::default();
    let faults = [(1, Some("GPU-a"), None, 31)];
    let found = seen.incidents(&state(&faults, &SHARED));
    assert_eq!(found.iter().map(told).collect::<Vec<_>>(), [BTreeSet::from(["p".to_owned(), "q".into()])]);
    let notices = notices("n", &found[0]);
    assert_eq!(notices.len(), 3);
    assert!(notices[0].note.contains("team-p/p, team-q/q"), "{}", notices[0].note);
    for notice in &notices[1..] {
        assert!(notice.note.contains("expected on a shared GPU") && !notice.note.contains("team-"), "{}", notice.note);
        assert_eq!(notice.reason, gputenancy_crds::reasons::GPU_PROGRAM_FAULT);
    }
    assert!(seen.incidents(&state(&faults, &SHARED)).is_empty(), "told once");
}

#[test]
fn fault_of_an_instance_is_told_to_its_owner_only() {
    let owned = [("GPU-b::0::3g.40gb", "p"), ("GPU-b::4::3g.40gb", "q")];
    let found = Seen::default().incidents(&state(&[(1, Some("GPU-b"), Some(8), 13)], &owned));
    assert_eq!(found.iter().map(told).collect::<Vec<_>>(), [BTreeSet::from(["q".to_owned()])]);
    assert!(notices("n", &found[0])[1].note.contains("look at the log of its program"));
    let found = Seen::default().incidents(&state(&[(1, Some("GPU-b"), None, 79)], &owned));
    assert_eq!(told(&found[0]).len(), 2, "the whole GPU");
    assert!(notices("n", &found[0])[0].note.contains("restart it"));
    assert!(notices("n", &found[0])[1].note.contains("an incident of the platform"));
}

#[test]
fn fault_without_a_gpu_is_told_on_all_gpus_and_an_owner_that_it_ended_is_told_too() {
    let mut seen = Seen::default();
    assert!(seen.incidents(&state(&[], &SHARED)).is_empty());
    let found = seen.incidents(&state(&[(1, None, None, 48)], &SHARED[1..]));
    assert_eq!(found.len(), 2);
    assert_eq!(told(&found[0]), BTreeSet::from(["p".to_owned(), "q".into()]), "p was there at the scan before");
    assert_eq!(told(&found[1]), BTreeSet::from(["r".to_owned()]));
}
