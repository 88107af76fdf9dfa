//! Tests of controller states after sequences of refusals, quotas and pods.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use super::*;
use crate::object_name::ObjectName;

const KEY: &str = "requests.nvidia.com/gpu";
const WAITING: Option<DemandStage> = Some(DemandStage::Waiting);
const RESERVED: Option<DemandStage> = Some(DemandStage::Reserved);
const SETTLING: Option<DemandStage> = Some(DemandStage::Settling);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn target(api_version: &str, kind: &str) -> Option<WakeTarget> {
    let (api_version, kind) = (api_version.into(), kind.into());
    let name = ObjectName::parse("web-5c").unwrap();
    WakeTarget::of(&crate::cache::ControllerRef { api_version, kind, name })
}

fn refused(version: u64, second: i64) -> Refused {
    let amounts = [(KEY.to_owned(), Amount::units(1))].into();
    let target = target("apps/v1", "ReplicaSet");
    Refused { namespace: "a".into(), uid: "rs-1".into(), target, version, at: at(second), amounts, newest_pod: None }
}

fn with_pod(refused: Refused, created: i64) -> Refused {
    Refused { newest_pod: Some(at(created)), ..refused }
}

fn quota(limit: i32, used: i32) -> BTreeMap<String, QuotaState> {
    let of = |n: i32| [(KEY.to_owned(), Quantity(n.to_string()))].into();
    [("a".to_owned(), QuotaState { written: of(limit), enforced: of(limit), used: of(used) })].into()
}

fn stage(controllers: &RefusedControllers) -> Option<DemandStage> {
    controllers.demands("a").first().map(|w| w.stage)
}

fn waiting(controllers: &RefusedControllers, second: i64) -> usize {
    controllers.waiting(&["a"], KEY, at(second), SignedDuration::ZERO)
}

/// The controllers after these observations: second, limit, use.
fn observed(refusals: &[Refused], sequence: &[(i64, i32, i32)]) -> RefusedControllers {
    sequence.iter().fold(RefusedControllers::default(), |controllers, (second, limit, used)| {
        controllers.update(refusals, &quota(*limit, *used), at(*second)).0
    })
}

/// The stage after each of these observations, with one refusal in second 0.
fn stages(sequence: &[(i64, i32, i32)]) -> Vec<Option<DemandStage>> {
    (1..=sequence.len()).map(|n| stage(&observed(&[refused(1, 0)], &sequence[..n]))).collect()
}

#[test]
fn wait_goes_from_reserved_to_settling_while_pods_come() {
    let stages = stages(&[(0, 1, 1), (1, 4, 1), (2, 4, 2), (30, 4, 3), (59, 4, 3), (61, 4, 3), (62, 3, 3)]);
    assert_eq!(stages, [WAITING, RESERVED, SETTLING, SETTLING, SETTLING, None, None]);
}

#[test]
fn wait_ends_when_the_reservation_ends_unused_or_use_falls() {
    assert_eq!(stages(&[(0, 1, 1), (1, 2, 1), (10, 2, 1), (12, 2, 1)])[2..], [RESERVED, None]);
    assert_eq!(stages(&[(0, 1, 1), (1, 2, 1), (2, 2, 0)])[2], None);
    assert_eq!(stages(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (33, 2, 2)])[2..], [WAITING, None]);
}

#[test]
fn refusal_of_a_complete_controller_stops_to_count_when_a_later_pod_exists() {
    // the headroom came and was used between two observations
    let controllers = observed(&[refused(1, 0)], &[(0, 2, 2), (3, 2, 2)]);
    assert_eq!((stage(&controllers), waiting(&controllers, 3)), (WAITING, 1));
    let (controllers, waited) = controllers.update(&[with_pod(refused(1, 0), 1)], &quota(2, 2), at(4));
    assert_eq!((waiting(&controllers, 4), waited), (0, vec![SignedDuration::from_secs(4)]));
    assert_eq!(controllers.wakes(at(60)), [], "it has retried by itself");
    // the wait does not begin again when the pod goes
    let (controllers, _) = controllers.update(&[refused(1, 0)], &quota(2, 2), at(60));
    assert_eq!(waiting(&controllers, 60), 0);
    // and the same after a restart
    assert_eq!(waiting(&observed(&[with_pod(refused(1, 0), 1)], &[(100, 2, 2)]), 100), 0);
}

