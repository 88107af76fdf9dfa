//! Writes where NVIDIA's plugin advertises: cordons the node and restarts the plugin's pod.

use gputenancy_cluster::{events::EventType, write::Evicted};
use gputenancy_crds::{names, projection::SlimAgentPod, reasons};
use k8s_openapi::{
    api::core::v1::Node,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, Client, Resource as _, ResourceExt as _, api::ListParams};
use serde_json::json;

use super::{
    WriteError, Written, failed, labels,
    repair::{LastWrite, Repair},
    state::{NodeContext, NodeState},
};
use gputenancy_decisions::plugin::{CordonAction, PluginDecision, is_plugin};

/// A cordon that was in force for so long served a change, and is no flapping: the landing of pods, the partitioning and the restart of the
/// plugin take longer.
const LASTING: SignedDuration = SignedDuration::from_secs(10);

/// Carries out what was decided about a node.
pub async fn write(
    node: NodeContext<'_>,
    state: &mut NodeState,
    decision: PluginDecision,
) -> Result<Written, WriteError> {
    let written = match decision.cordon {
        Some(action) => cordon(node, state, &action).await?,
        None => Written::Done,
    };
    match decision.restart {
        Some(_) if node.is_outdated() => return Ok(Written::Again),
        Some(until) => restart(node, until).await?,
        None => {}
    }
    Ok(written)
}

/// A cordon that is lifted soon, by others or because its change was cancelled, is set again with exponential backoff: the change waits.
async fn cordon(node: NodeContext<'_>, state: &mut NodeState, action: &CordonAction) -> Result<Written, WriteError> {
    let (writer, name) = (&node.writer.writer, node.name.as_str());
    let Some(known) = node.fleet.nodes.get(name) else { return Ok(Written::Done) };
    let before = known.annotations().get(names::CORDONED);
    if *action == CordonAction::Set {
        match state.cordon.decide(&(), Timestamp::now()) {
            Repair::At(due) => return Ok(Written::At(due)),
            // the annotation is left of a cordon that another client has lifted
            Repair::Now { contested: true } if before.is_some() => {
                labels::report_contest(node, &format!("cordon of node {name}: another client lifts it")).await;
            }
            Repair::Now { .. } => {}
        }
    }
    let (mark, unschedulable, reason, message) = match action {
        CordonAction::Set => {
            (Some(Timestamp::now().to_string()), Some(true), reasons::CORDONED, "its GPUs are being changed")
        }
        CordonAction::Lift => (None, Some(false), reasons::UNCORDONED, "its GPUs are as planned"),
        CordonAction::Unmark => {
            (None, None, reasons::CORDON_ANNOTATION_REMOVED, "another client has lifted the cordon of a change")
        }
    };
    let mut fields = json!({
        // a concurrent cordon or uncordon is not undone
        "metadata": {"resourceVersion": known.resource_version(), "annotations": {names::CORDONED: mark}},
    });
    if let (Some(fields), Some(unschedulable)) = (fields.as_object_mut(), unschedulable) {
        fields.insert("spec".into(), json!({"unschedulable": unschedulable}));
    }
    match writer.merge(&Api::<Node>::all(writer.client()), name, &fields).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_conflict() => return Ok(Written::Again),
        Err(error) => return Err(failed("cordoning or uncordoning the node")(error)),
    }
    let lasted =
        |mark: &String| mark.parse::<Timestamp>().is_ok_and(|since| Timestamp::now().duration_since(since) >= LASTING);
    match action {
        CordonAction::Set => state.cordon.written((), Timestamp::now()),
        CordonAction::Lift if before.is_some_and(lasted) => state.cordon = LastWrite::default(),
        CordonAction::Lift | CordonAction::Unmark => {}
    }
    node.report(EventType::Normal, reason, "Change", message.to_owned()).await;
    Ok(Written::Done)
}

/// Pods that are read at a time, also those of tenants: each may have more than a megabyte.
const PAGE: u32 = 10;

/// All pods of the plugin on a node.
async fn plugin_pods(client: Client, node: &str) -> kube::Result<Vec<SlimAgentPod>> {
    let (api, mut all) = (Api::<SlimAgentPod>::all(client), Vec::new());
    let mut page = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
    loop {
        let list = api.list(&page).await?;
        all.extend(list.items.into_iter().filter(|pod| is_plugin(|key| pod.labels().get(key).cloned())));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Ends the plugin's pods on this node that were created at this time or before; their DaemonSet creates others, which read the present
/// layout.
async fn restart(node: NodeContext<'_>, until: Timestamp) -> Result<(), WriteError> {
    let writer = &node.writer.writer;
    let pods =
        plugin_pods(writer.client(), node.name.as_str()).await.map_err(failed("listing the pods of the node"))?;
    for pod in pods {
        let old = pod.meta().creation_timestamp.as_ref().is_some_and(|created| created.0 <= until);
        if !old || pod.meta().deletion_timestamp.is_some() {
            continue;
        }
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let answer = writer.evict(&namespace, &name, &pod.uid().unwrap_or_default()).await;
        match answer.map_err(failed(format!("ending the device plugin {namespace}/{name}")))? {
            Evicted::Accepted => {
                let message = format!("pod {namespace}/{name} ends, so that the next one reads the new layout");
                let reason = reasons::DEVICE_PLUGIN_RESTARTED;
                node.report(EventType::Normal, reason, "Change", message).await;
            }
            Evicted::Refused(message) => {
                tracing::warn!(node = %node.name, name, message, "eviction of the device plugin refused");
            }
        }
    }
    Ok(())
}
