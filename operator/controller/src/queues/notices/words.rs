//! The words of the events.

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::reasons::{self, Reason};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{ResourceExt as _, api::DynamicObject};

use super::team::{Job, TeamJobs, Uses};
use crate::queues::observe::Observed;

/// A job waits for quota; `None`: it asks for no device of a queue.
pub(super) fn waits(team: &TeamJobs<'_>, job: &Job<'_>) -> Option<Notice> {
    let requests = job.requests(team);
    if requests.is_empty() {
        return None;
    }
    let name = &team.tenant.team.name;
    let namespace = job.workload.metadata.namespace.as_deref().unwrap_or_default();
    let is_listed = team.tenant.namespaces.get(namespace).copied().unwrap_or_default();
    let closed = if team.tenant.suspended {
        Some(format!("spec.suspend of GpuTenant {name} is true"))
    } else {
        (!is_listed).then(|| format!("namespace {namespace} is not in spec.namespaces of GpuTenant {name}"))
    };
    let each: Vec<String> = requests
        .iter()
        .map(|(resource, devices)| match &closed {
            Some(why) => format!("{devices} {resource}: {why}, and its queue admits no job"),
            None => format!("{devices} {resource}: {name} {}", limits(team, resource)),
        })
        .collect();
    let note = format!("waits for {}; position {} in the queue", each.join("; and for "), job.position);
    notice(job, reasons::QUEUE_WAITING, note)
}

/// What the team may use of a resource, and what it uses.
fn limits(team: &TeamJobs<'_>, resource: &str) -> String {
    let entitled = team.tenant.team.gpus.get(resource).copied().unwrap_or_default();
    let Uses { own, borrowed, exist } = team.uses.get(resource).copied().unwrap_or_default();
    let missing = if exist < entitled.count { format!(", {exist} of them exist now,") } else { String::new() };
    let may = if entitled.borrow > 0 {
        format!("may borrow {} and borrows {borrowed}", entitled.borrow)
    } else {
        "may borrow none".to_owned()
    };
    format!("is guaranteed {}{missing} and uses {own}, {may}", entitled.count)
}

/// A job was suspended for another one.
pub(super) fn suspended(team: &TeamJobs<'_>, job: &Job<'_>, seen: &Observed) -> Option<Notice> {
    let name = &team.tenant.team.name;
    let preempted = job.preempted?;
    let other = preemptor(seen, preempted.message);
    let owner = || {
        let namespace = other?.metadata.namespace.as_deref()?;
        let tenant = seen.tenants.iter().find(|tenant| tenant.namespaces.contains_key(namespace))?;
        Some(tenant.team.name.clone())
    };
    let owner = owner().unwrap_or_else(|| "another team".to_owned());
    let (reason, why) = match preempted.reason {
        "InClusterQueue" => {
            let first = other.and_then(|other| Some(format!("job {}", owner_of(other)?.name?)));
            let first = first.unwrap_or_else(|| "a job".to_owned());
            (reasons::QUEUE_PREEMPTED, format!("{first} of {name} has a higher priority and uses its devices"))
        }
        "InCohortFairSharing" => {
            let why = format!("{owner} is below its part by spec.sharing.weight, and uses devices that {name} had");
            (reasons::QUEUE_RECLAIMED, why)
        }
        _ => (reasons::QUEUE_RECLAIMED, format!("{owner} uses the devices of its guarantee that {name} had borrowed")),
    };
    notice(job, reason, format!("suspended: {why}; it is queued again"))
}

/// The job for which another one was suspended: Kueue names the uid of its object in the message.
fn preemptor<'s>(seen: &'s Observed, message: &str) -> Option<&'s DynamicObject> {
    let uid = message.split_once("(UID: ")?.1.split([',', ')']).next()?;
    seen.workloads.iter().find(|workload| workload.metadata.uid.as_deref() == Some(uid)).map(|workload| &**workload)
}

/// The Job of Kueue's object.
fn owner_of(workload: &DynamicObject) -> Option<ObjectReference> {
    let owner = workload.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    Some(ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: workload.namespace(),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    })
}

fn notice(job: &Job<'_>, reason: Reason, note: String) -> Option<Notice> {
    let regarding = owner_of(job.workload)?;
    Some(Notice { regarding, event_type: EventType::Normal, reason, action: "Queue".to_owned(), note })
}
