//! What is written where NVIDIA's plugin advertises: the node's cordon, and the end of the plugin's pod.

use gputenancy_crds::{
    names,
    reasons::{self, Reason},
};
use gputenancy_service::events::{EventType, Notice};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::{Api, Resource as _, ResourceExt as _, api::ListParams};
use serde_json::json;

use super::{Controller, FleetError, failed};
use crate::{apply::Evicted, plan::NodeName};
use gputenancy_engine::{
    fleet::Fleet,
    plugin::{CordonAction, PluginDecision, is_plugin},
};

impl Controller {
    /// Carries out what was decided about a node.
    pub(super) async fn plugin(
        &mut self,
        fleet: &Fleet,
        node: &NodeName,
        steps: PluginDecision,
    ) -> Result<(), FleetError> {
        if let Some(cordon) = steps.cordon {
            self.cordon(fleet, node, &cordon).await?;
        }
        match steps.restart {
            Some(until) => self.restart_plugin(fleet, node, until).await,
            None => Ok(()),
        }
    }

    async fn cordon(&mut self, fleet: &Fleet, node: &NodeName, cordon: &CordonAction) -> Result<(), FleetError> {
        let Some(known) = fleet.nodes.get(node.as_str()) else { return Ok(()) };
        let (mark, unschedulable, reason, words) = match cordon {
            CordonAction::Set => {
                (json!(Timestamp::now().to_string()), Some(true), reasons::CORDONED, "its GPUs are being changed")
            }
            CordonAction::Lift => (json!(null), Some(false), reasons::UNCORDONED, "its GPUs are as planned"),
            CordonAction::Unmark => {
                (json!(null), None, reasons::CORDON_FORGOTTEN, "somebody else has lifted the cordon of a change")
            }
        };
        let mut fields = json!({
            // whoever cordoned or uncordoned it meanwhile has the last word
            "metadata": {"resourceVersion": known.resource_version(), "annotations": {names::CORDONED: mark}},
        });
        if let (Some(fields), Some(unschedulable)) = (fields.as_object_mut(), unschedulable) {
            fields.insert("spec".into(), json!({"unschedulable": unschedulable}));
        }
        let api = Api::<Node>::all(self.writer.client());
        match self.writer.merge(&api, node.as_str(), &fields).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                self.look_again = true;
                return Ok(());
            }
            Err(error) => return Err(failed(format!("cordoning or uncordoning node {node}"))(error)),
        }
        self.tell_node(fleet, node, reason, words.to_owned()).await;
        Ok(())
    }

    /// Ends the plugin's pods on this node that were made at this time or before; their DaemonSet makes others, which read what
    /// is there now.
    async fn restart_plugin(&mut self, fleet: &Fleet, node: &NodeName, until: Timestamp) -> Result<(), FleetError> {
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = Api::<Pod>::all(self.writer.client()).list(&here).await;
        let pods = pods.map_err(failed(format!("listing the pods of node {node}")))?;
        for pod in pods.iter().filter(|pod| is_plugin(|key| pod.labels().get(key).cloned())) {
            let old = pod.metadata.creation_timestamp.as_ref().is_some_and(|made| made.0 <= until);
            if !old || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let answer = self.writer.evict(&namespace, &name, &pod.uid().unwrap_or_default()).await;
            match answer.map_err(failed(format!("ending the device plugin {namespace}/{name}")))? {
                Evicted::Accepted => {
                    let words = format!("pod {namespace}/{name} ends, so that the next one reads the new layout");
                    self.tell_node(fleet, node, reasons::DEVICE_PLUGIN_RESTARTED, words).await;
                }
                Evicted::Refused(words) => tracing::warn!(%node, name, words, "the device plugin may not be ended yet"),
            }
        }
        Ok(())
    }

    pub(super) async fn tell_node(&self, fleet: &Fleet, node: &NodeName, reason: Reason, words: String) {
        if let Some(agreement) = fleet.gpu_nodes.get(node.as_str()) {
            let regarding = agreement.object_ref(&());
            let (event_type, action) = (EventType::Normal, "Change".into());
            self.publisher.publish(Notice { regarding, event_type, reason, action, note: words }).await;
        }
    }
}
