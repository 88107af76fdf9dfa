//! The node's own count of its devices, `node.status.allocatable`: watched, and patched entry by entry.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::allocatable::{Counts, ours};
use crate::watch_backoff;

/// The part of a `Node` that is read here.
#[derive(Resource, Serialize, Deserialize, Clone, Debug)]
#[resource(inherit = Node)]
pub struct CountedNode {
    /// Name and version.
    pub metadata: ObjectMeta,
    /// The counts.
    #[serde(default)]
    pub status: CountedStatus,
}

/// The part of a node's status that is read here.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct CountedStatus {
    /// Quantities by resource.
    #[serde(default)]
    pub allocatable: BTreeMap<String, String>,
}

/// The counts, and the version of the `Node` they are from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    version: Option<u128>,
    /// Allocatable of our resources.
    pub counts: Counts,
}

impl From<&CountedNode> for Counted {
    fn from(node: &CountedNode) -> Self {
        let version = node.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        let ours = node.status.allocatable.iter().filter(|(resource, _)| ours(resource));
        Self { version, counts: ours.map(|(resource, text)| (resource.clone(), count(text))).collect() }
    }
}

/// A quantity of devices: whole numbers, of which Kubernetes shortens thousands.
pub fn count(text: &str) -> u64 {
    match text.strip_suffix('k') {
        Some(thousands) => thousands.parse::<u64>().unwrap_or(0).saturating_mul(1000),
        None => text.parse().unwrap_or(0),
    }
}

/// This node's `Node`.
#[derive(Debug)]
pub struct OwnNode {
    name: String,
    api: Api<CountedNode>,
    latest: watch::Sender<Option<Counted>>,
}

impl OwnNode {
    /// By its name; call [`Self::follow`] as well.
    pub fn new(client: Client, name: &str) -> Self {
        Self { name: name.to_owned(), api: Api::all(client), latest: watch::Sender::new(None) }
    }

    /// The counts as known; none while the API server has not answered.
    pub fn latest(&self) -> watch::Receiver<Option<Counted>> {
        self.latest.subscribe()
    }

    /// Watches for as long as it is polled.
    pub async fn follow(&self) {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.name)).streaming_lists();
        let mut nodes = watcher(self.api.clone(), config).backoff(watch_backoff()).applied_objects().boxed();
        while let Some(node) = nodes.next().await {
            match node {
                Ok(node) => self.learn(&node),
                Err(error) => tracing::warn!(%error, "watching our node failed; trying again"),
            }
        }
    }

    /// Writes these entries and no others.
    pub async fn write(&self, counts: &Counts) -> kube::Result<()> {
        let texts: BTreeMap<&String, String> = counts.iter().map(|(name, count)| (name, count.to_string())).collect();
        let patch = serde_json::json!({ "status": { "allocatable": texts } });
        let node = self.api.patch_status(&self.name, &as_agent(), &Patch::Merge(patch)).await?;
        tracing::info!(?counts, "wrote the node's allocatable");
        self.learn(&node);
        Ok(())
    }

    /// The watch and our own writes race: the newer one counts.
    fn learn(&self, node: &CountedNode) {
        let new = Counted::from(node);
        self.latest.send_if_modified(|latest| {
            let known = latest.as_ref();
            let stale = known.is_some_and(|known| known.version.is_some() && new.version < known.version);
            let differs = known.is_none_or(|known| known.counts != new.counts);
            if !stale {
                *latest = Some(new);
            }
            !stale && differs
        });
    }
}

/// The writes carry our name, so that who changed a node's allocatable can be read off the node.
fn as_agent() -> PatchParams {
    PatchParams { field_manager: Some(gputenancy_crds::names::AGENT_MANAGER.into()), ..PatchParams::default() }
}
