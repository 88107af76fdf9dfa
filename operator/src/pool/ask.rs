//! Writing for NVIDIA's MIG manager: the layouts that it may be asked for, and the labels by which it is asked.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Api, ResourceExt as _, api::ObjectMeta};
use serde_json::{Map, Value, json};

use super::{Controller, FleetError, failed, managed::Ask};
use crate::{apply::Part, plan::NodeName};
use gputenancy_crds::names;
use gputenancy_engine::{fleet::Fleet, mig_manager::MigConfigs};

impl Controller {
    /// Publishes the layouts.
    pub(super) async fn publish(&self, configs: &MigConfigs) -> Result<(), FleetError> {
        let text = configs.render()?;
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(names::MIG_CONFIG_MAP.to_owned()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            data: Some([(names::MIG_CONFIG_KEY.to_owned(), text)].into()),
            ..ConfigMap::default()
        };
        let applied = self.writer.apply(Part::MigManager, &object).await;
        applied.map(drop).map_err(failed("publishing layouts for NVIDIA's MIG manager"))
    }

    /// Sets the label that asks, and starts again what was left paused.
    pub(super) async fn ask(&mut self, fleet: &Fleet, node: &NodeName, ask: Ask) -> Result<(), FleetError> {
        if let Some(config) = ask.config {
            let fields = json!({"metadata": {"labels": {names::MIG_CONFIG_LABEL: config}}});
            let applied = self.writer.apply_fields::<Node>(Part::MigManager, node.as_str(), fields).await;
            applied.map_err(failed(format!("asking NVIDIA's MIG manager of node {node}")))?;
        }
        let Some(seen) = fleet.nodes.get(node.as_str()).filter(|_| !ask.unpause.is_empty()) else { return Ok(()) };
        // merged and not applied: what an apply leaves out later is removed, and these labels are the GPU Operator's; the version keeps
        // us from undoing a pause that began since
        let labels: Map<String, Value> = ask.unpause.into_iter().map(|label| (label, json!("true"))).collect();
        let fields = json!({"metadata": {"resourceVersion": seen.resource_version(), "labels": labels}});
        let api: Api<Node> = Api::all(self.writer.client());
        match self.writer.merge(&api, node.as_str(), &fields).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                self.look_again = true;
                Ok(())
            }
            Err(error) => Err(failed(format!("starting again what was paused on node {node}"))(error)),
        }
    }
}
