//! `tenant` of a team with jobs that wait: their order, and how long others have waited.

use kubectl_gpu::{
    render,
    tenant::{NamespaceObjects, PositionsError, Sources, report},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A job as Kueue's visibility API lists it.
fn pending(job: &str, position: u32) -> Value {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job});
    let metadata = json!({
        "name": format!("job-{job}-1"), "creationTimestamp": "2026-11-30T11:50:00Z", "ownerReferences": [owner],
    });
    json!({"metadata": metadata, "priority": 0, "positionInClusterQueue": position, "positionInLocalQueue": position})
}

/// Kueue's object of a job that waited from 10:00 until then.
fn admitted(at: &str) -> Value {
    let condition = json!({"type": "Admitted", "status": "True", "lastTransitionTime": format!("2026-11-30T{at}Z")});
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": "w", "creationTimestamp": "2026-11-30T10:00:00Z"}, "status": {"conditions": [condition]},
    })
}

/// Two namespaces of a team that may not read its `GpuTenant`.
fn seen() -> Sources {
    let place = |name: &str, jobs: Value, workloads: Vec<Value>| NamespaceObjects {
        name: name.into(),
        pending: Some(Ok(of(json!({"items": jobs})))),
        workloads: workloads.into_iter().map(of).collect(),
        ..NamespaceObjects::default()
    };
    let first = place("a-dev", json!([pending("first", 0), pending("third", 2)]), vec![admitted("10:04:00")]);
    let second = place("a-prod", json!([pending("second", 1)]), vec![admitted("10:00:03"), admitted("10:10:00")]);
    Sources {
        name: "team-a".into(),
        namespaces: vec![first, second],
        now: "2026-11-30T12:00:00Z".parse().unwrap(),
        ..Sources::default()
    }
}

fn plain(sources: &Sources) -> String {
    anstream::adapter::strip_str(&render::tenant(&report(sources), false)).to_string()
}

#[test]
fn waiting_jobs_of_all_namespaces_have_their_position_and_an_expected_wait() {
    let order = report(&seen()).queue_order.unwrap();
    let jobs: Vec<_> = order.jobs.iter().map(|job| (job.position, job.namespace.as_str(), job.job.as_str())).collect();
    assert_eq!(jobs, [(1, "a-dev", "first"), (2, "a-prod", "second"), (3, "a-dev", "third")]);
    assert_eq!(order.jobs[0].seconds, Some(600));
    let recent = order.recent.unwrap();
    assert_eq!((recent.median_seconds, recent.jobs), (600, 2));
    let shown = plain(&seen());
    for words in ["a-prod/Job/second", "10m ago", "expected wait: about 10m, the median of 2 jobs"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn expected_wait_is_unknown_where_no_job_has_waited() {
    let mut seen = seen();
    seen.namespaces.iter_mut().for_each(|place| place.workloads.clear());
    let shown = plain(&seen);
    assert!(shown.contains("expected wait: unknown"), "{shown}");
}

#[test]
fn positions_that_are_not_visible_hide_nothing_else() {
    let mut seen = seen();
    let why = "you may not get localqueues/pendingworkloads of Kueue's visibility API in namespace a-prod";
    seen.namespaces[1].pending = Some(Err(PositionsError::Forbidden("a-prod".into())));
    let order = report(&seen).queue_order.unwrap();
    assert_eq!((order.jobs.len(), order.not_visible.as_deref()), (2, Some(why)));
    let shown = plain(&seen);
    assert!(shown.contains("positions are not visible: you may not get"), "{shown}");
    assert!(shown.contains("a-dev/Job/first"), "{shown}");
}

#[test]
fn tenant_without_waiting_jobs_has_no_order() {
    let mut seen = seen();
    seen.namespaces.iter_mut().for_each(|place| place.pending = Some(Ok(of(json!({"items": []})))));
    assert_eq!(report(&seen).queue_order, None);
    seen.namespaces.iter_mut().for_each(|place| place.pending = None);
    assert_eq!(report(&seen).queue_order, None);
}
