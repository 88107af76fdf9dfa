use gputenancy_crds::FaultFinding::{CanaryFailed, CanaryPassed, ClearedByPerson};
use proptest::prelude::*;

use super::*;

const NOTHING: Asked = Asked::Action(RecoveryAction::None);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn verdict(seconds: i64, finding: FaultFinding) -> FaultVerdict {
    FaultVerdict { until: Time(at(seconds)), finding, reason: "canary pod c".to_owned() }
}

fn faulty(times: &[i64]) -> GpuFaults {
    let mut faults = GpuFaults::default();
    for time in times {
        faults.record("Xid 48".into(), at(*time));
    }
    faults
}

/// State and message after this was observed at each of the times.
fn observed(mut faults: GpuFaults, asked: Asked, times: &[i64]) -> (RecoveryState, String) {
    for time in times {
        faults.observe(asked, None, at(*time));
    }
    let recovery = faults.recovery(at(*times.last().unwrap())).unwrap();
    (recovery.state, recovery.message)
}

#[test]
fn canary_is_awaited_once_the_driver_has_asked_for_nothing_for_thirty_seconds() {
    let states = [1, 30, 31].map(|last| observed(faulty(&[0]), NOTHING, &[1, last]).0);
    assert_eq!(states, [RecoveryState::Waiting, RecoveryState::Waiting, RecoveryState::AwaitingCanary]);
}

#[test]
fn any_other_word_of_the_driver_waits_and_starts_the_time_again() {
    for action in [
        RecoveryAction::GpuReset,
        RecoveryAction::NodeReboot,
        RecoveryAction::DrainP2P,
        RecoveryAction::DrainAndReset,
        RecoveryAction::Other(9),
    ] {
        let (state, message) = observed(faulty(&[0]), Asked::Action(action), &[1, 100]);
        assert_eq!(state, RecoveryState::Waiting, "{action:?}");
        assert!(message.starts_with("the driver asks for "), "{message}");
    }
    assert_eq!(observed(faulty(&[0]), Asked::Unknown, &[1, 100]).0, RecoveryState::Waiting);
    let mut faults = faulty(&[0]);
    for (asked, time) in [(NOTHING, 1), (Asked::Unknown, 20), (NOTHING, 22), (NOTHING, 40)] {
        faults.observe(asked, None, at(time));
    }
    assert_eq!(faults.recovery(at(40)).unwrap().state, RecoveryState::Waiting, "22 to 40 are 18 seconds");
}

#[test]
fn without_a_word_of_the_driver_it_stays_out() {
    let (state, message) = observed(faulty(&[0]), Asked::Unsupported, &[1, 100]);
    assert_eq!(state, RecoveryState::StaysOut);
    assert!(message.contains("570") && message.contains("reset") && message.contains(CLEARED_FAULTS), "{message}");
}

#[test]
fn passed_canary_clears_the_fault_and_a_failed_one_does_not() {
    let mut faults = faulty(&[0]);
    faults.observe(NOTHING, Some(&verdict(0, CanaryFailed)), at(60));
    let recovery = faults.recovery(at(60)).unwrap();
    assert_eq!((recovery.state, faults.fault.is_some()), (RecoveryState::StaysOut, true));
    assert!(recovery.message.starts_with("canary pod c: reset the GPU"), "{}", recovery.message);
    faults.observe(NOTHING, Some(&verdict(0, CanaryPassed)), at(61));
    assert_eq!((faults.recovery(at(61)).unwrap().state, faults.fault), (RecoveryState::Cleared, None));
}

#[test]
fn verdict_says_nothing_about_a_later_fault() {
    let mut faults = faulty(&[0, 100]);
    for finding in [CanaryPassed, CanaryFailed, ClearedByPerson] {
        faults.observe(NOTHING, Some(&verdict(50, finding)), at(101));
        assert_eq!(faults.recovery(at(101)).unwrap().state, RecoveryState::Waiting);
        assert!(faults.fault.is_some());
    }
}

