use proptest::prelude::*;

use super::*;
use crate::{device::MigIds, kubelet::offer::Listed};

const R: &str = "nvidia.com/gpu";

fn device(n: u32) -> Device {
    let gpu = format!("GPU-{n}");
    Device {
        id: id(n),
        resource: R.to_owned(),
        gpu_uuid: gpu,
        gpu_minor: n,
        mig: None,
        numa: None,
        cordoned: false,
        healthy: true,
    }
}

fn id(n: u32) -> DeviceId {
    DeviceId::new(format!("GPU-{n}"))
}

fn offer(ids: &[u32]) -> Offer {
    ids.iter().map(|n| (id(*n), Listed { healthy: true, numa: None })).collect()
}

fn ledger(ids: &[u32]) -> Ledger {
    let ledger = Ledger::default();
    ledger.learn(&(0..5).map(device).collect::<Vec<_>>());
    ledger.publish(R, &offer(ids));
    ledger
}

#[test]
fn gives_all_or_nothing() {
    let ledger = ledger(&[0, 1]);
    let refused = ledger.grant(R, &[id(0), id(2)], Instant::now());
    assert_eq!(refused, Err(Refused::NotOffered(id(2))));
    assert!(ledger.settle(BTreeSet::new(), Instant::now(), Instant::now()).is_empty(), "nothing was given");
}

#[test]
fn what_kubelet_chose_just_before_the_withdrawal_is_still_given() {
    let ledger = ledger(&[0, 1]);
    ledger.publish(R, &offer(&[0]));
    assert!(ledger.grant(R, &[id(1)], Instant::now()).is_ok());
    assert!(ledger.seal());
    assert!(ledger.grant(R, &[id(1)], Instant::now()).is_err());
}

#[test]
fn a_device_offered_again_is_no_longer_leaving() {
    let ledger = ledger(&[0, 1]);
    ledger.publish(R, &offer(&[0]));
    ledger.publish(R, &offer(&[0, 1]));
    assert!(!ledger.seal());
    assert!(ledger.grant(R, &[id(1)], Instant::now()).is_ok());
}

#[test]
fn an_unhealthy_device_is_not_given() {
    let ledger = ledger(&[0]);
    ledger.publish(R, &[(id(0), Listed { healthy: false, numa: None })].into());
    ledger.seal();
    assert!(ledger.grant(R, &[id(0)], Instant::now()).is_err());
}

#[test]
fn a_device_is_not_given_under_another_resources_name() {
    let ledger = ledger(&[0]);
    assert!(ledger.grant("nvidia.com/gpu.shared", &[id(0)], Instant::now()).is_err());
}

#[test]
fn a_grant_is_open_until_kubelet_shows_an_owner_or_has_had_its_time() {
    let ledger = ledger(&[0, 1]);
    let now = Instant::now();
    let asked = now + Duration::from_millis(1);
    ledger.grant(R, &[id(0), id(1)], now).unwrap();
    assert_eq!(ledger.settle([id(0)].into(), asked, asked), [id(1)].into());
    assert!(ledger.settle([id(0)].into(), asked, now + GRANT_PATIENCE).is_empty());
}

#[test]
fn an_answer_to_an_earlier_question_says_nothing_about_a_grant() {
    let ledger = ledger(&[0]);
    let asked = Instant::now();
    let given = asked + Duration::from_millis(1);
    ledger.grant(R, &[id(0)], given).unwrap();
    assert_eq!(ledger.settle([id(0)].into(), asked, given), [id(0)].into(), "that was the owner before");
    assert!(ledger.settle([id(0)].into(), given + Duration::from_millis(1), given).is_empty());
}

#[test]
fn ledger_attributes_a_legacy_id_to_the_instance_at_that_place() {
    let mig = |uuid: &str, start, profile: &str| Device {
        id: DeviceId::new(uuid),
        mig: Some(MigIds { gi: 7, ci: 0, start, profile: profile.to_owned() }),
        ..device(0)
    };
    let ledger = Ledger::default();
    ledger.learn(&[mig("MIG-a", 0, "1g.10gb"), mig("MIG-b", 1, "1g.10gb")]);
    ledger.publish(R, &["MIG-a", "MIG-b"].map(|id| (DeviceId::new(id), Listed { healthy: true, numa: None })).into());
    let owner = |pod: &str| DeviceOwner { namespace: "t".into(), pod: pod.into(), container: "c".into() };
    let reported = [("GPU-0::0::1g.10gb", "old"), ("GPU-0::1::2g.20gb", "gone"), ("MIG-b", "new")]
        .map(|(id, pod)| (DeviceId::new(id), owner(pod)));
    let owners = ledger.resolve(reported.into());
    let pods: Vec<(&str, &str)> = owners.iter().map(|(id, owner)| (id.as_str(), owner.pod.as_str())).collect();
    assert_eq!(pods, [("GPU-0::1::2g.20gb", "gone"), ("MIG-a", "old"), ("MIG-b", "new")]);
}

#[test]
fn prefers_the_gpu_in_use() {
    let ledger = ledger(&[0, 1, 2]);
    ledger.settle([id(1)].into(), Instant::now(), Instant::now());
    let candidates = ledger.candidates(&[id(0), id(1)], &BTreeSet::new());
    assert_eq!(candidates.iter().map(|c| c.busy).collect::<Vec<_>>(), [0, 1]);
}

proptest! {
    /// Whatever is published and sealed: only offered devices are given afterwards.
    #[test]
    fn nothing_is_given_after_the_seal_that_is_not_offered(
        lists in proptest::collection::vec(proptest::collection::vec(0..5_u32, 0..5), 1..6),
        asked in 0..5_u32,
    ) {
        let ledger = ledger(&[]);
        for list in &lists {
            ledger.publish(R, &offer(list));
        }
        ledger.seal();
        let offered = lists.last().unwrap().contains(&asked);
        prop_assert_eq!(ledger.grant(R, &[id(asked)], Instant::now()).is_ok(), offered);
    }
}
