//! The `GpuNode` of this node: created if it is missing, and watched for the spec.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures::StreamExt as _;
use gputenancy_cluster::{
    error::sentence,
    watch::{Restarts, confirmed_events},
};
use gputenancy_crds::{
    GpuNode, GpuNodeSpec, GpuNodeStatus, condition,
    names::{AGENT_MANAGER, POOL_LABEL},
    reasons,
};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, PartialObjectMeta, PostParams},
    runtime::watcher::{self, Event},
};
use tokio::sync::watch;

use crate::{LONGEST_WATCH_DELAY, gpu::faults, partition::DesiredLayout};

/// What the watch has received.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The desired layout; `None` before the first object.
    pub desired: Option<DesiredLayout>,
    /// The status of the first object, which an earlier run of the agent wrote.
    pub first_status: Option<GpuNodeStatus>,
    /// How often a later object may have another status than this agent wrote: the object was created again, an agent that ends has written last, or
    /// the objects were listed again, as after etcd was restored from a backup.
    pub overwritten: u32,
    /// The pool of the node, by the label that the operator writes.
    pub pool: Option<String>,
}

/// The watch of the object.
pub struct GpuNodeWatch {
    /// The API server.
    pub client: Client,
    /// Name of the node, and of the object.
    pub node: String,
    /// The node's boot id. Recorded faults count only for the same one.
    pub boot_id: String,
    /// What was received.
    pub watched: watch::Sender<Watched>,
}

impl GpuNodeWatch {
    /// Watches for as long as it is polled, and creates the object if it is missing.
    pub async fn run(self) {
        let Self { client, node, boot_id, watched } = self;
        let api: Api<GpuNode> = Api::all(client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let mut events = pin!(confirmed_events(api.clone(), config, LONGEST_WATCH_DELAY));
        let (mut restarts, mut listed) = (Restarts::new("gpunodes"), false);
        while let Some(event) = events.next().await {
            match restarts.note(event) {
                Some(Event::Init) => listed = false,
                Some(Event::Apply(object)) => take(object, false, &boot_id, &watched),
                Some(Event::InitApply(object)) => {
                    listed = true;
                    take(object, true, &boot_id, &watched);
                }
                // the last spec holds meanwhile: a deletion by mistake must not withdraw all devices
                Some(Event::Delete(_)) => ensure(&client, &api, &node).await,
                Some(Event::InitDone) if !listed => ensure(&client, &api, &node).await,
                Some(Event::InitDone) | None => {}
            }
        }
    }
}

fn take(object: GpuNode, listed: bool, boot_id: &str, watched: &watch::Sender<Watched>) {
    let generation = object.metadata.generation.unwrap_or_default();
    let GpuNode { metadata, spec, status } = object;
    let object = metadata.uid.unwrap_or_default();
    let pool = metadata.labels.unwrap_or_default().remove(POOL_LABEL);
    watched.send_if_modified(|watched| {
        let overwritten = watched.desired.is_some() && (listed || status.as_ref().is_none_or(is_stopped));
        watched.overwritten += u32::from(overwritten);
        watched.pool = pool;
        let same =
            |known: &DesiredLayout| (&known.object, known.generation) == (&object, generation) && known.spec == spec;
        if watched.desired.as_ref().is_some_and(same) {
            return overwritten;
        }
        let recorded = recorded(status.as_ref());
        watched.first_status = watched.first_status.take().or(status);
        let faults = watched.first_status.iter().flat_map(|status| faults::recorded(status, boot_id)).collect();
        watched.desired = Some(DesiredLayout { object, generation, spec, recorded, faults });
        true
    });
}

fn is_stopped(status: &GpuNodeStatus) -> bool {
    status.conditions.iter().any(|c| c.type_ == condition::READY && reasons::AGENT_STOPPED == c.reason.as_str())
}

fn recorded(status: Option<&GpuNodeStatus>) -> BTreeMap<String, gputenancy_crds::GpuError> {
    let gpus = status.into_iter().flat_map(|status| &status.gpus);
    gpus.filter_map(|gpu| Some((gpu.uuid.clone(), gpu.error.clone()?))).collect()
}

async fn ensure(client: &Client, api: &Api<GpuNode>, node_name: &str) {
    while let Err(error) = create(client, api, node_name).await {
        tracing::warn!(error = sentence(&error), gpu_node = node_name, "GpuNode not created");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

async fn create(client: &Client, api: &Api<GpuNode>, node_name: &str) -> kube::Result<()> {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let node = nodes.get(node_name).await?;
    let object = GpuNode {
        metadata: ObjectMeta {
            name: Some(node_name.to_owned()),
            // deleted with its Node
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node_name.to_owned(),
                uid: node.uid().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: GpuNodeSpec::default(),
        status: None,
    };
    let params = PostParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&params, &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => created.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_another_agent_or_a_new_object_is_noticed_and_an_earlier_one_is_not() {
        let object = |reason: Option<&str>| {
            let status = reason.map(|reason| {
                let ready = serde_json::json!({
                    "type": "Ready", "status": "Unknown", "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                });
                serde_json::json!({"observedGeneration": 1, "conditions": [ready]})
            });
            let object = serde_json::json!({
                "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode",
                "metadata": {"name": "n", "generation": 1}, "spec": {}, "status": status,
            });
            serde_json::from_value::<GpuNode>(object).unwrap()
        };
        let watched = watch::Sender::new(Watched::default());
        for (reason, overwritten) in
            [(Some("AgentStopped"), 0), (Some("Ready"), 0), (Some("AgentStopped"), 1), (Some("Ready"), 1), (None, 2)]
        {
            take(object(reason), false, "boot", &watched);
            assert_eq!(watched.borrow().overwritten, overwritten, "{reason:?}");
        }
        take(object(Some("Ready")), true, "boot", &watched);
        assert_eq!(watched.borrow().overwritten, 3, "listed again: etcd may have been restored");
    }

    #[test]
    fn object_that_was_created_again_with_the_same_spec_is_another() {
        let object = |uid: &str| GpuNode {
            metadata: ObjectMeta { uid: Some(uid.into()), generation: Some(1), ..ObjectMeta::default() },
            ..GpuNode::default()
        };
        let watched = watch::Sender::new(Watched::default());
        for uid in ["one", "two"] {
            take(object(uid), false, "boot", &watched);
            assert_eq!(watched.borrow().desired.as_ref().unwrap().object, uid);
        }
    }
}
