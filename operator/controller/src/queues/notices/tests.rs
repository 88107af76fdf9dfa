use std::{collections::BTreeMap, sync::Arc};

use gputenancy_decisions::queues::{Entitlement, Team};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{Due, MOST_AT_ONCE, MOST_OF_A_TEAM, Notices};
use crate::{
    cache::kueue::Kind,
    queues::{observe::Observed, teams::QueuedTenant},
};

const SMALL: &str = "nvidia.com/mig-1g.10gb";
/// When all jobs of the tests began to wait.
const BEGUN: &str = "2026-11-30T10:00:00Z";

fn team(name: &str, entitlement: Entitlement) -> QueuedTenant {
    let team = Team { name: name.into(), rank: 0, gpus: [(SMALL.to_owned(), entitlement)].into() };
    let namespaces = [(name.to_owned(), true)].into();
    QueuedTenant { team, group: "default".into(), weight: 1, suspended: false, namespaces }
}

fn object(value: Value) -> Arc<DynamicObject> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// The queue of team-a, which uses its four devices and borrows two.
fn queue() -> Arc<DynamicObject> {
    let quota = json!({"name": SMALL, "nominalQuota": "4", "borrowingLimit": "2", "lendingLimit": "0"});
    let group = json!({"coveredResources": [SMALL], "flavors": [{"name": "gput-p", "resources": [quota]}]});
    let used = json!([{"name": "gput-p", "resources": [{"name": SMALL, "total": "6", "borrowed": "2"}]}]);
    object(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "gput-team-a"},
        "spec": {"resourceGroups": [group]}, "status": {"flavorsUsage": used},
    }))
}

/// Kueue's object of the Job of this name.
fn job(namespace: &str, name: &str, priority: i32, conditions: &Value) -> Arc<DynamicObject> {
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": format!("job-{name}"), "controller": true,
    });
    object(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "name": format!("job-{name}-1"), "namespace": namespace, "uid": format!("w-{name}"), "ownerReferences": [owner],
            "creationTimestamp": BEGUN,
        },
        "spec": {"queueName": "default", "priority": priority},
        "status": {
            "conditions": conditions,
            "resourceRequests": [{"name": "main", "resources": {SMALL: "2", "cpu": "1"}}],
        },
    }))
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": BEGUN})
}

fn waiting(name: &str, priority: i32) -> Arc<DynamicObject> {
    job("team-a", name, priority, &json!([condition("QuotaReserved", "False", "Pending", "couldn't assign flavors")]))
}

/// What is observed so many seconds after the jobs began to wait.
fn after(seconds: i64, workloads: Vec<Arc<DynamicObject>>) -> Observed {
    let begun: Timestamp = BEGUN.parse().unwrap();
    Observed {
        tenants: vec![
            team("team-a", Entitlement { count: 4, borrow: 2, lend: 0 }),
            team("team-b", Entitlement { count: 4, borrow: 0, lend: 4 }),
        ],
        live: [((Kind::ClusterQueue, String::new(), "gput-team-a".to_owned()), queue())].into(),
        workloads,
        now: begun.checked_add(SignedDuration::from_secs(seconds)).unwrap(),
        ..Observed::default()
    }
}

/// Notices of a replica that has led since before the jobs were created.
fn leading() -> Notices {
    let mut notices = Notices::default();
    assert_eq!(notices.due(&after(0, Vec::new())), Due::default());
    notices
}

fn notes(due: &Due) -> Vec<(&str, &str)> {
    due.events.iter().map(|event| (event.reason.as_str(), event.note.as_str())).collect()
}

#[test]
fn job_that_waits_has_one_event_after_a_while() {
    let mut notices = leading();
    let jobs = || vec![waiting("first", 0), waiting("urgent", 100)];
    let early = notices.due(&after(4, jobs()));
    assert_eq!((early.events.len(), early.next), (0, Some(after(10, Vec::new()).now)));
    let due = notices.due(&after(10, jobs()));
    let words = |position| {
        format!(
            "waits for 2 {SMALL}: team-a is guaranteed 4 and uses 4, may borrow 2 and borrows 2; position {position} in the queue"
        )
    };
    let (behind, ahead) = (words(2), words(1));
    assert_eq!(notes(&due), [("QueueWaiting", behind.as_str()), ("QueueWaiting", ahead.as_str())]);
    let regarding = &due.events[0].regarding;
    let job = (regarding.kind.as_deref(), regarding.namespace.as_deref(), regarding.name.as_deref());
    assert_eq!(job, (Some("Job"), Some("team-a"), Some("first")));
    assert_eq!(notices.due(&after(3600, jobs())), Due::default());
}

#[test]
fn job_that_is_admitted_at_once_has_no_event() {
    let mut notices = leading();
    notices.due(&after(4, vec![waiting("one", 0)]));
    let admitted = job("team-a", "one", 0, &json!([condition("QuotaReserved", "True", "QuotaReserved", "")]));
    assert_eq!(notices.due(&after(60, vec![admitted])), Due::default());
}

#[test]
fn jobs_that_waited_before_this_leader_have_no_event() {
    let mut notices = Notices::default();
    assert_eq!(notices.due(&after(60, vec![waiting("old", 0)])), Due::default());
    // the debounce of this one has not ended
    let mut notices = Notices::default();
    notices.due(&after(4, vec![waiting("new", 0)]));
    assert_eq!(notices.due(&after(11, vec![waiting("new", 0)])).events.len(), 1);
}