#[test]
fn refusal_counts_while_all_pods_of_the_controller_are_older() {
    let refusals = [with_pod(refused(1, 20), 19)];
    let controllers = observed(&refusals, &[(20, 2, 2), (120, 2, 2), (340, 2, 2)]);
    assert_eq!(waiting(&controllers, 340), 1);
    // a controller that is refused repeatedly keeps waiting
    let later = [with_pod(refused(2, 340), 19), with_pod(refused(3, 1000), 19)];
    let (controllers, _) = controllers.update(&later[..1], &quota(2, 2), at(341));
    let (controllers, _) = controllers.update(&later[1..], &quota(2, 2), at(1001));
    let (controllers, _) = controllers.update(&later[1..], &quota(2, 2), at(2190));
    assert_eq!((waiting(&controllers, 2190), stage(&controllers)), (1, WAITING));
}

#[test]
fn refusal_in_the_second_of_a_pod_counts_until_the_controller_stays_silent() {
    let refusals = [with_pod(refused(1, 0), 0)];
    let controllers = observed(&refusals, &[(0, 2, 2)]);
    assert_eq!(waiting(&controllers, 0), 1);
    assert_eq!(controllers.next_deadline(at(5), SignedDuration::ZERO), Some(at(10)));
    assert_eq!(waiting(&controllers.update(&refusals, &quota(2, 2), at(11)).0, 11), 0);
}

#[test]
fn refusal_of_a_deleted_or_scaled_down_controller_stops_to_count_after_its_back_off() {
    let controllers = observed(&[refused(1, 0)], &[(0, 2, 2), (300, 2, 2)]);
    assert_eq!(waiting(&controllers, 300), 1);
    assert_eq!(controllers.next_deadline(at(300), SignedDuration::ZERO), Some(at(330)), "it is observed again then");
    assert_eq!(waiting(&controllers.update(&[refused(1, 0)], &quota(2, 2), at(331)).0, 331), 0);
    // one that has been refused for longer is waited for longer, up to 20 minutes
    let (controllers, _) = observed(&[refused(1, 0)], &[(0, 2, 2)]).update(&[refused(2, 300)], &quota(2, 2), at(300));
    assert_eq!(controllers.next_deadline(at(300), SignedDuration::ZERO), Some(at(750)));
    let (controllers, _) = controllers.update(&[refused(3, 740)], &quota(2, 2), at(740));
    let (controllers, _) = controllers.update(&[refused(4, 1700)], &quota(2, 2), at(1700));
    assert_eq!(controllers.next_deadline(at(1700), SignedDuration::ZERO), Some(at(2900)));
}

#[test]
fn newest_pods_are_found_by_the_uid_of_their_controller() {
    let pod = |uid: &str, controller: bool, created: &str| -> SlimPod {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w", "uid": uid, "controller": controller});
        serde_json::from_value(
            json!({"metadata": {"name": "p", "creationTimestamp": created, "ownerReferences": [owner]}}),
        )
        .unwrap()
    };
    let (first, second) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
    let pods = [pod("a", true, second), pod("a", true, first), pod("b", false, first)];
    assert_eq!(newest_pods(pods.iter()), [("a".to_owned(), second.parse().unwrap())].into());
}

#[test]
fn controller_that_uses_all_headroom_gets_one_pod_more_without_an_event() {
    let stages = stages(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 3, 2), (4, 2, 2), (5, 3, 2), (6, 3, 3), (7, 3, 2)]);
    assert_eq!(stages, [WAITING, RESERVED, WAITING, SETTLING, SETTLING, SETTLING, WAITING, None]);
}

#[test]
fn controller_that_retries_after_its_reservation_counts_again_unless_use_fell() {
    assert_eq!(stages(&[(0, 1, 1), (1, 2, 1), (20, 2, 1), (90, 2, 2)])[2..], [None, WAITING]);
    assert_eq!(stages(&[(0, 1, 1), (1, 2, 1), (20, 2, 1), (90, 2, 0), (91, 2, 2)])[2..], [None, None, None]);
    assert_eq!(stages(&[(0, 1, 1), (1, 2, 1), (20, 2, 1), (1300, 2, 2)])[2..], [None, None]);
}

#[test]
fn anticipated_pod_is_not_counted_as_waiting() {
    let controllers = observed(&[refused(1, 0)], &[(0, 1, 1), (1, 2, 1), (2, 2, 2)]);
    assert_eq!((stage(&controllers), waiting(&controllers, 3)), (WAITING, 0));
}

