use std::collections::BTreeSet;

use gputenancy_nvml::{FaultKind, NvmlFailure};

use super::*;
use crate::{
    device::{DeviceId, DeviceOwner},
    gpu::{
        Inventory, ObservedGpu,
        fault_class::SeenFault,
        inventory::{ObservedCompute, ObservedInstance},
    },
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

/// Incidents of the faults that are new in this state.
fn incidents(seen: &mut Seen, state: &PartitionState) -> Vec<Incident> {
    seen.faults(state, Instant::now()).into_iter().flat_map(|(_, incidents)| incidents).collect()
}

/// Pods with an event about an incident.
fn pods(incident: &Incident) -> BTreeSet<String> {
    let all = notices("n", incident).into_iter().filter(|n| n.regarding.kind.as_deref() == Some("Pod"));
    all.filter_map(|n| n.regarding.name).collect()
}

#[test]
fn fault_of_a_shared_gpu_reaches_each_of_its_pods_once_and_names_no_other() {
    let mut seen = Seen::default();
    let faults = [(1, Some("GPU-a"), None, 31)];
    let found = incidents(&mut seen, &state(&faults, &SHARED));
    assert_eq!(found.iter().map(pods).collect::<Vec<_>>(), [BTreeSet::from(["p".to_owned(), "q".into()])]);
    let notices = notices("n", &found[0]);
    assert_eq!(notices.len(), 3);
    assert!(notices[0].note.contains("; pods with its devices: team-p/p, team-q/q"), "{}", notices[0].note);
    for notice in &notices[1..] {
        assert!(notice.note.contains("; pods with its devices: 2; "), "{}", notice.note);
        assert!(notice.note.contains("expected on a shared GPU") && !notice.note.contains("team-"), "{}", notice.note);
        assert_eq!(notice.reason, gputenancy_crds::reasons::GPU_PROGRAM_FAULT);
    }
    assert!(incidents(&mut seen, &state(&faults, &SHARED)).is_empty(), "published once");
}

#[test]
fn fault_of_an_instance_reaches_its_owner_only() {
    let owned = [("GPU-b::0::3g.40gb", "p"), ("GPU-b::4::3g.40gb", "q")];
    let found = incidents(&mut Seen::default(), &state(&[(1, Some("GPU-b"), Some(8), 13)], &owned));
    assert_eq!(found.iter().map(pods).collect::<Vec<_>>(), [BTreeSet::from(["q".to_owned()])]);
    assert!(notices("n", &found[0])[1].note.contains("look at the log of its program"));
    let found = incidents(&mut Seen::default(), &state(&[(1, Some("GPU-b"), None, 79)], &owned));
    assert_eq!(pods(&found[0]).len(), 2, "the whole GPU");
    assert!(notices("n", &found[0])[0].note.contains("restart it"));
    assert!(notices("n", &found[0])[1].note.contains("an incident of the platform"));
}

#[test]
fn fault_without_a_gpu_reaches_all_gpus_and_an_owner_that_it_ended_reacheso() {
    let mut seen = Seen::default();
    assert!(incidents(&mut seen, &state(&[], &SHARED)).is_empty());
    let found = incidents(&mut seen, &state(&[(1, None, None, 48)], &SHARED[1..]));
    assert_eq!(found.len(), 2);
    assert_eq!(pods(&found[0]), BTreeSet::from(["p".to_owned(), "q".into()]), "p was there at the scan before");
    assert_eq!(pods(&found[1]), BTreeSet::from(["r".to_owned()]));
}

#[test]
fn fault_in_a_loop_has_one_set_of_events_a_minute_and_each_is_counted() {
    let (mut seen, start) = (Seen::default(), Instant::now());
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut published = |faults: &[(u64, Option<&str>, Option<u32>, u64)], seconds: u64| {
        let found = seen.faults(&state(faults, &SHARED), at(seconds));
        (found.len(), found.iter().map(|(_, incidents)| incidents.len()).sum::<usize>())
    };
    let same = |number: u64| (number, Some("GPU-a"), None, 31);
    assert_eq!(published(&[same(1), same(2), same(3)], 0), (3, 1));
    assert_eq!(published(&[same(4), (5, Some("GPU-a"), None, 13), (6, Some("GPU-b"), None, 31)], 59), (3, 2));
    assert_eq!(published(&[same(7)], 60), (1, 1));
}

#[test]
fn lost_licence_is_one_event_and_a_silent_nvml_is_none() {
    let with = |licensed: [Option<bool>; 2]| {
        let gpu = |(index, licensed)| ObservedGpu { index, licensed, ..ObservedGpu::default() };
        let gpus = [0, 1].into_iter().zip(licensed).map(gpu).collect();
        PartitionState { inventory: Some(Inventory { gpus, ..Inventory::default() }), ..PartitionState::default() }
    };
    let mut seen = Seen::default();
    assert_eq!(seen.unlicensed(&with([Some(true), None])), Vec::<u32>::new());
    assert_eq!(seen.unlicensed(&with([Some(false), None])), [0]);
    assert_eq!(seen.unlicensed(&PartitionState::default()), Vec::<u32>::new());
    assert_eq!(seen.unlicensed(&with([Some(false), None])), Vec::<u32>::new(), "known already");
    assert_eq!(seen.unlicensed(&with([Some(true), None])), Vec::<u32>::new());
    assert_eq!(seen.unlicensed(&with([Some(false), Some(false)])), [0, 1]);
    assert!(unlicensed("n", 1).note.contains("gpu 1 of node n has no vGPU licence"));
}

#[test]
fn device_that_is_gone_is_an_incident_of_the_pod_that_has_it_and_of_no_other() {
    let instance = |uuid: &str| ObservedInstance {
        compute: vec![ObservedCompute { uuid: Some(uuid.into()), ..ObservedCompute::default() }],
        ..ObservedInstance::default()
    };
    let with = |instances: &[&str], owned: &[(&str, &str)]| {
        let instances = instances.iter().map(|uuid| instance(uuid)).collect();
        let gpu = ObservedGpu { uuid: "GPU-a".into(), instances, ..ObservedGpu::default() };
        let inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
        PartitionState { inventory: Some(inventory), owners: Some(owners(owned)), ..PartitionState::default() }
    };
    let owned = [("MIG-a", "p"), ("MIG-b::1", "q")];
    let mut seen = Seen::default();
    assert_eq!(seen.lost(&with(&["MIG-a", "MIG-b", "MIG-c"], &owned)), []);
    // the agent destroys an instance without an owner
    assert_eq!(seen.lost(&with(&["MIG-a", "MIG-b"], &owned)), []);
    let mut silent = with(&[], &owned);
    silent.inventory.as_mut().unwrap().gpus[0].failure =
        Some(NvmlFailure { call: "nvmlDeviceGetMigMode", code: 15, message: "lost".into() });
    let mut other = Seen { instances: seen.instances.clone(), ..Seen::default() };
    assert_eq!(other.lost(&silent), [], "a GPU that does not answer");
    let lost = seen.lost(&with(&["MIG-a"], &owned));
    assert_eq!(lost.iter().map(|device| device.owner.pod.as_str()).collect::<Vec<_>>(), ["q"]);
    assert_eq!(seen.lost(&with(&["MIG-a"], &owned)), [], "once");
    let notices = super::lost("n", &lost[0]);
    let pods: Vec<_> = notices.iter().filter_map(|n| n.regarding.name.as_deref()).collect();
    assert_eq!(pods, ["n", "q"]);
    assert!(notices[1].note.contains("an incident of the platform"), "{}", notices[1].note);
}

#[test]
fn gpu_that_loses_its_fault_is_reported_once_and_one_that_does_not_answer_is_not() {
    let mut seen = Seen::default();
    let with = |fault: Option<&str>, failure: Option<NvmlFailure>, recovery| {
        let mut state = state(&[], &[]);
        let gpu = &mut state.inventory.as_mut().unwrap().gpus[0];
        (gpu.fault, gpu.failure, gpu.recovery) = (fault.map(str::to_owned), failure, recovery);
        state
    };
    let lost = || NvmlFailure { call: "c", code: 15, message: "lost".into() };
    let recovery = gputenancy_crds::FaultRecovery { message: "canary pod c".into(), ..Default::default() };
    assert_eq!(seen.recovered(&with(Some("Xid 48"), None, None)), []);
    assert_eq!(seen.recovered(&with(None, Some(lost()), None)), []);
    let canary = ("GPU-a".to_owned(), Some("canary pod c".to_owned()));
    assert_eq!(seen.recovered(&with(None, None, Some(recovery.clone()))), [canary]);
    assert_eq!(seen.recovered(&with(None, None, Some(recovery))), []);
    seen.recovered(&with(Some("Xid 48"), None, None));
    assert_eq!(seen.recovered(&with(None, None, None)), [("GPU-a".to_owned(), None)]);
}