#[test]
fn job_without_a_queue_or_that_has_ended_has_no_event() {
    let mut notices = leading();
    let finished =
        json!([condition("QuotaReserved", "False", "Pending", ""), condition("Finished", "True", "Succeeded", "")]);
    let mut foreign = waiting("foreign", 0).as_ref().clone();
    foreign.data["spec"]["queueName"] = json!("theirs");
    let mut inactive = waiting("inactive", 0).as_ref().clone();
    inactive.data["spec"]["active"] = json!(false);
    let other = job("elsewhere", "other", 0, &json!([condition("QuotaReserved", "False", "Pending", "")]));
    let jobs = vec![job("team-a", "finished", 0, &finished), Arc::new(foreign), Arc::new(inactive), other];
    assert_eq!(notices.due(&after(60, jobs)), Due::default());
}

#[test]
fn events_are_bounded_by_team_and_by_decision() {
    let mut notices = leading();
    let jobs: Vec<_> = (0..MOST_OF_A_TEAM + 5).map(|n| waiting(&format!("job-{n:02}"), 0)).collect();
    let mut events = Vec::new();
    for second in 11..20 {
        let due = notices.due(&after(second, jobs.clone()));
        assert!(due.events.len() <= MOST_AT_ONCE, "{due:?}");
        events.extend(due.events);
    }
    assert_eq!(events.len(), MOST_OF_A_TEAM);
    // a place becomes free
    let rest = notices.due(&after(30, jobs[1..].to_vec()));
    assert_eq!(rest.events.len(), 1);
    assert!(rest.events[0].note.ends_with("position 20 in the queue"), "{rest:?}");
}

/// A job that Kueue suspended for one of team-b, or of its own team.
fn preempted(reason: &str, by: &str) -> Arc<DynamicObject> {
    let message = format!(
        "Preempted to accommodate a workload (UID: w-{by}, JobUID: job-{by}) due to reclamation; preemptor path: /x"
    );
    let evicted = condition("Evicted", "True", "Preempted", &message);
    job("team-a", "victim", 0, &json!([condition("Preempted", "True", reason, &message), evicted]))
}

#[test]
fn suspended_job_has_an_event_that_names_the_team_or_the_priority() {
    let owner = job("team-b", "owner", 0, &json!([]));
    let urgent = job("team-a", "urgent", 100, &json!([]));
    let suspended = |reason: &str, by: &str| {
        let seen = after(1, vec![preempted(reason, by), owner.clone(), urgent.clone()]);
        let mut notices = leading();
        let due = notices.due(&seen);
        assert_eq!(notices.due(&seen), Due::default(), "once");
        notes(&due).into_iter().map(|(reason, note)| format!("{reason}: {note}")).collect::<Vec<_>>()
    };
    let reclaimed = "QueueReclaimed: suspended: team-b uses the devices of its guarantee that team-a had borrowed; it is queued again";
    assert_eq!(suspended("InCohortReclamation", "owner"), [reclaimed]);
    let unknown = reclaimed.replace("team-b", "another team");
    assert_eq!(suspended("InCohortReclamation", "gone"), [unknown]);
    let urgent = "QueuePreempted: suspended: job urgent of team-a has a higher priority and uses its devices; it is queued again";
    assert_eq!(suspended("InClusterQueue", "urgent"), [urgent]);
    // another replica published it
    assert_eq!(Notices::default().due(&after(120, vec![preempted("InCohortReclamation", "owner")])), Due::default());
}

#[test]
fn job_in_a_closed_queue_has_the_reason() {
    let mut seen = after(10, vec![waiting("one", 0)]);
    let note = |seen: &Observed| leading().due(seen).events.pop().unwrap().note;
    seen.tenants[0].suspended = true;
    let expected = "waits for 2 nvidia.com/mig-1g.10gb: spec.suspend of GpuTenant team-a is true, and its queue admits no job; position 1 in the queue";
    assert_eq!(note(&seen), expected);
    seen.tenants[0].suspended = false;
    seen.tenants[0].namespaces = BTreeMap::from([("team-a".to_owned(), false)]);
    assert!(note(&seen).contains("namespace team-a is not in spec.namespaces of GpuTenant team-a"), "{}", note(&seen));
}

#[test]
fn guarantee_without_all_of_its_devices_says_how_many_exist() {
    let mut seen = after(10, vec![waiting("one", 0)]);
    seen.tenants[0].team.gpus = [(SMALL.to_owned(), Entitlement { count: 5, borrow: 0, lend: 0 })].into();
    let note = leading().due(&seen).events.pop().unwrap().note;
    let words = "team-a is guaranteed 5, 4 of them exist now, and uses 4, may borrow none; position 1";
    assert!(note.contains(words), "{note}");
}

#[test]
fn job_that_was_moved_back_by_a_change_is_behind_those_that_came_before() {
    let mut moved = waiting("moved", 0).as_ref().clone();
    let evicted = json!({
        "type": "Evicted", "status": "True", "reason": "AdmissionCheck", "message": "", "lastTransitionTime": "2026-11-30T10:00:05Z",
    });
    moved.data["status"]["conditions"].as_array_mut().unwrap().push(evicted);
    let due = leading().due(&after(10, vec![Arc::new(moved), waiting("other", 0)]));
    let is_second = |note: &str| note.ends_with("position 2 in the queue");
    let second: Vec<_> = due.events.iter().filter(|event| is_second(&event.note)).collect();
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].regarding.name.as_deref(), Some("moved"));
}