/// The seconds of these observations in which the controller is woken.
fn woken(sequence: &[(i64, i32, i32)]) -> Vec<i64> {
    let (mut controllers, mut seconds) = (RefusedControllers::default(), Vec::new());
    for (second, limit, used) in sequence {
        controllers = controllers.update(&[refused(1, 0)], &quota(*limit, *used), at(*second)).0;
        for wake in controllers.wakes(at(*second)) {
            assert_eq!((wake.namespace.as_str(), wake.uid.as_str()), ("a", "rs-1"));
            controllers.woken(&wake);
            seconds.push(*second);
        }
    }
    seconds
}

#[test]
fn controller_that_does_not_retry_is_woken_once() {
    assert_eq!(woken(&[(0, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 2, 1), (5, 2, 1)]), [3]);
    assert_eq!(woken(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 2, 2), (4, 2, 2)]), [0; 0], "it has retried");
    assert_eq!(
        woken(&[(0, 1, 1), (1, 2, 1), (2, 1, 1), (3, 1, 1), (4, 2, 1), (6, 2, 1)]),
        [6],
        "headroom came and went"
    );
}

#[test]
fn controller_with_anticipated_headroom_is_woken_unless_more_pods_come() {
    assert_eq!(woken(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2), (6, 3, 2)]), [5]);
    assert_eq!(woken(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 3, 2), (4, 4, 3), (5, 4, 3), (8, 4, 3)]), [0; 0]);
}

#[test]
fn new_use_of_two_controllers_cancels_neither_wake() {
    let both = [refused(1, 0), Refused { uid: "rs-2".into(), ..refused(1, 0) }];
    let wakes = observed(&both, &[(0, 1, 1), (1, 3, 1), (2, 3, 2), (3, 3, 2)]).wakes(at(3));
    assert_eq!(wakes.iter().map(|wake| wake.uid.as_str()).collect::<Vec<_>>(), ["rs-1", "rs-2"]);
}

#[test]
fn next_deadline_is_the_wake_and_not_one_that_is_due() {
    let controllers = observed(&[refused(1, 0)], &[(0, 1, 1), (1, 2, 1)]);
    let next = |second| controllers.next_deadline(at(second), MIN_RESERVATION);
    assert_eq!((next(1), next(3)), (Some(at(3)), Some(at(11))));
}

#[test]
fn controller_of_another_kind_gets_headroom_and_is_not_woken() {
    let other = [Refused { target: target("kubeflow.org/v1", "PyTorchJob"), ..refused(1, 0) }];
    let controllers = observed(&other, &[(0, 1, 1), (1, 2, 1)]);
    assert_eq!((stage(&controllers), controllers.wakes(at(9))), (RESERVED, vec![]));
    assert_eq!(controllers.next_deadline(at(1), MIN_RESERVATION), Some(at(11)));
}

#[test]
fn controller_that_loses_its_headroom_before_it_retries_waits_again() {
    assert_eq!(stages(&[(0, 0, 0), (1, 2, 0), (2, 0, 0)])[2], WAITING);
}

#[test]
fn reservation_lasts_longer_after_a_long_wait() {
    let controllers = observed(&[refused(1, 0)], &[(0, 1, 1)]);
    let (mut controllers, waited) = controllers.update(&[refused(2, 200)], &quota(2, 1), at(202));
    assert_eq!((stage(&controllers), waited), (RESERVED, vec![SignedDuration::from_secs(202)]));
    let wakes = controllers.wakes(at(204));
    controllers.woken(&wakes[0]);
    assert_eq!(controllers.next_deadline(at(204), MIN_RESERVATION), Some(at(505)));
}

#[test]
fn same_event_counts_once_and_a_new_one_counts_again() {
    let (controllers, _) =
        observed(&[refused(1, 0)], &[(0, 2, 1), (60, 2, 1)]).update(&[refused(1, 0)], &quota(1, 1), at(61));
    assert_eq!(stage(&controllers), None);
    let (controllers, _) = controllers.update(&[refused(2, 61)], &quota(1, 1), at(62));
    assert_eq!((stage(&controllers), waiting(&controllers, 62)), (WAITING, 1));
    assert_eq!(controllers.waiting(&["a"], KEY, at(62), MIN_RESERVATION), 0);
    assert!(controllers.update(&[], &quota(1, 1), at(63)).0.is_empty(), "the event was deleted");
}

#[test]
fn old_refusal_after_a_restart_does_not_count() {
    assert_eq!(stage(&observed(&[refused(1, 0)], &[(3600, 1, 1)])), None);
}
