use gputenancy_crds::projection::NodePod;
use serde_json::{from_value, json};

use super::*;

/// A node whose agent saw the deletions when it started.
struct Node {
    pods: TerminatingPods,
    schedule: Schedule,
    start: Instant,
}

const UID: &str = "u-a";
/// Deletion at 12:00:00 with a grace period of 60 s.
const DEADLINE: &str = "2026-11-27T12:01:00Z";

impl Node {
    fn with(deadline: &str, grace: u64) -> Self {
        let mut node = Self { pods: TerminatingPods::default(), schedule: Schedule::default(), start: Instant::now() };
        node.deleted("a", deadline, grace, 0);
        node
    }

    /// The agent sees the deletion of a pod this many seconds after its start.
    fn deleted(&mut self, name: &str, deadline: &str, grace: u64, seconds: u64) {
        let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
        let times = json!({"namespace": "team-a", "name": name, "uid": format!("u-{name}"),
            "deletionTimestamp": deadline, "deletionGracePeriodSeconds": grace});
        let spec = json!({"containers": [{"name": "c", "resources": limits}]});
        self.pods.apply(&from_value::<NodePod>(json!({"metadata": times, "spec": spec})).unwrap());
        self.schedule.update(&self.pods, self.at(seconds));
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    /// Names of the due pods, and seconds until the next one.
    fn due(&self, wall: &str, seconds: u64) -> (Vec<String>, Option<u64>) {
        let now = Now { wall: wall.parse().unwrap(), monotonic: self.at(seconds) };
        let (due, next) = self.schedule.due(&self.pods, now);
        (due.into_iter().map(|pod| pod.name).collect(), next.map(|wait| wait.as_secs()))
    }
}

fn a() -> (Vec<String>, Option<u64>) {
    (vec!["a".to_owned()], None)
}

fn none(next: u64) -> (Vec<String>, Option<u64>) {
    (vec![], Some(next))
}

#[test]
fn pod_is_due_thirty_seconds_after_its_grace_period() {
    let mut node = Node::with(DEADLINE, 60);
    node.deleted("b", "2026-11-27T12:01:20Z", 80, 0);
    assert_eq!(node.due("2026-11-27T12:01:29Z", 89), none(1));
    assert_eq!(node.due("2026-11-27T12:01:30Z", 90), (a().0, Some(20)));
    assert_eq!(node.due("2026-11-27T13:00:00Z", 3600), (vec!["a".to_owned(), "b".to_owned()], None));
}

#[test]
fn node_that_returns_late_leaves_kubelet_the_whole_grace_period() {
    let node = Node::with(DEADLINE, 60);
    assert_eq!(node.due("2026-11-27T15:00:00Z", 0), none(90), "the deletion was hours ago");
    assert_eq!(node.due("2026-11-27T15:01:29Z", 89), none(1));
    assert_eq!(node.due("2026-11-27T15:01:30Z", 90), a());
}

#[test]
fn clock_ahead_by_two_minutes_does_not_shorten_the_grace_period() {
    let node = Node::with(DEADLINE, 60);
    assert_eq!(node.due("2026-11-27T12:02:00Z", 0), none(90));
    assert_eq!(node.due("2026-11-27T12:03:29Z", 89), none(1));
    assert_eq!(node.due("2026-11-27T12:03:30Z", 90), a());
}

#[test]
fn clock_behind_delays_the_end() {
    let node = Node::with(DEADLINE, 60);
    assert_eq!(node.due("2026-11-27T11:59:30Z", 90), none(120));
    assert_eq!(node.due("2026-11-27T12:01:30Z", 210), a());
}

#[test]
fn agent_that_restarts_only_delays_the_end() {
    let mut node = Node::with(DEADLINE, 60);
    node.schedule.update(&node.pods, node.at(80));
    assert_eq!(node.due("2026-11-27T12:01:20Z", 80), none(10), "the first sight counts");
    let restart = node.at(80);
    node.schedule = Schedule::default();
    node.schedule.update(&node.pods, restart);
    assert_eq!(node.due("2026-11-27T12:01:30Z", 90), none(80));
    assert_eq!(node.due("2026-11-27T12:02:50Z", 170), a());
}

#[test]
fn second_deletion_with_a_shorter_grace_period_advances_the_end() {
    let mut node = Node::with("2026-11-27T12:10:00Z", 600);
    node.deleted("a", "2026-11-27T12:00:05Z", 5, 500);
    assert_eq!(node.due("2026-11-27T12:08:20Z", 500), none(35), "kubelet has the shorter period since then");
    assert_eq!(node.due("2026-11-27T12:08:55Z", 535), a());
    node.deleted("a", "2026-11-27T12:00:04Z", 4, 534);
    assert_eq!(node.due("2026-11-27T12:08:55Z", 535), a(), "it cannot delay the end");
}

#[test]
fn attempts_are_repeated_with_exponential_backoff() {
    let mut node = Node::with(DEADLINE, 60);
    let mut waits = Vec::new();
    for _ in 0..6 {
        node.schedule.retry(UID, node.at(90), false);
        waits.push(node.due("2026-11-27T12:01:30Z", 90).1.unwrap());
    }
    assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
    assert_eq!(node.due("2026-11-27T12:02:30Z", 150), a());
    let mut other = Node::with(DEADLINE, 60);
    other.schedule.retry(UID, other.at(90), true);
    assert_eq!(other.due("2026-11-27T12:01:30Z", 90), none(60), "the longest interval at once");
}

#[test]
fn failures_of_one_pod_are_warnings_once_a_minute() {
    let mut node = Node::with(DEADLINE, 60);
    node.deleted("b", DEADLINE, 60, 0);
    let warns: Vec<bool> = [90, 95, 149, 150, 151].map(|s| node.schedule.warns(UID, node.at(s))).into();
    assert_eq!(warns, [true, false, false, true, false]);
    assert!(node.schedule.warns("u-b", node.at(151)), "another pod");
}

#[test]
fn ended_pod_is_forgotten_and_its_successor_reported() {
    let mut node = Node::with(DEADLINE, 60);
    assert!(!node.schedule.is_reported(UID));
    node.schedule.reported(UID);
    node.schedule.update(&node.pods, node.at(100));
    assert!(node.schedule.is_reported(UID));
    node.schedule.update(&TerminatingPods::default(), node.at(101));
    assert!(!node.schedule.is_reported(UID));
    node.deleted("a", DEADLINE, 60, 102);
    assert!(!node.schedule.is_reported(UID));
}
