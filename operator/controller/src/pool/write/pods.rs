//! Writes to pods: notices, their withdrawal, and evictions.

use std::time::Duration;

use gputenancy_cluster::{error::sentence, events::EventType, write::Evicted};
use gputenancy_crds::{
    metadata::Unmanaged,
    names,
    reasons::{self, Reason},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, Resource as _};
use serde_json::{Value, json};

use crate::queues::requeue::requeue;

use super::{
    Outcome, WriteError, Written, failed, pdb,
    state::{NodeContext, NodeState, RefusedEviction},
};
use gputenancy_crds::ids::PodName;
use gputenancy_decisions::{
    change::{Eviction, EvictionNotice, Refusal},
    fleet::notice_text,
};

/// Longest time for reading why an eviction was refused.
const EXPLANATION: Duration = Duration::from_secs(2);

/// Longest time for writing an annotation. A team chooses what its pod contains, and the API server compares all of it at each change.
const ANNOTATION: Duration = Duration::from_secs(3);

/// Announces evictions on their pods, each once for each deadline: a pod's owner may remove the annotation again and again. No pod's notice waits
/// for that of another.
pub async fn notify(
    node: NodeContext<'_>,
    state: &mut NodeState,
    notices: impl IntoIterator<Item = EvictionNotice>,
    outcome: &mut Outcome,
) {
    let new = notices.into_iter().filter(|notice| state.notices.get(&notice.uid) != Some(&notice.deadline));
    let written = futures::future::join_all(new.map(|notice| announce(node, notice))).await;
    for announced in written {
        outcome.record(announced.map(|(uid, deadline)| {
            state.notices.insert(uid, deadline);
            Written::Done
        }));
    }
}

/// Announces the eviction of one pod.
async fn announce(node: NodeContext<'_>, notice: EvictionNotice) -> Result<(String, Timestamp), WriteError> {
    let EvictionNotice { pod, uid, deadline, reason, elsewhere, .. } = notice;
    let text = notice_text(deadline, &reason, &elsewhere);
    if annotate(node, &pod, &uid, json!(text)).await.map_err(failed(format!("announcing the eviction of pod {pod}")))? {
        report(node, &pod, EventType::Warning, reasons::EVICTION_NOTICE, text).await;
    }
    Ok((uid, deadline))
}

/// Withdraws a notice: the change that it announced is over, and the pod has stayed.
pub async fn cancel_notice(node: NodeContext<'_>, pod: &PodName, uid: &str) -> Result<Written, WriteError> {
    let annotated = annotate(node, pod, uid, Value::Null).await;
    if annotated.map_err(failed(format!("withdrawing the eviction notice of pod {pod}")))? {
        let message =
            "no change of the node's GPUs evicts this pod any more: its change was cancelled or rolled back".to_owned();
        report(node, pod, EventType::Normal, reasons::EVICTION_CANCELLED, message).await;
    }
    Ok(Written::Done)
}

/// Sets or removes the notice; false: the pod is gone, or its notice could not be removed, which the next decision tries again. Of a notice that
/// cannot be set, or not in time, the event alone tells.
async fn annotate(node: NodeContext<'_>, pod: &PodName, uid: &str, text: Value) -> kube::Result<bool> {
    // the uid is a precondition: another pod may have the name by now
    let sets = !text.is_null();
    let fields = json!({"metadata": {"uid": uid, "annotations": {names::EVICTION_NOTICE: text}}});
    let writer = &node.writer.writer;
    let api = Api::<Unmanaged<Pod>>::namespaced(writer.client(), &pod.namespace);
    let Ok(merged) = tokio::time::timeout(ANNOTATION, writer.merge(&api, &pod.name, &fields)).await else {
        tracing::warn!(%pod, "the pod's annotation was not written within {} s", ANNOTATION.as_secs());
        return Ok(sets);
    };
    match merged {
        Ok(_) => Ok(true),
        // annotations that fill what the API server permits leave no room for another, and it may take too long to compare the pod
        Err(kube::Error::Api(status)) if (status.code == 422 && sets) || status.code == 504 => {
            tracing::warn!(%pod, error = %status, "annotation not written into the pod");
            Ok(sets)
        }
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Evicts a pod, unless the last decision keeps it, or this one is too old: plan and window may have changed. A refusal is remembered, so
/// that the next decision states the cause and when to try again.
pub async fn evict(node: NodeContext<'_>, state: &mut NodeState, eviction: Eviction) -> Result<Written, WriteError> {
    let Eviction { pod, uid, reason } = eviction;
    if !node.evicted.contains(&pod) {
        tracing::info!(%pod, "not evicted: the last decision keeps the pod");
        return Ok(Written::Done);
    }
    if node.is_outdated() {
        return Ok(Written::Again);
    }
    if let Some(workload) = node.workload_of(&pod, &uid) {
        let requeued = requeue(&node.writer.writer, &workload, &reason).await;
        if requeued.map_err(failed(format!("having Kueue queue the job of pod {pod} again")))? {
            let message = format!("{reason}; Kueue suspends the job and queues it again");
            report(node, &pod, EventType::Normal, reasons::REQUEUED, message).await;
        }
        return Ok(Written::Done);
    }
    let evicted = node.writer.writer.evict(&pod.namespace, &pod.name, &uid).await;
    let answer = match evicted.map_err(failed(format!("evicting pod {pod}")))? {
        Evicted::Refused(answer) => answer,
        Evicted::Accepted => {
            state.refusals.remove(&uid);
            report(node, &pod, EventType::Normal, reasons::EVICTED, reason).await;
            return Ok(Written::Done);
        }
    };
    let refused = |message: String| RefusedEviction {
        refusal: Refusal { at: Timestamp::now(), message },
        answer: answer.clone(),
    };
    // remembered before anything else is read: what is read may take longer than all writes about the node may
    let last = state.refusals.insert(uid.clone(), refused(answer.clone()));
    let message = match last.as_ref().filter(|last| last.answer == answer) {
        Some(last) => last.refusal.message.clone(),
        None => {
            tokio::time::timeout(EXPLANATION, explain(node, &pod, &answer)).await.unwrap_or_else(|_| answer.clone())
        }
    };
    tracing::info!(%pod, message, "eviction refused");
    state.refusals.insert(uid, refused(message.clone()));
    if last.is_none() {
        report(node, &pod, EventType::Warning, reasons::EVICTION_REFUSED, message).await;
    }
    // no watch reports the refusal
    Ok(Written::Again)
}

/// The API server's answer with the budgets and pods behind it.
async fn explain(node: NodeContext<'_>, pod: &PodName, answer: &str) -> String {
    match pdb::behind(&node.writer.writer.client(), pod).await {
        Ok(budgets) if budgets.is_empty() => answer.to_owned(),
        Ok(budgets) => format!("{}: {answer}", budgets.join("; ")),
        Err(error) => {
            tracing::warn!(error = sentence(&error), %pod, "reading disruption budgets failed");
            answer.to_owned()
        }
    }
}

async fn report(node: NodeContext<'_>, pod: &PodName, event_type: EventType, reason: Reason, message: String) {
    if let Some(found) = node.fleet.pods.get(pod) {
        node.writer.report(found.object_ref(&()), event_type, reason, "Change", message).await;
    }
}
