//! Layouts that requests name, and the labels of a node that a request consists of.

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};

use super::{FleetWriter, WriteError, Written, failed, state::NodeContext};
use crate::apply::Part;
use gputenancy_crds::names;
use gputenancy_decisions::partitioner::{MigConfigs, RequestDecision};

/// Writes the `ConfigMap` of layouts.
pub async fn publish(writer: &FleetWriter, configs: &MigConfigs) -> Result<Written, WriteError> {
    let (namespace, data) = (&writer.namespaces.layouts, (names::MIG_CONFIG_KEY.to_owned(), configs.render()?));
    writer.publish(Part::Partitioner, (namespace, names::MIG_CONFIG_MAP), [data].into()).await?;
    Ok(Written::Done)
}

/// Sets the label that requests a layout, and starts what was left paused.
pub async fn write(node: NodeContext<'_>, request: RequestDecision) -> Result<Written, WriteError> {
    let (writer, name) = (&node.writer.writer, node.name.as_str());
    if let Some(config) = request.label {
        let fields = json!({"metadata": {"labels": {names::MIG_CONFIG_LABEL: config}}});
        let applied = writer.apply_fields::<Node>(Part::Partitioner, name, fields).await;
        applied.map_err(failed(format!("writing label {}", names::MIG_CONFIG_LABEL)))?;
    }
    let known = node.fleet.nodes.get(name).filter(|_| !request.unpause.is_empty());
    let Some(known) = known else { return Ok(Written::Done) };
    // merged and not applied: what an apply leaves out later is removed, and these labels are the GPU Operator's; with the version a
    // pause that began since is not undone
    let labels: Map<String, Value> = request.unpause.into_iter().map(|label| (label, json!("true"))).collect();
    let fields = json!({"metadata": {"resourceVersion": known.resource_version(), "labels": labels}});
    match writer.merge(&Api::<Node>::all(writer.client()), name, &fields).await {
        Ok(_) => Ok(Written::Done),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Written::Again),
        Err(error) => Err(failed("starting paused components of the GPU Operator")(error)),
    }
}
