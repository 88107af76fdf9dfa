//! Stories of refusals and quotas, and what becomes of claims.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;

const KEY: &str = "requests.nvidia.com/gpu";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn refused(version: u64, second: i64) -> Refused {
    let amounts = [(KEY.to_owned(), Amount::units(1))].into();
    let controller = Controller::of("apps/v1", "ReplicaSet", "web-5c");
    Refused { namespace: "a".into(), by: "rs-1".into(), controller, version, at: at(second), amounts }
}

fn quota(limit: i32, used: i32) -> BTreeMap<String, Standing> {
    let of = |n: i32| [(KEY.to_owned(), Quantity(n.to_string()))].into();
    [("a".to_owned(), Standing { written: of(limit), in_force: of(limit), used: of(used) })].into()
}

fn stage(claims: &Claims) -> Option<Stage> {
    claims.wants("a").first().map(|w| w.stage)
}

/// A story of quotas: at each second the limit and the use; what becomes of the claim.
fn told(story: &[(i64, i32, i32)]) -> Vec<Option<Stage>> {
    let mut claims = Claims::default();
    let mut stages = Vec::new();
    for (second, limit, used) in story {
        claims = claims.follow(&[refused(1, 0)], &quota(*limit, *used), at(*second)).0;
        stages.push(stage(&claims));
    }
    stages
}

#[test]
fn a_claim_is_held_until_its_pod_has_come_and_lingers_while_others_come() {
    let stages = told(&[(0, 1, 1), (1, 4, 1), (2, 4, 2), (30, 4, 3), (59, 4, 3), (61, 4, 3), (62, 3, 3)]);
    let (open, held, lingers) = (Some(Stage::Open), Some(Stage::Held), Some(Stage::Lingering));
    assert_eq!(stages, [open, held, lingers, lingers, lingers, None, None]);
}

#[test]
fn a_claim_ends_when_its_controller_does_not_come_back_or_the_team_lets_go() {
    assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (10, 2, 1), (12, 2, 1)])[2..], [Some(Stage::Held), None]);
    assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (2, 2, 0)])[2], None);
    assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (33, 2, 2)])[2..], [Some(Stage::Open), None]);
    assert_eq!(told(&[(0, 1, 1), (1200, 1, 1), (1201, 1, 1)])[1..], [Some(Stage::Open), None]);
}

#[test]
fn who_takes_all_the_room_gets_some_for_another_pod_without_another_word_and_once_for_each() {
    let stages = told(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 3, 2), (4, 2, 2), (5, 3, 2), (6, 3, 3), (7, 3, 2)]);
    let (open, held, lingers) = (Some(Stage::Open), Some(Stage::Held), Some(Stage::Lingering));
    assert_eq!(stages, [open, held, open, lingers, lingers, lingers, open, None]);
}

#[test]
fn who_comes_after_patience_has_ended_is_believed_again_and_who_let_go_is_not() {
    assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (20, 2, 1), (90, 2, 2)])[2..], [None, Some(Stage::Open)]);
    assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (20, 2, 1), (90, 2, 0), (91, 2, 2)])[2..], [None, None, None]);
    assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (20, 2, 1), (1300, 2, 2)])[2..], [None, None]);
}

#[test]
fn nobody_is_said_to_wait_on_a_guess() {
    let claims = [(1, 1), (2, 1), (2, 2)]
        .into_iter()
        .zip(0..)
        .fold(Claims::default(), |claims, (q, second)| claims.follow(&[refused(1, 0)], &quota(q.0, q.1), at(second)).0);
    assert_eq!(stage(&claims), Some(Stage::Open));
    assert_eq!(claims.waiting(&["a"], KEY, at(3), SignedDuration::ZERO), 0);
}

/// A story of quotas, as in [`told`]: the seconds in which the controller is called.
fn called(story: &[(i64, i32, i32)]) -> Vec<i64> {
    let mut claims = Claims::default();
    let mut seconds = Vec::new();
    for (second, limit, used) in story {
        claims = claims.follow(&[refused(1, 0)], &quota(*limit, *used), at(*second)).0;
        for call in claims.calls(at(*second)) {
            assert_eq!((call.namespace.as_str(), call.uid.as_str()), ("a", "rs-1"));
            claims.called(&call);
            seconds.push(*second);
        }
    }
    seconds
}

