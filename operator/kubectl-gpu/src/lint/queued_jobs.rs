//! Jobs that wait in a queue: the queue and the priority that they name, and native gangs, which nothing reads there. The chart's policies judge the
//! first two with the same words; with the chart's default values they are not rendered.

use serde_json::Value;

use super::{grant::Grant, policy::Refusal};
use crate::input::token;

/// The label with the queue of a Job.
const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// The label with the `WorkloadPriorityClass` of a Job.
const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// The group of native gangs.
const GANGS: &str = "scheduling.k8s.io/";

/// The mistakes of an object in a namespace whose jobs wait in a queue; `pod`: the pod that it makes.
pub(super) fn mistakes(kind: &str, object: &Value, pod: Option<&Value>, grant: &Grant) -> Vec<Refusal> {
    if grant.spec.queued.is_empty() {
        return Vec::new();
    }
    let asks = pod.is_some_and(|pod| asks(pod, grant));
    let prefix = match kind {
        "Job" if asks => "",
        "CronJob" if asks => "/spec/jobTemplate",
        _ => return gang(kind, object).into_iter().collect(),
    };
    let template = format!("{prefix}/spec/template/spec/schedulingGroup");
    let of_template = object.pointer(&template).map(|_| Refusal { pointer: template, message: without_effect() });
    queue(prefix, object, grant).into_iter().chain(priority(prefix, object, grant)).chain(of_template).collect()
}

/// Does the pod ask for a device of a queue?
fn asks(pod: &Value, grant: &Grant) -> bool {
    ["containers", "initContainers"].into_iter().any(|list| {
        let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
        let mut limits = containers.filter_map(|container| container.pointer("/resources/limits")?.as_object());
        limits.any(|limits| limits.keys().any(|resource| grant.spec.queued.contains(resource)))
    })
}

/// A label of the Job, and where it is.
fn label<'o>(prefix: &str, object: &'o Value, key: &str) -> Option<(String, &'o str)> {
    let pointer = format!("{prefix}/metadata/labels/{}", token(key));
    let value = object.pointer(&pointer)?.as_str()?;
    Some((pointer, value))
}

/// A queue that is not the team's.
fn queue(prefix: &str, object: &Value, grant: &Grant) -> Option<Refusal> {
    let (pointer, queue) = label(prefix, object, QUEUE_LABEL).filter(|(_, queue)| !["", "default"].contains(queue))?;
    let message = format!(
        "label {QUEUE_LABEL}: {queue} is not the queue of tenant {}: write default, or leave it out",
        grant.spec.tenant
    );
    Some(Refusal { pointer, message })
}

/// A priority that the team is not granted. The class of the pods is judged with the pods.
fn priority(prefix: &str, object: &Value, grant: &Grant) -> Option<Refusal> {
    let classes = grant.spec.priority_classes.as_deref().unwrap_or_default();
    let (pointer, class) = label(prefix, object, PRIORITY_LABEL)?;
    if class.is_empty() || classes.iter().any(|granted| granted == class) {
        return None;
    }
    let granted = if classes.is_empty() { "none".to_owned() } else { classes.join(", ") };
    let message = format!(
        "label {PRIORITY_LABEL}: {class} is not granted; Jobs of tenant {} may have these priorities: {granted}; leave it out, or have it added \
         to spec.priorityClasses of the GpuTenant",
        grant.spec.tenant
    );
    Some(Refusal { pointer, message })
}

/// A native gang.
fn gang(kind: &str, object: &Value) -> Option<Refusal> {
    let version = object.get("apiVersion")?.as_str()?;
    let is_gang = version.starts_with(GANGS) && matches!(kind, "PodGroup" | "Workload");
    is_gang.then(|| Refusal { pointer: "/kind".to_owned(), message: without_effect() })
}

fn without_effect() -> String {
    "native gangs (PodGroup, Workload and schedulingGroup of scheduling.k8s.io) have no effect on jobs in a queue of Kueue, which admits all pods of \
     a Job or none, and their API changes between versions of Kubernetes: leave it out"
        .to_owned()
}