#[test]
fn verdict_covers_no_later_fault_although_the_clock_was_set_back() {
    let mut faults = faulty(&[1000]);
    faults.observe(NOTHING, Some(&verdict(1000, CanaryPassed)), at(1060));
    assert_eq!(faults.fault, None);
    for _ in 0..3 {
        faults.record("Xid 48".into(), at(400));
    }
    faults.observe(NOTHING, Some(&verdict(1000, CanaryPassed)), at(401));
    assert!(faults.fault.is_some());
    assert!(faults.recovery(at(401)).unwrap().latest().unwrap().0 > at(1000));
}

#[test]
fn third_fault_in_a_day_stays_out_and_a_person_can_still_clear_it() {
    let day = 24 * 3600;
    let third = |last: i64| observed(faulty(&[0, 1000, last]), NOTHING, &[last + 1, last + 60]);
    assert_eq!(third(day - 100).0, RecoveryState::StaysOut);
    assert!(third(day - 100).1.starts_with("3 faults in 24 hours: reset"), "{}", third(day - 100).1);
    assert_eq!(third(day + 10).0, RecoveryState::AwaitingCanary, "the first is older than a day");
    let mut faults = faulty(&[0, 100, 200]);
    faults.observe(NOTHING, Some(&verdict(300, ClearedByPerson)), at(301));
    assert!(faults.is_over(), "and it counts no more");
}

#[test]
fn faults_in_a_loop_are_one() {
    let times: Vec<i64> = (0..100).map(|n| n * 10).collect();
    let recovery = faulty(&times).recovery(at(1000)).unwrap();
    assert_eq!(recovery.faults, [Time(at(990))]);
}

#[test]
fn cleared_faults_are_forgotten_after_a_day_and_present_ones_are_not() {
    let later = 25 * 3600;
    let mut faults = faulty(&[0]);
    faults.observe(Asked::Unsupported, None, at(later));
    assert_eq!(faults.recovery(at(later)).unwrap().faults, [Time(at(0))]);
    faults.observe(Asked::Unsupported, Some(&verdict(0, CanaryPassed)), at(later));
    assert!(faults.is_over());
    assert_eq!(faults.recovery(at(later)), None);
}

proptest! {
    /// In any sequence of events a fault ends only by a verdict about it, and a canary is awaited only after the quiet time.
    #[test]
    fn nothing_but_a_verdict_about_it_ends_a_fault(
        steps in proptest::collection::vec((0_i64..60, 0..4_u8, proptest::option::of((0_i64..2000, 0..3_usize))), 1..40),
    ) {
        let (mut faults, mut now, mut last_other) = (faulty(&[0]), 0, 0);
        for (pause, kind, found) in steps {
            now += pause;
            let before = faults.fault.is_some();
            let asked = match kind {
                0 => {
                    faults.record("Xid 48".into(), at(now));
                    Asked::Unknown
                }
                1 => Asked::Action(RecoveryAction::GpuReset),
                _ => NOTHING,
            };
            if asked != NOTHING {
                last_other = now;
            }
            let last = faults.times.last().copied();
            let found = found.map(|(until, n)| verdict(until, [CanaryPassed, CanaryFailed, ClearedByPerson][n]));
            faults.observe(asked, found.as_ref(), at(now));
            let covered = found.is_some_and(|v| v.is_cleared() && last.is_some_and(|last| v.until.0 >= last));
            prop_assert_eq!(faults.fault.is_none(), covered || (!before && kind != 0));
            if let Some(recovery) = faults.recovery(at(now)) {
                prop_assert_eq!(recovery.state == RecoveryState::Cleared, faults.fault.is_none());
                prop_assert!(recovery.state != RecoveryState::AwaitingCanary || now - last_other >= 30);
                prop_assert!(recovery.faults.len() <= KEPT);
            }
        }
    }
}
