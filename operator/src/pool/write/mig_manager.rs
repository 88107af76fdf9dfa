//! Labels nodes for NVIDIA's MIG manager.

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};

use super::{WriteError, Written, failed, state::NodeContext};
use crate::{apply::Part, pool::mig_manager::MigManagerRequest};
use gputenancy_crds::names;

/// Sets the label that requests a layout, and starts what was left paused.
pub async fn request(node: NodeContext<'_>, request: MigManagerRequest) -> Result<Written, WriteError> {
    let (writer, name) = (&node.writer.writer, node.name.as_str());
    if let Some(config) = request.config {
        let fields = json!({"metadata": {"labels": {names::MIG_CONFIG_LABEL: config}}});
        let applied = writer.apply_fields::<Node>(Part::MigManager, name, fields).await;
        applied.map_err(failed("writing the label for NVIDIA's MIG manager"))?;
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
        Err(error) => Err(failed("starting what NVIDIA's MIG manager left paused")(error)),
    }
}
