use proptest::prelude::*;

use super::*;
use crate::{
    device::{DeviceOwner, MigIds},
    kubelet::device_list::ListedDevice,
};

const R: &str = "nvidia.com/gpu";

fn device(n: u32) -> Device {
    let gpu = format!("GPU-{n}");
    Device {
        id: id(n),
        resource: R.to_owned(),
        gpu_uuid: gpu,
        gpu_minor: n,
        mig: None,
        share: None,
        numa: None,
        cordoned: false,
        healthy: true,
    }
}

fn id(n: u32) -> DeviceId {
    DeviceId::new(format!("GPU-{n}"))
}

fn list(ids: &[u32]) -> DeviceList {
    ids.iter().map(|n| (id(*n), ListedDevice { healthy: true, numa: None })).collect()
}

fn journal(ids: &[u32]) -> AllocationJournal {
    let journal = AllocationJournal::default();
    journal.set_devices(&(0..5).map(device).collect::<Vec<_>>());
    journal.publish(R, &list(ids));
    journal
}

#[test]
fn journal_allocates_all_devices_or_none() {
    let journal = journal(&[0, 1]);
    let refused = journal.allocate(R, &[id(0), id(2)], Instant::now());
    assert_eq!(refused, Err(Refusal::NotOffered(id(2))));
    assert!(journal.confirm(BTreeSet::new(), Instant::now(), Instant::now()).is_empty(), "nothing was allocated");
}

#[test]
fn withdrawn_device_is_allocated_until_the_withdrawal_ends() {
    let journal = journal(&[0, 1]);
    journal.publish(R, &list(&[0]));
    assert!(journal.allocate(R, &[id(1)], Instant::now()).is_ok());
    assert_eq!(journal.end_withdrawal(), Some(true));
    assert!(journal.allocate(R, &[id(1)], Instant::now()).is_err());
}

#[test]
fn device_that_kubelet_asks_for_is_allocated_although_it_is_withdrawn_meanwhile() {
    let journal = journal(&[0, 1, 2]);
    let (first, second) = (journal.request(&[id(1)]), journal.request(&[id(1)]));
    journal.publish(R, &list(&[0]));
    assert_eq!(journal.end_withdrawal(), None);
    assert!(journal.allocate(R, &[id(1)], Instant::now()).is_ok());
    assert!(journal.allocate(R, &[id(2)], Instant::now()).is_err(), "kubelet did not ask for this one");
    drop(first);
    assert_eq!(journal.end_withdrawal(), None, "the other request is still answered");
    drop(second);
    assert_eq!(journal.end_withdrawal(), Some(true));
    let late = journal.request(&[id(1)]);
    assert!(journal.allocate(R, &[id(1)], Instant::now()).is_err(), "asked for after the withdrawal");
    drop(late);
    assert_eq!(journal.end_withdrawal(), Some(false));
}

#[test]
fn device_published_again_is_no_longer_withdrawn() {
    let journal = journal(&[0, 1]);
    journal.publish(R, &list(&[0]));
    journal.publish(R, &list(&[0, 1]));
    assert_eq!(journal.end_withdrawal(), Some(false));
    assert!(journal.allocate(R, &[id(1)], Instant::now()).is_ok());
}

#[test]
fn unhealthy_device_is_not_allocated() {
    let journal = journal(&[0]);
    journal.publish(R, &[(id(0), ListedDevice { healthy: false, numa: None })].into());
    journal.end_withdrawal();
    assert!(journal.allocate(R, &[id(0)], Instant::now()).is_err());
}

#[test]
fn device_is_not_allocated_as_another_resource() {
    let journal = journal(&[0]);
    assert!(journal.allocate("nvidia.com/gpu.shared", &[id(0)], Instant::now()).is_err());
}

#[test]
fn allocation_is_unconfirmed_until_kubelet_reports_an_owner_or_its_timeout() {
    let journal = journal(&[0, 1]);
    let now = Instant::now();
    let queried = now + Duration::from_millis(1);
    journal.allocate(R, &[id(0), id(1)], now).unwrap();
    assert_eq!(journal.confirm([id(0)].into(), queried, queried), [id(1)].into());
    assert!(journal.confirm([id(0)].into(), queried, now + ALLOCATION_TIMEOUT).is_empty());
}

#[test]
fn response_to_an_earlier_query_does_not_confirm_an_allocation() {
    let journal = journal(&[0]);
    let queried = Instant::now();
    let allocated_at = queried + Duration::from_millis(1);
    journal.allocate(R, &[id(0)], allocated_at).unwrap();
    assert_eq!(journal.confirm([id(0)].into(), queried, allocated_at), [id(0)].into(), "the previous owner");
    assert!(journal.confirm([id(0)].into(), allocated_at + Duration::from_millis(1), allocated_at).is_empty());
}

