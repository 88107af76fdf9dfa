//! Maintenance windows, daylight saving included, and what a change does at their edges.

use gputenancy_crds::{ChangePhase, MaintenanceWindow};
use gputenancy_decisions::change::{PodController, Window, WindowError, Windows};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    actors::Outcome,
    scenario::{self, Scenario},
    world::World,
};

fn window(schedule: &str, duration: &str, zone: &str) -> MaintenanceWindow {
    serde_json::from_value(json!({"schedule": schedule, "duration": duration, "timeZone": zone})).unwrap()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn at(windows: &[MaintenanceWindow], now: &str) -> Window {
    Windows::read(windows, time(now)).unwrap().at(time(now))
}

fn open(since: &str, until: &str, next: &str) -> Window {
    Window::Open { since: time(since), until: time(until), next: Some(time(next)) }
}

fn closed(opens: &str, closes: &str) -> Window {
    Window::Closed { next: Some((time(opens), time(closes))) }
}

#[test]
fn a_pool_without_windows_is_always_open() {
    assert_eq!(at(&[], "2026-11-21T08:00:00Z"), Window::Always);
    assert!(at(&[], "2026-11-21T08:00:00Z").lasts(Timestamp::MAX));
}

#[test]
fn a_saturday_night_opens_and_closes_to_the_second() {
    let saturday = [window("0 2 * * 6", "4h", "Europe/Berlin")];
    assert_eq!(at(&saturday, "2026-11-21T00:59:59Z"), closed("2026-11-21T01:00:00Z", "2026-11-21T05:00:00Z"));
    let now = open("2026-11-21T01:00:00Z", "2026-11-21T05:00:00Z", "2026-11-28T01:00:00Z");
    assert_eq!(at(&saturday, "2026-11-21T01:00:00Z"), now);
    assert_eq!(at(&saturday, "2026-11-21T04:59:59.9Z"), now);
    assert_eq!(at(&saturday, "2026-11-21T05:00:00Z"), closed("2026-11-28T01:00:00Z", "2026-11-28T05:00:00Z"));
}

#[test]
fn an_opening_in_the_hour_that_is_skipped_comes_right_after_it_and_the_window_keeps_its_length() {
    // 2026-03-29: 02:00 CET is followed by 03:00 CEST
    let night = [window("30 2 * * *", "2h", "Europe/Berlin")];
    assert_eq!(at(&night, "2026-03-29T00:59:59Z"), closed("2026-03-29T01:00:00Z", "2026-03-29T03:00:00Z"));
    assert_eq!(
        at(&night, "2026-03-29T01:10:00Z"),
        open("2026-03-29T01:00:00Z", "2026-03-29T03:00:00Z", "2026-03-30T00:30:00Z")
    );
    let across = [window("0 1 * * *", "3h", "Europe/Berlin")];
    assert_eq!(
        at(&across, "2026-03-29T02:59:59Z"),
        open("2026-03-29T00:00:00Z", "2026-03-29T03:00:00Z", "2026-03-29T23:00:00Z"),
        "three real hours, though the clock shows 05:00"
    );
}

#[test]
fn an_opening_in_the_hour_that_comes_twice_counts_once() {
    // 2026-10-25: 02:00 to 03:00 comes first as CEST, then as CET
    let night = [window("30 2 * * *", "40m", "Europe/Berlin")];
    let first = open("2026-10-25T00:30:00Z", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z");
    assert_eq!(at(&night, "2026-10-25T00:30:00Z"), first);
    assert_eq!(at(&night, "2026-10-25T01:09:59Z"), first);
    for later in ["2026-10-25T01:10:00Z", "2026-10-25T01:30:00Z", "2026-10-25T01:45:00Z"] {
        assert_eq!(at(&night, later), closed("2026-10-26T01:30:00Z", "2026-10-26T02:10:00Z"), "{later}");
    }
}

#[test]
fn windows_that_touch_are_one_and_those_without_end_are_always_open() {
    let evening = [window("0 20 * * *", "2h", "UTC"), window("0 22 * * *", "1h", "UTC")];
    assert_eq!(
        at(&evening, "2026-11-21T21:00:00Z"),
        open("2026-11-21T20:00:00Z", "2026-11-21T23:00:00Z", "2026-11-22T20:00:00Z")
    );
    assert_eq!(at(&[window("* * * * *", "1m", "UTC")], "2026-11-21T21:00:00Z"), Window::Always);
}

#[test]
fn what_is_no_window_is_refused_with_its_field_and_a_remedy() {
    let now = time("2026-11-21T08:00:00Z");
    let error = |schedule: &str, duration: &str, zone: &str| {
        let windows = [window("0 2 * * 6", "4h", "UTC"), window(schedule, duration, zone)];
        Windows::read(&windows, now).unwrap_err()
    };
    assert!(matches!(error("0 25 * * *", "1h", "UTC"), WindowError::Schedule { index: 1, .. }));
    assert!(matches!(error("0 2 * * * *", "1h", "UTC"), WindowError::Schedule { index: 1, .. }), "no seconds");
    assert!(matches!(error("0 2 30 2 *", "1h", "UTC"), WindowError::Never { index: 1, .. }));
    let zone = error("0 2 * * *", "1h", "Europe/Atlantis").to_string();
    assert!(zone.starts_with("spec.disruption.windows[1].timeZone: `Europe/Atlantis` is unknown; write"), "{zone}");
}

fn notified(notice: i64) -> World {
    let scenario = Scenario { pods: vec![(0, PodController::Replaces)], ..scenario::all()[0].clone() };
    let mut world = World::new(&scenario);
    world.policy.notice = SignedDuration::from_secs(notice);
    world
}

fn minutes(world: &World, n: i64) -> Timestamp {
    world.now.checked_add(SignedDuration::from_mins(n)).unwrap()
}

#[test]
fn outside_of_its_windows_nothing_begins_and_the_next_one_is_named() {
    let mut world = notified(0);
    let opens = minutes(&world, 90);
    world.policy.window = Window::Closed { next: Some((opens, minutes(&world, 150))) };
    let decision = world.decide();
    assert_eq!((decision.spec, decision.notices.len(), decision.requeue_at), (None, 0, Some(opens)));
    assert_eq!(decision.pending, Some(format!("Pending: nextWindow={opens}")));
    world.policy.window = Window::Closed { next: None };
    assert_eq!(world.decide().pending.as_deref(), Some("Pending: nextWindow=never"));
}

#[test]
fn a_notice_that_would_outlast_the_window_is_not_given() {
    let mut world = notified(1800);
    let next = Some(minutes(&world, 900));
    world.policy.window = Window::Open { since: world.now, until: minutes(&world, 30), next };
    let pending = world.decide().pending.unwrap();
    assert!(pending.ends_with("because the notice would outlast the present one"), "{pending}");
    world.policy.window = Window::Open { since: world.now, until: minutes(&world, 31), next };
    assert!(world.decide().spec.is_some());
}

#[test]
fn a_change_whose_pods_are_still_there_when_the_window_closes_is_taken_back_with_its_notices() {
    let mut world = notified(0);
    world.refusals = 1000;
    for _ in 0..60 {
        let _ = world.agent_step(Outcome::Done) || world.operator_step(Outcome::Done);
    }
    assert_eq!(world.phase(), Some(ChangePhase::Evicting));
    assert!(world.pods.values().all(|p| p.notice.is_some()));
    let next = Some((minutes(&world, 600), minutes(&world, 660)));
    world.policy.window = Window::Closed { next };
    for _ in 0..60 {
        let _ = world.agent_step(Outcome::Done) || world.operator_step(Outcome::Done);
    }
    assert_eq!((world.phase(), world.spec().hold.len(), world.evicted.len()), (None, 0, 0));
    assert!(world.pods.values().all(|p| p.notice.is_none()));
    assert_eq!(world.decide().requeue_at, next.map(|n| n.0));
}

#[test]
fn a_change_whose_pods_are_leaving_when_the_window_closes_goes_on() {
    let mut world = notified(0);
    while world.phase() != Some(ChangePhase::Evicting) || world.evicted.is_empty() {
        let _ = world.agent_step(Outcome::Done) || world.operator_step(Outcome::Done);
    }
    world.policy.window = Window::Closed { next: None };
    while world.fair_step().is_some() {}
    world.check_end();
}
