//! Writes and repairs labels and taints of nodes.

use gputenancy_cluster::events::EventType;
use gputenancy_crds::{GpuNode, names, reasons};
use gputenancy_decisions::{
    plugin::is_key,
    pool::decide::{
        labels::{self, Labels},
        taints::TaintChange,
    },
};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};

use super::{
    WriteError, Written, failed,
    repair::Repair,
    state::{NodeContext, NodeState},
};
use crate::apply::Part;

/// Writes the operator's labels of a node.
pub async fn write(node: NodeContext<'_>, state: &mut NodeState, wanted: Labels) -> Result<Written, WriteError> {
    let (writer, name) = (&node.writer.writer, node.name.as_str());
    let fields = json!({"metadata": {"labels": wanted}});
    match state.labels.decide(&wanted, Timestamp::now()) {
        Repair::At(due) => return Ok(Written::At(due)),
        Repair::Now { contested: false } => {}
        Repair::Now { contested: true } => {
            let conflicts = writer.conflicts::<Node>(Part::Pool, name, fields.clone()).await;
            let cause = conflicts.map_err(failed("looking for conflicting labels"))?;
            let cause = cause.unwrap_or_else(|| "another client removes them".to_owned());
            report_contest(node, &format!("labels of node {name}: {cause}")).await;
        }
    }
    let replaced = replaced_config(node, state, &wanted);
    let applied = writer.apply_fields::<Node>(Part::Pool, name, fields).await;
    let applied = applied.map_err(failed("writing labels"))?;
    let unwanted = labels::unwanted(applied.labels(), &wanted);
    let unwanted: Map<String, Value> = unwanted.map(|label| (label.to_owned(), Value::Null)).collect();
    if !unwanted.is_empty() {
        let fields = json!({"metadata": {"labels": unwanted}});
        writer.merge(&Api::<Node>::all(writer.client()), name, &fields).await.map_err(failed("removing labels"))?;
    }
    state.labels.written(wanted, Timestamp::now());
    if let Some(message) = replaced {
        node.report(EventType::Warning, reasons::DEVICE_PLUGIN_CONFIG_REPAIRED, "Repair", message).await;
    }
    Ok(Written::Done)
}

/// What is reported when another client has changed or removed the label that selects the config of NVIDIA's device plugin.
fn replaced_config(node: NodeContext<'_>, state: &NodeState, wanted: &Labels) -> Option<String> {
    let label = names::DEVICE_PLUGIN_CONFIG_LABEL;
    let key = wanted.get(label)?;
    let found = node.fleet.nodes.get(node.name.as_str())?.labels().get(label);
    let written = || state.labels.value().is_some_and(|last| last.get(label) == Some(key));
    let (found, changed) = match found {
        Some(found) => (found.as_str(), found != key && (written() || !is_key(found))),
        None => ("nothing", written()),
    };
    changed.then(|| {
        let name = node.name;
        format!("another client set {label} of node {name} to {found}; restored to {key}: edit the GpuPool or the GpuProfile instead")
    })
}

/// Writes the pool's name as a label of the `GpuNode`, for a column of `kubectl get gpunodes`.
pub async fn copy_pool(node: NodeContext<'_>, pool: Option<&String>) -> Result<Written, WriteError> {
    let Some(gpu_node) = node.fleet.gpu_nodes.get(node.name.as_str()) else { return Ok(Written::Done) };
    let (writer, name) = (&node.writer.writer, node.name.as_str());
    let fields = json!({"metadata": {"uid": gpu_node.uid(), "labels": {names::POOL_LABEL: pool}}});
    let written = match pool {
        Some(_) => writer.apply_fields::<GpuNode>(Part::PoolLabel, name, fields).await,
        // an apply without the label would leave that of another manager
        None => writer.merge(&Api::<GpuNode>::all(writer.client()), name, &fields).await,
    };
    written.map(|_| Written::Done).map_err(failed("writing the label of the GpuNode"))
}

/// Writes the taints of a node.
pub async fn write_taint(
    node: NodeContext<'_>,
    state: &mut NodeState,
    change: TaintChange,
) -> Result<Written, WriteError> {
    let (writer, name) = (&node.writer.writer, node.name.as_str());
    let Some(known) = node.fleet.nodes.get(name) else { return Ok(Written::Done) };
    let TaintChange { taints, mark, before } = change;
    match state.taint.decide(&mark, Timestamp::now()) {
        Repair::At(due) => return Ok(Written::At(due)),
        Repair::Now { contested: false } => {}
        Repair::Now { contested: true } => {
            let taint = mark.as_deref().or(before.as_deref()).unwrap_or_default();
            report_contest(node, &format!("taint {taint} of node {name}: another client changes it")).await;
        }
    }
    let fields = json!({
        // all taints are written together: a concurrent change of another one is not undone
        "metadata": {"resourceVersion": known.resource_version(), "annotations": {names::TAINTED: mark}},
        "spec": {"taints": taints},
    });
    match writer.merge(&Api::<Node>::all(writer.client()), name, &fields).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_conflict() => return Ok(Written::Again),
        Err(error) => return Err(failed("writing taints")(error)),
    }
    state.taint.written(mark.clone(), Timestamp::now());
    let (reason, message) = match (mark, before) {
        (Some(mark), _) => (reasons::TAINTED, format!("with {mark}, by spec.taint of its pool")),
        (None, before) => {
            (reasons::UNTAINTED, format!("no pool has the taint {} any more", before.unwrap_or_default()))
        }
    };
    node.report(EventType::Normal, reason, "Change", message).await;
    Ok(Written::Done)
}

/// Another client keeps changing what the operator writes.
pub(super) async fn report_contest(node: NodeContext<'_>, what: &str) {
    tracing::warn!(node = %node.name, what, "another client keeps changing the node");
    let message = format!(
        "{what}; repaired with a delay that grows from 2 s to 5 min: stop that client. If it is not named: kubectl get node {} \
         --show-managed-fields -o yaml, or the audit log",
        node.name
    );
    node.report(EventType::Warning, reasons::FIELD_CONFLICT, "Repair", message).await;
}