#[test]
fn journal_attributes_a_legacy_id_to_the_instance_at_that_place() {
    let mig = |uuid: &str, start, profile: &str| Device {
        id: DeviceId::new(uuid),
        mig: Some(MigIds { gi: 7, ci: 0, start, profile: profile.to_owned() }),
        share: None,
        ..device(0)
    };
    let journal = AllocationJournal::default();
    journal.set_devices(&[mig("MIG-a", 0, "1g.10gb"), mig("MIG-b", 1, "1g.10gb")]);
    journal.publish(
        R,
        &["MIG-a", "MIG-b"].map(|id| (DeviceId::new(id), ListedDevice { healthy: true, numa: None })).into(),
    );
    let owner = |pod: &str| DeviceOwner { namespace: "t".into(), pod: pod.into(), container: "c".into() };
    let reported = [("GPU-0::0::1g.10gb", "old"), ("GPU-0::1::2g.20gb", "gone"), ("MIG-b", "new")]
        .map(|(id, pod)| (DeviceId::new(id), owner(pod)));
    let owners = journal.resolve_legacy_ids(reported.into());
    let pods: Vec<(&str, &str)> = owners.iter().map(|(id, owner)| (id.as_str(), owner.pod.as_str())).collect();
    assert_eq!(pods, [("GPU-0::1::2g.20gb", "gone"), ("MIG-a", "old"), ("MIG-b", "new")]);
}

#[test]
fn candidates_count_the_used_devices_of_their_gpu_and_mark_occupied_ones() {
    let journal = journal(&[0, 1, 2]);
    journal.confirm([id(1)].into(), Instant::now(), Instant::now());
    let candidates = journal.candidates(&[id(0), id(1)], &BTreeSet::new(), &[id(1)].into());
    assert_eq!(candidates.iter().map(|c| (c.used, c.occupied)).collect::<Vec<_>>(), [(0, false), (1, true)]);
}

#[test]
fn free_devices_need_no_other_check_until_they_are_allocated_or_the_check_is_old() {
    let (journal, begun) = (journal(&[0, 1, 2, 3]), Instant::now());
    let late = begun + free::HOLDS;
    assert_eq!(journal.allocate_free(R, &[id(0)], begun), None, "nothing was checked");
    journal.allocate(R, &[id(2)], begun).unwrap();
    journal.found_free([0, 1, 2].map(id).into(), Arc::default(), begun);
    assert_eq!(journal.allocate_free(R, &[id(0), id(3)], begun), None, "one of them was not checked");
    assert_eq!(journal.allocate_free(R, &[id(2)], begun), None, "kubelet may not have reported its owner");
    assert!(journal.known_free(&[id(0), id(1)], begun).is_some());
    assert!(journal.allocate_free(R, &[id(0)], begun).unwrap().is_ok());
    assert_eq!(journal.allocate_free(R, &[id(0)], begun), None, "it has been allocated");
    assert!(journal.known_free(&[id(0), id(1)], begun).is_none());
    assert!(journal.known_free(&[id(1)], begun).is_some() && journal.known_free(&[id(1)], late).is_none());
}

#[test]
fn free_device_that_a_scan_cordons_is_checked_again() {
    let (journal, now) = (journal(&[0, 1]), Instant::now());
    journal.found_free([0, 1].map(id).into(), Arc::default(), now);
    journal.set_devices(&[Device { cordoned: true, ..device(0) }, device(1)]);
    assert_eq!(journal.allocate_free(R, &[id(0)], now), None);
    assert!(journal.allocate_free(R, &[id(1)], now).is_some());
}

#[test]
fn check_frees_no_device_that_is_withdrawn_or_owned_or_that_a_later_check_has_found_in_use() {
    let (journal, begun) = (journal(&[0, 1, 2]), Instant::now());
    let later = begun + Duration::from_millis(1);
    journal.set_devices(&[Device { cordoned: true, ..device(0) }, device(1), device(2)]);
    journal.confirm([id(1)].into(), begun, begun);
    journal.found_free([0, 1, 2].map(id).into(), Arc::default(), begun);
    assert!([0, 1].map(id).iter().all(|id| journal.allocate_free(R, std::slice::from_ref(id), begun).is_none()));
    assert!(journal.known_free(&[id(2)], begun).is_some());
    journal.found_free(BTreeSet::new(), Arc::default(), later);
    journal.found_free([id(2)].into(), Arc::default(), begun);
    assert_eq!(journal.allocate_free(R, &[id(2)], later), None, "the later check counts, although it has ended before");
}

proptest! {
    /// After the end of a withdrawal only published devices are allocated.
    #[test]
    fn only_published_devices_are_allocated_after_the_withdrawal(
        lists in proptest::collection::vec(proptest::collection::vec(0..5_u32, 0..5), 1..6),
        asked in 0..5_u32,
    ) {
        let journal = journal(&[]);
        for ids in &lists {
            journal.publish(R, &list(ids));
        }
        journal.end_withdrawal();
        let published = lists.last().unwrap().contains(&asked);
        prop_assert_eq!(journal.allocate(R, &[id(asked)], Instant::now()).is_ok(), published);
    }
}
