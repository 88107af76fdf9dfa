//! The node's labels, and the pods whose end the MIG manager awaits.

use std::{collections::BTreeMap, time::Duration};

use gputenancy_crds::names::{DEPLOY_LABELS, MIG_STATE_LABEL, PAUSED};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

/// Components of the GPU Operator whose label is always written.
const PARTS: [&str; 5] = ["device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm"];
/// The component of third parties, whose label is written only if it exists.
const CLIENT: &str = "client";
/// Labels of the pods that must have ended, in the order of waiting.
const APPS: [&str; 4] =
    ["nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-dcgm"];

/// One node's labels.
pub struct Labels {
    nodes: Api<Node>,
    node: String,
    client: Client,
    /// Labels of the components before they were paused.
    before: BTreeMap<String, String>,
}

impl Labels {
    /// Reads them.
    pub async fn read(client: &Client, node: &str) -> kube::Result<Self> {
        let nodes = Api::<Node>::all(client.clone());
        let labels = nodes.get(node).await?.labels().clone();
        let keys = PARTS.iter().map(|part| format!("{DEPLOY_LABELS}{part}"));
        let mut before: BTreeMap<String, String> =
            keys.map(|key| (key.clone(), labels.get(&key).cloned().unwrap_or_default())).collect();
        let key = format!("{DEPLOY_LABELS}{CLIENT}");
        if let Some(value) = labels.get(&key) {
            before.insert(key, value.clone());
        }
        Ok(Self { nodes, node: node.to_owned(), client: client.clone(), before })
    }

    /// Writes the state label.
    pub async fn state(&self, state: &str) -> kube::Result<()> {
        tracing::info!(state, "state");
        self.set(&[(MIG_STATE_LABEL.to_owned(), state.to_owned())].into()).await
    }

    /// Pauses all components that are not off.
    pub async fn pause(&self) -> kube::Result<()> {
        self.set_parts(PAUSED).await
    }

    /// Starts all components that were not off.
    pub async fn start(&self) -> kube::Result<()> {
        self.set_parts("true").await
    }

    async fn set_parts(&self, value: &str) -> kube::Result<()> {
        let to = |old: &String| if old == "false" { old.clone() } else { value.to_owned() };
        self.set(&self.before.iter().map(|(key, old)| (key.clone(), to(old))).collect()).await
    }

    async fn set(&self, labels: &BTreeMap<String, String>) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.nodes.patch(&self.node, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Waits until the components' pods have ended; false after a timeout.
    pub async fn parts_are_gone(&self, namespace: &str, wait: Duration) -> kube::Result<bool> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        for app in APPS {
            let list =
                ListParams::default().labels(&format!("app={app}")).fields(&format!("spec.nodeName={}", self.node));
            let begun = tokio::time::Instant::now();
            while !pods.list(&list).await?.items.is_empty() {
                if begun.elapsed() >= wait {
                    tracing::warn!(app, "did not stop");
                    return Ok(false);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        self.clients_are_gone(wait).await
    }

    async fn clients_are_gone(&self, wait: Duration) -> kube::Result<bool> {
        let pods = Api::<Pod>::all(self.client.clone());
        let list = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let key = format!("{DEPLOY_LABELS}{CLIENT}");
        let is_client = |pod: &Pod| {
            let daemon = pod.owner_references().iter().any(|o| o.controller == Some(true) && o.kind == "DaemonSet");
            let selector = pod.spec.as_ref().and_then(|s| s.node_selector.as_ref());
            daemon && selector.is_some_and(|s| s.contains_key(&key))
        };
        let begun = tokio::time::Instant::now();
        while pods.list(&list).await?.items.iter().any(is_client) {
            if begun.elapsed() >= wait {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(true)
    }
}
