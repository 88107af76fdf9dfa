//! The agent's own `GpuNode`: made when it is missing, watched for the operator's wishes.

use std::{collections::BTreeMap, time::Duration};

use futures::TryStreamExt;
use gputenancy_crds::{GpuNode, GpuNodeSpec, GpuNodeStatus, names::AGENT_MANAGER};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, PartialObjectMeta, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;

use crate::{carve::Wanted, gpu::health, watch_backoff};

/// What the watch tells.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The layout wanted; `None` until the object was seen.
    pub wanted: Option<Wanted>,
    /// The status as it was when the object was first seen: what an earlier run of the agent wrote.
    pub first_status: Option<GpuNodeStatus>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("reading Node {0}: {1}")]
    Node(String, #[source] kube::Error),
    #[error("creating GpuNode {0}: {1}")]
    Create(String, #[source] kube::Error),
}

/// Watches the object for ever, and creates it whenever it is not there. What an earlier run wrote down counts by the node's boot.
pub async fn watch(client: Client, node_name: &str, boot_id: &str, watched: &watch::Sender<Watched>) {
    let api: Api<GpuNode> = Api::all(client.clone());
    let config = watcher::Config::default().fields(&format!("metadata.name={node_name}"));
    let stream = watcher(api.clone(), config).backoff(watch_backoff());
    let mut stream = std::pin::pin!(stream);
    let mut seen_in_list = false;
    loop {
        match stream.try_next().await {
            Ok(Some(watcher::Event::Init)) => seen_in_list = false,
            Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                seen_in_list = true;
                take(object, boot_id, watched);
            }
            // Until it is back, the last spec holds: a slip of the hand must not withdraw every device of the node.
            Ok(Some(watcher::Event::Delete(_))) => ensure(&client, &api, node_name).await,
            Ok(Some(watcher::Event::InitDone)) if !seen_in_list => ensure(&client, &api, node_name).await,
            Ok(Some(watcher::Event::InitDone)) => {}
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "watching GpuNode {node_name}"),
        }
    }
}

fn take(object: GpuNode, boot_id: &str, watched: &watch::Sender<Watched>) {
    let generation = object.metadata.generation.unwrap_or_default();
    let GpuNode { spec, status, .. } = object;
    watched.send_if_modified(|watched| {
        if watched.wanted.as_ref().is_some_and(|known| known.generation == generation && known.spec == spec) {
            return false;
        }
        let recorded = recorded(status.as_ref());
        watched.first_status = watched.first_status.take().or(status);
        // What is written from now on is this run's own word.
        let faults = watched.first_status.iter().flat_map(|status| health::recorded(status, boot_id)).collect();
        watched.wanted = Some(Wanted { generation, spec, recorded, faults });
        true
    });
}

fn recorded(status: Option<&GpuNodeStatus>) -> BTreeMap<String, gputenancy_crds::GpuError> {
    let gpus = status.into_iter().flat_map(|status| &status.gpus);
    gpus.filter_map(|gpu| Some((gpu.uuid.clone(), gpu.error.clone()?))).collect()
}

async fn ensure(client: &Client, api: &Api<GpuNode>, node_name: &str) {
    while let Err(error) = create(client, api, node_name).await {
        tracing::warn!(%error, "the GpuNode is missing");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

async fn create(client: &Client, api: &Api<GpuNode>, node_name: &str) -> Result<(), Error> {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let node = nodes.get(node_name).await.map_err(|error| Error::Node(node_name.to_owned(), error))?;
    let object = GpuNode {
        metadata: ObjectMeta {
            name: Some(node_name.to_owned()),
            // It goes with the Node that it speaks of.
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
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(Error::Create(node_name.to_owned(), error)),
    }
}
