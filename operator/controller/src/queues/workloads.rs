//! What Kueue waits for from the operator: the check of each job, and that the check is served. Pure.

use k8s_openapi::jiff::Timestamp;
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::{Value, json};

use super::{
    observe::{Observed, has_condition, is_ours},
    render::CHECK,
    write::Write,
};
use crate::cache::kueue::{API_VERSION, Kind};

/// State of a check of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckState {
    /// The job may start.
    Ready,
    /// The job is suspended, and queued again.
    Retry,
}

/// The writes about jobs, and that the operator serves its check.
pub fn writes(seen: &Observed) -> Vec<Write> {
    let waiting = seen.workloads.iter().filter(|workload| waits(workload));
    let ready = waiting.map(|workload| {
        let message = "the devices of the team's queue are in service";
        status(workload, CheckState::Ready, message, seen.now)
    });
    serves(seen).into_iter().chain(ready).collect()
}

/// Says once that the operator serves the check: until then Kueue admits nothing.
fn serves(seen: &Observed) -> Option<Write> {
    let key = (Kind::AdmissionCheck, String::new(), CHECK.to_owned());
    let check = seen.live.get(&key).filter(|check| !has_condition(check, "Active"))?;
    let fields = json!({
        "apiVersion": API_VERSION, "kind": key.0.name(), "metadata": {"name": CHECK},
        "status": {"conditions": [{
            "type": "Active", "status": "True", "reason": "Active", "message": "the operator decides about jobs",
            "lastTransitionTime": seen.now.to_string(), "observedGeneration": check.metadata.generation,
        }]},
    });
    is_ours(check).then_some(Write::Status(key, fields))
}

/// Has the job a place in its queue, and waits for the operator? While Kueue evicts it no check may be written.
fn waits(workload: &DynamicObject) -> bool {
    has_condition(workload, "QuotaReserved")
        && !has_condition(workload, "Evicted")
        && state(workload) == Some("Pending")
}

/// State of the operator's check of a job.
pub fn state(workload: &DynamicObject) -> Option<&str> {
    let checks = workload.data.pointer("/status/admissionChecks")?.as_array()?;
    checks.iter().find(|check| check["name"] == CHECK)?["state"].as_str()
}

/// Sets the operator's check of a job, if the job is still of this version.
pub fn status(workload: &DynamicObject, state: CheckState, message: &str, now: Timestamp) -> Write {
    let (namespace, name) = (workload.namespace().unwrap_or_default(), workload.name_any());
    let metadata = json!({
        "name": name, "namespace": namespace, "uid": workload.uid(), "resourceVersion": workload.resource_version(),
    });
    let state = match state {
        CheckState::Ready => "Ready",
        CheckState::Retry => "Retry",
    };
    // with more than zero seconds Kueue would let the job run on for that time
    let check: Value = json!({
        "name": CHECK, "state": state, "message": message, "lastTransitionTime": now.to_string(), "requeueAfterSeconds": 0,
    });
    let fields = json!({
        "apiVersion": API_VERSION, "kind": Kind::Workload.name(), "metadata": metadata, "status": {"admissionChecks": [check]},
    });
    Write::Status((Kind::Workload, namespace, name), fields)
}
