//! The node's own `status.allocatable`: watched, and patched entry by entry.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;

use super::allocatable::{Counts, managed_counts};
use crate::watch_backoff;

/// What one version of the Node says: allocatable of the managed resources, and another product that limits memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocatable {
    version: Option<u128>,
    /// Numbers of devices.
    pub counts: Counts,
    /// kai-gpu-fractioning limits memory on the node. Its operator adds the condition to the nodes that its configuration selects, and removes it
    /// with the configuration; while the operator is down its status is Unknown, and the limits stay.
    pub fractioning: bool,
}

/// Type of that condition.
const FRACTIONING: &str = "gpu-fractioning.nvidia.com/Ready";

impl From<&Node> for Allocatable {
    fn from(node: &Node) -> Self {
        let version = node.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        let quantities = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let fractioning = conditions.any(|condition| condition.type_ == FRACTIONING);
        Self { version, counts: quantities.map(managed_counts).unwrap_or_default(), fractioning }
    }
}

/// This node's `Node`.
#[derive(Debug)]
pub struct OwnNode {
    name: String,
    api: Api<Node>,
    latest: watch::Sender<Option<Allocatable>>,
}

impl OwnNode {
    /// The `Node` with this name; [`Self::watch`] updates it.
    pub fn new(client: Client, name: &str) -> Self {
        Self { name: name.to_owned(), api: Api::all(client), latest: watch::Sender::new(None) }
    }

    /// The latest allocatable; none before the API server has answered.
    pub fn latest(&self) -> watch::Receiver<Option<Allocatable>> {
        self.latest.subscribe()
    }

    /// Watches for as long as it is polled.
    pub async fn watch(&self) {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.name)).streaming_lists();
        let mut nodes = watcher(self.api.clone(), config).backoff(watch_backoff()).applied_objects().boxed();
        while let Some(node) = nodes.next().await {
            match node {
                Ok(node) => self.update(&node),
                Err(error) => tracing::warn!(%error, node = self.name, "watch failed"),
            }
        }
    }

    /// Writes these entries and no others.
    pub async fn write(&self, counts: &Counts) -> kube::Result<()> {
        let texts: BTreeMap<&String, String> = counts.iter().map(|(name, count)| (name, count.to_string())).collect();
        let patch = serde_json::json!({ "status": { "allocatable": texts } });
        // the field manager shows on the Node who changed its allocatable
        let field_manager = Some(gputenancy_crds::names::AGENT_MANAGER.to_owned());
        let params = PatchParams { field_manager, ..PatchParams::default() };
        let node = self.api.patch_status(&self.name, &params, &Patch::Merge(patch)).await?;
        tracing::info!(?counts, "wrote allocatable of the node");
        self.update(&node);
        Ok(())
    }

    /// Keeps the newer version: the watch may deliver a Node of before a write.
    fn update(&self, node: &Node) {
        let new = Allocatable::from(node);
        self.latest.send_if_modified(|latest| {
            let known = latest.as_ref();
            let stale = known.is_some_and(|known| known.version.is_some() && new.version < known.version);
            let changed = known.is_none_or(|known| known.counts != new.counts || known.fractioning != new.fractioning);
            if !stale {
                *latest = Some(new);
            }
            !stale && changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kai_gpu_fractioning_is_found_by_its_condition_in_any_status() {
        let node = |type_: &str, status: &str| -> Node {
            let condition = serde_json::json!({"type": type_, "status": status});
            serde_json::from_value(serde_json::json!({"metadata": {}, "status": {"conditions": [condition]}})).unwrap()
        };
        let found = |type_: &str, status: &str| Allocatable::from(&node(type_, status)).fractioning;
        assert!(found("gpu-fractioning.nvidia.com/Ready", "True"));
        assert!(found("gpu-fractioning.nvidia.com/Ready", "Unknown"), "its operator is down, its daemons are not");
        assert!(!found("Ready", "True") && !Allocatable::from(&Node::default()).fractioning);
    }
}
