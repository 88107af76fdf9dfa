//! Simulated nodes for scale tests: kwok acts as their kubelets.

use crate::control::Request;
use crate::error::{Asking, Result};
use crate::lab::Lab;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Concurrent requests; more do not speed up a two-core API server.
const AT_ONCE: usize = 16;

impl Lab {
    /// Adds nodes `kwok-1…kwok-N` with 64 CPUs and 512 GiB; those there already stay. They are tainted
    /// `kwok.x-k8s.io/node=fake:NoSchedule`, so that only pods that tolerate it are scheduled there.
    pub async fn add_kwok_nodes(&self, count: usize) -> Result<()> {
        self.ask(&Request::Kwok).await?;
        let api = Api::<Node>::all(self.client());
        let (api, params) = (&api, &PatchParams::apply("lab").force());
        let amounts = json!({"cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "1Ti"});
        let amounts = &amounts;
        stream::iter(1..=count)
            .map(|i| async move {
                let name = format!("kwok-{i}");
                let node = json!({
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {
                        "name": name,
                        "annotations": {"kwok.x-k8s.io/node": "fake"},
                        "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "kwok"},
                    },
                    "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
                });
                let done = api.patch(&name, params, &Patch::Apply(&node)).await;
                done.asking(|| format!("creating node {name}"))?;
                let status = json!({"apiVersion": "v1", "kind": "Node", "status": {"capacity": amounts, "allocatable": amounts}});
                let done = api.patch_status(&name, params, &Patch::Apply(&status)).await;
                done.asking(|| format!("writing the capacity of node {name}")).map(drop)
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }
}
