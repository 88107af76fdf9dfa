//! Canary pods: their manifest, what became of them, and which ones no change needs any more. All of it follows from the pods
//! themselves, so a restarted operator continues.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    ids::{GpuKey, NodeName, PodName},
    names,
    projection::{SlimContainerState, SlimPod},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    change::{CanaryOutcome, CanaryPod, CanaryRequest, ChangeDecision},
    label,
    pool::{decide::scheduled::Scheduled, read::inventory::Inventory},
};

/// Priority class and service account of canary pods, both parts of the chart.
const NAME: &str = "gputenancy-canary";
/// Longest end of a program's log in a message, in characters.
const MAX_LOG: usize = 400;

/// A canary pod that no change needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanedCanary {
    /// The pod.
    pub pod: PodName,
    /// Its UID.
    pub uid: String,
}

/// All canary pods, by name.
pub fn pods(inventory: &Inventory<'_>) -> BTreeMap<String, CanaryPod> {
    let pods = canaries(inventory);
    pods.map(|(name, pod)| (name.name.clone(), CanaryPod { created: created(pod), outcome: outcome(pod) })).collect()
}

/// Canary pods that no change needs, by the node that they were created for; of nodes about which nothing is decided now, none.
pub fn orphaned(
    scheduled: &Scheduled<'_>,
    decisions: &BTreeMap<GpuKey, ChangeDecision>,
) -> BTreeMap<NodeName, Vec<OrphanedCanary>> {
    let (inventory, ownership) = (&scheduled.inventory(), scheduled.ownership);
    let kept: BTreeSet<&String> = decisions.values().flat_map(|d| &d.kept_canaries).collect();
    let mut orphaned: BTreeMap<NodeName, Vec<OrphanedCanary>> = BTreeMap::new();
    for (name, pod) in canaries(inventory) {
        let node = pod.annotations().get(names::CANARY_NODE).map(String::as_str).unwrap_or_default();
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let decided = !inventory.lagging.contains(node) && !ownership.overlaps(node);
        if !terminating && decided && !kept.contains(&name.name) {
            let canary = OrphanedCanary { pod: name.clone(), uid: pod.uid().unwrap_or_default() };
            orphaned.entry(node.into()).or_default().push(canary);
        }
    }
    orphaned
}

fn canaries<'a>(inventory: &Inventory<'a>) -> impl Iterator<Item = (&'a PodName, &'a SlimPod)> {
    let (pods, namespace) = (&inventory.fleet.pods, inventory.namespace);
    // the pods of a namespace follow each other
    let here = pods.range(PodName { namespace: namespace.into(), name: String::new() }..);
    let here = here.take_while(move |(name, _)| *name.namespace == *namespace);
    here.filter(|(_, pod)| pod.labels().contains_key(names::CANARY_LABEL)).map(|(name, pod)| (name, &**pod))
}

fn created(pod: &SlimPod) -> Timestamp {
    pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0)
}

/// Outcome of a canary pod. Only the exit code of its program says anything about the device.
fn outcome(pod: &SlimPod) -> CanaryOutcome {
    let status = &pod.status;
    let container = status.container_statuses.first().map(|c| &c.state);
    let why = || {
        let reason = status.reason.as_deref().unwrap_or("it ended and kubelet does not know how");
        format!("{reason}: {}", tail(status.message.as_deref())).trim_end_matches([':', ' ']).to_owned()
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return CanaryOutcome::Terminating;
    }
    match status.phase.as_str() {
        "Succeeded" => CanaryOutcome::Passed,
        // an image that cannot be pulled says nothing about the device
        "Failed" if status.reason.as_deref() == Some("DeadlineExceeded") && !has_started(container) => {
            CanaryOutcome::Inconclusive(format!("it did not start in time; {}", waiting_for(pod)))
        }
        "Failed" if status.reason.as_deref() == Some("DeadlineExceeded") => {
            CanaryOutcome::Failed(format!("it did not end; {}", why()))
        }
        "Failed" if status.reason.is_some() => CanaryOutcome::Inconclusive(why()),
        "Failed" => match container.and_then(|c| c.terminated.as_ref()) {
            Some(end) if end.reason != "ContainerStatusUnknown" => {
                let words = if end.message.trim().is_empty() { &end.reason } else { &end.message };
                CanaryOutcome::Failed(format!("exit code {}: {}", end.exit_code, tail(Some(words))))
            }
            _ => CanaryOutcome::Inconclusive(why()),
        },
        "Running" => CanaryOutcome::Pending("it runs".to_owned()),
        _ => CanaryOutcome::Pending(waiting_for(pod)),
    }
}

/// The program has run: its container is neither waiting, nor ended without kubelet's knowledge.
fn has_started(container: Option<&SlimContainerState>) -> bool {
    let unknown =
        |c: &SlimContainerState| c.terminated.as_ref().is_some_and(|end| end.reason == "ContainerStatusUnknown");
    container.is_some_and(|c| c.waiting.is_none() && !unknown(c))
}

fn waiting_for(pod: &SlimPod) -> String {
    let unscheduled = pod.status.conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(condition) = unscheduled.filter(|_| pod.spec.node_name.is_none()) {
        return format!("it is not scheduled: {}", tail(Some(&condition.message)));
    }
    let waiting = pod.status.container_statuses.first().and_then(|c| c.state.waiting.as_ref());
    waiting.map_or_else(
        || "it starts".to_owned(),
        |w| format!("it starts ({}) {}", w.reason, tail(Some(&w.message))).trim_end().to_owned(),
    )
}

/// The end of a text, in one line.
fn tail(words: Option<&str>) -> String {
    let line = words.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = line.chars().count().saturating_sub(MAX_LOG);
    let kept: String = line.chars().skip(skipped).collect();
    if skipped > 0 { format!("…{kept}") } else { kept }
}

/// The pod: nothing but the device, on this node whatever its taints and cordons, without any right, and with a priority that evicts no
/// other pod. No scheduler places it: by an affinity against it any pod on the node could keep it away.
pub fn render(canary: &CanaryRequest, node: &NodeName, namespace: &str) -> serde_json::Result<Pod> {
    let CanaryRequest { name, device, profile, resource, seconds, rules } = canary;
    let profile = profile.as_deref().unwrap_or("gpu").replace('+', ".");
    let profile = label::value(&profile);
    let mut container = json!({
        "name": "canary",
        "image": rules.image,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "resources": {"limits": {resource: "1"}, "requests": {resource: "1"}},
    });
    if let Some(fields) = container.as_object_mut().filter(|_| !rules.command.is_empty()) {
        fields.insert("command".to_owned(), json!(rules.command));
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/name": NAME,
                names::MANAGED_BY_LABEL: names::MANAGED_BY,
                names::CANARY_LABEL: profile,
            },
            "annotations": {names::CANARY_NODE: node.as_str(), "gputenancy.io/canary-device": device},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 5,
            "priorityClassName": NAME,
            "serviceAccountName": NAME,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "nodeName": node.as_str(),
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }))
}

#[cfg(test)]
mod tests;