#[test]
fn a_controller_that_does_not_come_for_its_room_is_called_once() {
    assert_eq!(called(&[(0, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 2, 1), (5, 2, 1)]), [3]);
    assert_eq!(called(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 2, 2), (4, 2, 2)]), [0; 0], "it has come");
    assert_eq!(called(&[(0, 1, 1), (1, 2, 1), (2, 1, 1), (3, 1, 1), (4, 2, 1), (6, 2, 1)]), [6], "room came and went");
}

#[test]
fn who_is_given_room_on_a_guess_is_called_for_it_unless_more_comes() {
    assert_eq!(called(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2), (6, 3, 2)]), [5]);
    assert_eq!(called(&[(0, 1, 1), (1, 2, 1), (2, 2, 2), (3, 3, 2), (4, 4, 3), (5, 4, 3), (8, 4, 3)]), [0; 0]);
}

#[test]
fn of_two_controllers_none_is_taken_for_come_because_the_other_came() {
    let both = [refused(1, 0), Refused { by: "rs-2".into(), ..refused(1, 0) }];
    let story = [(0, 1, 1), (1, 3, 1), (2, 3, 2), (3, 3, 2)];
    let claims = story.into_iter().fold(Claims::default(), |claims, (second, limit, used)| {
        claims.follow(&both, &quota(limit, used), at(second)).0
    });
    let calls = claims.calls(at(3));
    assert_eq!(calls.iter().map(|call| call.uid.as_str()).collect::<Vec<_>>(), ["rs-1", "rs-2"]);
}

#[test]
fn it_is_woken_for_a_call_and_not_again_for_one_that_is_due() {
    let (claims, _) = Claims::default().follow(&[refused(1, 0)], &quota(1, 1), at(0));
    let (claims, _) = claims.follow(&[refused(1, 0)], &quota(2, 1), at(1));
    assert_eq!((claims.wake(at(1), HOLD), claims.wake(at(3), HOLD)), (Some(at(3)), Some(at(11))));
}

#[test]
fn a_controller_of_another_kind_is_not_called() {
    let word = Refused { controller: Controller::of("kubeflow.org/v1", "PyTorchJob", "train"), ..refused(1, 0) };
    let (claims, _) = Claims::default().follow(std::slice::from_ref(&word), &quota(1, 1), at(0));
    let (claims, _) = claims.follow(&[word], &quota(2, 1), at(1));
    assert_eq!(
        (stage(&claims), claims.calls(at(9)), claims.wake(at(1), HOLD)),
        (Some(Stage::Held), vec![], Some(at(11)))
    );
}

#[test]
fn a_claim_that_lost_its_room_before_it_came_is_open_again() {
    assert_eq!(told(&[(0, 0, 0), (1, 2, 0), (2, 0, 0)])[2], Some(Stage::Open));
}

#[test]
fn who_has_waited_long_is_waited_for_long() {
    let (claims, _) = Claims::default().follow(&[refused(1, 0)], &quota(1, 1), at(0));
    let (mut claims, waited) = claims.follow(&[refused(2, 200)], &quota(2, 1), at(202));
    assert_eq!((stage(&claims), waited), (Some(Stage::Held), vec![SignedDuration::from_secs(202)]));
    let calls = claims.calls(at(204));
    claims.called(&calls[0]);
    assert_eq!(claims.wake(at(204), HOLD), Some(at(505)));
}

#[test]
fn the_same_words_are_not_believed_twice_and_new_ones_are() {
    let (claims, _) = Claims::default().follow(&[refused(1, 0)], &quota(2, 1), at(0));
    let (claims, _) = claims.follow(&[refused(1, 0)], &quota(2, 1), at(60));
    assert_eq!(stage(&claims), None);
    let (claims, _) = claims.follow(&[refused(1, 0)], &quota(1, 1), at(61));
    assert_eq!(stage(&claims), None);
    let (claims, _) = claims.follow(&[refused(2, 61)], &quota(1, 1), at(62));
    assert_eq!(stage(&claims), Some(Stage::Open));
    assert_eq!(claims.waiting(&["a"], KEY, at(62), SignedDuration::ZERO), 1);
    assert_eq!(claims.waiting(&["a"], KEY, at(62), HOLD), 0);
    let (claims, _) = claims.follow(&[], &quota(1, 1), at(63));
    assert!(claims.is_empty(), "told of no more");
}

#[test]
fn old_refusals_found_after_a_restart_say_nothing() {
    let (claims, _) = Claims::default().follow(&[refused(1, 0)], &quota(1, 1), at(3600));
    assert_eq!(stage(&claims), None);
}
