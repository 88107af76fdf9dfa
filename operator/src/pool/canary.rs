//! Canary pods as objects: made, read, and removed when no change has a use for them any more. All of it follows from the pods
//! themselves, so an operator that starts anew knows as much as the one before.

use std::collections::BTreeMap;

use gputenancy_crds::names;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{Controller, FleetError, failed, pass::Inputs};
use crate::{
    apply::Part,
    plan::{GpuKey, NodeName, PodName},
};
use gputenancy_engine::{
    change::{CanaryOutcome, CanaryPod, CanaryRequest, ChangeDecision},
    fleet::Fleet,
    projection::SlimPod,
};

/// Priority class and service account of canary pods, both parts of the chart.
const NAME: &str = "gputenancy-canary";
/// Longest part of a program's last words that is told.
const LAST_WORDS: usize = 400;

/// A canary pod without a purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its UID.
    pub uid: String,
    /// The node whose device it was made for.
    pub node: String,
}

/// All canary pods, by name.
pub fn pods(fleet: &Fleet, namespace: &str) -> BTreeMap<String, CanaryPod> {
    let ours = canaries(fleet, namespace);
    ours.map(|(name, pod)| (name.name.clone(), CanaryPod { created: created(pod), outcome: outcome(pod) })).collect()
}

/// Canary pods that no change wants, and that can be judged now.
pub fn strays(
    fleet: &Fleet,
    decisions: &BTreeMap<GpuKey, ChangeDecision>,
    inputs: &Inputs<'_>,
) -> BTreeMap<PodName, Stray> {
    let wanted = |name: &String| decisions.values().any(|d| d.kept_canaries.contains(name));
    let mut strays = BTreeMap::new();
    for (name, pod) in canaries(fleet, inputs.namespace) {
        let node = pod.annotations().get(names::CANARY_NODE).cloned().unwrap_or_default();
        let leaves = pod.metadata.deletion_timestamp.is_some();
        if !leaves && !inputs.lagging.contains(&node) && !wanted(&name.name) {
            strays.insert(name.clone(), Stray { uid: pod.uid().unwrap_or_default(), node });
        }
    }
    strays
}

fn canaries<'a>(fleet: &'a Fleet, namespace: &str) -> impl Iterator<Item = (&'a PodName, &'a SlimPod)> {
    let ours = fleet
        .pods
        .iter()
        .filter(move |(name, pod)| *name.namespace == *namespace && pod.labels().contains_key(names::CANARY_LABEL));
    ours.map(|(name, pod)| (name, &**pod))
}

fn created(pod: &SlimPod) -> Timestamp {
    pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0)
}

/// What has become of a canary pod. Only its program's exit code speaks about the device.
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
        _ => CanaryOutcome::Pending(waits(pod)),
    }
}

fn waits(pod: &SlimPod) -> String {
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

/// The end of what was said, in one line.
fn tail(words: Option<&str>) -> String {
    let line = words.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = line.chars().count().saturating_sub(LAST_WORDS);
    let kept: String = line.chars().skip(skipped).collect();
    if skipped > 0 { format!("…{kept}") } else { kept }
}

/// The pod: nothing but the device, on this node whatever its taints and cordons, without any right, and never at another pod's expense.
fn render(canary: &CanaryRequest, node: &NodeName, namespace: &str) -> Result<Pod, serde_json::Error> {
    let CanaryRequest { name, device, profile, resource, seconds, rules } = canary;
    let profile = profile.as_deref().unwrap_or("gpu").replace('+', ".");
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
    let here = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.as_str()]}]});
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
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}},
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }))
}

impl Controller {
    /// Creates a canary pod; one that is there already is the same.
    pub(super) async fn start_canary(&self, node: &NodeName, canary: CanaryRequest) -> Result<(), FleetError> {
        let pod = render(&canary, node, &self.home).map_err(kube::Error::SerdeError);
        let doing = || format!("creating canary pod {}", canary.name);
        let created = self.writer.create_in(Part::Pool, &self.home, &pod.map_err(failed(doing()))?).await;
        if created.map_err(failed(doing()))? {
            tracing::info!(pod = canary.name, device = canary.device, "started a canary pod");
        }
        Ok(())
    }

    /// Removes a canary pod that nobody needs any more.
    pub(super) async fn dismiss(&self, pod: &PodName, stray: Stray) -> Result<(), FleetError> {
        let api = Api::<Pod>::namespaced(self.writer.client(), &pod.namespace);
        match self.writer.delete(&api, &pod.name, Some(stray.uid)).await {
            // another pod has the name by now
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
            removed => removed.map_err(failed(format!("removing canary pod {pod}"))),
        }
    }
}

#[cfg(test)]
mod tests;
