//! The node's own `status.allocatable`: watched, and patched entry by entry.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use gputenancy_cluster::{
    watch::{Restarts, events},
    write::FieldManager,
};
use gputenancy_crds::names::AGENT_MANAGER;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;

use super::allocatable::{Counts, managed_counts};
use crate::LONGEST_WATCH_DELAY;

/// What one version of the Node says: allocatable of the managed resources, and another product that limits memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocatable {
    version: Option<u128>,
    /// Numbers of devices.
    pub counts: Counts,
    /// Names with the amount 0 in capacity and allocatable. True: they are the agent's, by their domain, or because its allocatable was last
    /// changed by an agent.
    pub zero: BTreeMap<String, bool>,
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
        let zero = node.status.as_ref().map(|status| zero(node, status)).unwrap_or_default();
        Self { version, counts: quantities.map(managed_counts).unwrap_or_default(), zero, fractioning }
    }
}

/// Names of managed resources that are 0.
fn zero(node: &Node, status: &NodeStatus) -> BTreeMap<String, bool> {
    let mut amounts = Counts::new();
    for quantities in [&status.capacity, &status.allocatable].into_iter().flatten() {
        for (name, count) in managed_counts(quantities) {
            *amounts.entry(name).or_default() += count;
        }
    }
    amounts.retain(|_, count| *count == 0);
    if amounts.is_empty() {
        return BTreeMap::new();
    }
    let written = written(node);
    let ours = |name: &str| name.starts_with("gputenancy.io/") || written.contains(name);
    amounts.into_keys().map(|name| (ours(&name), name)).map(|(ours, name)| (name, ours)).collect()
}

/// Resources whose allocatable the agent was the last to change, this one or an earlier one.
fn written(node: &Node) -> BTreeSet<&str> {
    let entries = node.metadata.managed_fields.iter().flatten();
    let entries = entries.filter(|entry| entry.manager.as_deref() == Some(AGENT_MANAGER));
    let fields =
        entries.filter_map(|entry| entry.fields_v1.as_ref()?.0.get("f:status")?.get("f:allocatable")?.as_object());
    fields.flat_map(|fields| fields.keys()).filter_map(|key| key.strip_prefix("f:")).collect()
}

/// The field manager shows on the Node who changed its allocatable.
fn manager() -> FieldManager {
    FieldManager::new(AGENT_MANAGER)
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
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut nodes = events(self.api.clone(), config, LONGEST_WATCH_DELAY).applied_objects().boxed();
        let mut restarts = Restarts::new("nodes");
        while let Some(node) = nodes.next().await {
            if let Some(node) = restarts.note(node) {
                self.update(&node);
            }
        }
    }

    /// Writes these entries and no others.
    pub async fn write(&self, counts: &Counts) -> kube::Result<()> {
        let texts: BTreeMap<&String, String> = counts.iter().map(|(name, count)| (name, count.to_string())).collect();
        let patch = serde_json::json!({ "status": { "allocatable": texts } });
        let node = manager().merge_status(&self.api, &self.name, &patch).await?;
        let written: Vec<String> = counts.iter().map(|(name, count)| format!("{name}={count}")).collect();
        tracing::info!(resources = written.join(", "), "wrote allocatable of the node");
        self.update(&node);
        Ok(())
    }

    /// Removes these names from capacity and allocatable, unless the Node has changed since [`Self::latest`].
    pub async fn remove(&self, names: &BTreeSet<String>) -> kube::Result<()> {
        let version =
            self.latest.borrow().as_ref().and_then(|latest| latest.version).map(|version| version.to_string());
        let removed: BTreeMap<&String, Option<()>> = names.iter().map(|name| (name, None)).collect();
        let patch = serde_json::json!({
            "metadata": {"resourceVersion": version}, "status": {"capacity": removed, "allocatable": removed},
        });
        let node = manager().merge_status(&self.api, &self.name, &patch).await?;
        let removed: Vec<&str> = names.iter().map(String::as_str).collect();
        tracing::info!(resources = removed.join(", "), "removed resources without devices from the node");
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
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_amount_zero_are_the_agents_by_domain_or_by_its_last_write() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"managedFields": [
                {"manager": AGENT_MANAGER, "fieldsV1": {"f:status": {"f:allocatable": {"f:nvidia.com/mig-1g.10gb": {}, "f:nvidia.com/mig-2g.20gb": {}}}}},
                {"manager": "kubelet", "fieldsV1": {"f:status": {"f:allocatable": {"f:nvidia.com/gpu": {}}}}},
                {"manager": AGENT_MANAGER, "fieldsV1": {"f:status": {"f:capacity": 7}}},
            ]},
            "status": {
                "capacity": {"cpu": "0", "gputenancy.io/a": "0", "gputenancy.io/b": "0", "nvidia.com/gpu": "0",
                    "nvidia.com/hostdev": "0", "nvidia.com/mig-1g.10gb": "0", "nvidia.com/mig-2g.20gb": "2"},
                "allocatable": {"gputenancy.io/b": "1", "gputenancy.io/c": "0", "nvidia.com/gpu": "0",
                    "nvidia.com/mig-1g.10gb": "0", "nvidia.com/mig-2g.20gb": "0"},
            },
        }))
        .unwrap();
        let expected = [
            ("gputenancy.io/a", true),
            ("gputenancy.io/c", true),
            ("nvidia.com/gpu", false),
            ("nvidia.com/mig-1g.10gb", true),
        ];
        assert_eq!(Allocatable::from(&node).zero, expected.map(|(name, ours)| (name.to_owned(), ours)).into());
        assert!(Allocatable::from(&Node::default()).zero.is_empty());
    }

    #[test]
    fn kai_gpu_fractioning_is_found_by_its_condition_in_any_status() {
        let node = |type_: &str, status: &str| -> Node {
            let condition = json!({"type": type_, "status": status});
            serde_json::from_value(json!({"metadata": {}, "status": {"conditions": [condition]}})).unwrap()
        };
        let found = |type_: &str, status: &str| Allocatable::from(&node(type_, status)).fractioning;
        assert!(found("gpu-fractioning.nvidia.com/Ready", "True"));
        assert!(found("gpu-fractioning.nvidia.com/Ready", "Unknown"), "its operator is down, its daemons are not");
        assert!(!found("Ready", "True") && !Allocatable::from(&Node::default()).fractioning);
    }
}
