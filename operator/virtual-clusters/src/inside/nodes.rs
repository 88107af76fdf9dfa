//! Shows the tenant's budget as capacity of the nodes inside.
//!
//! The open-source syncer makes a fake Node for each node of this cluster that has a pod of the virtual cluster, with 16 CPUs and no GPU.
//! [`capacities`] spreads the budget over them: each shows what pods there request, and one of them also what is left: the first by name with
//! pods that request the resource, or else the first of all. The sum is the budget, never the capacity of this cluster.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_cluster::write::{FieldManager, present};
use gputenancy_crds::{GpuTenant, names::is_gpu_resource};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::connect::{CallError, bounded, get};
use crate::names::MANAGER;

/// Most nodes that are shown and changed in one reconcile.
const MOST_NODES: usize = 500;

/// What is read of a node; the rest is skipped, because the team that runs the server chooses its size.
#[derive(Deserialize, Debug)]
struct SlimNode {
    metadata: Name,
    #[serde(default)]
    status: SlimStatus,
}

#[derive(Deserialize, Debug)]
struct Name {
    name: String,
}

#[derive(Deserialize, Debug, Default)]
struct SlimStatus {
    #[serde(default)]
    capacity: BTreeMap<String, String>,
    #[serde(default)]
    allocatable: BTreeMap<String, String>,
}

/// Nodes inside.
#[derive(Deserialize, Debug)]
pub struct Nodes {
    items: Vec<SlimNode>,
}

impl Nodes {
    /// Their number.
    pub fn count(&self) -> usize {
        self.items.len()
    }
}

/// Amounts by resource.
pub type Amounts = BTreeMap<String, i64>;

/// The tenant's budget by resource, in devices: of profiles that are granted.
pub fn budget(tenant: &GpuTenant) -> Amounts {
    let mut budget = Amounts::new();
    let granted = tenant.status.iter().flat_map(|s| &s.gpus).filter(|g| !g.resource_name.is_empty());
    for gpu in granted {
        *budget.entry(gpu.resource_name.clone()).or_default() += i64::from(gpu.budget.max(0));
    }
    budget
}

/// What synced pods request, by node of this cluster, whose name the node inside has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests(BTreeMap<String, Amounts>);

impl Requests {
    /// Of these synced pods.
    pub fn of(synced: &[Pod]) -> Self {
        Self(requested(synced))
    }

    /// The syncer has not made each node on which a pod requests a GPU.
    pub fn awaits_nodes(&self, inside: &Nodes) -> bool {
        let known: BTreeSet<&str> = inside.items.iter().map(|node| node.metadata.name.as_str()).collect();
        self.0.keys().any(|node| !known.contains(node.as_str()))
    }
}

/// What each of these nodes should show: what pods there request, and for each resource one node also the rest of the budget.
pub fn capacities<'a>(
    budget: &Amounts,
    nodes: impl IntoIterator<Item = &'a str>,
    requested: &BTreeMap<String, Amounts>,
) -> BTreeMap<&'a str, Amounts> {
    let mut rest = budget.clone();
    let mut shown: BTreeMap<&str, Amounts> = BTreeMap::new();
    for node in nodes {
        let there = requested.get(node);
        let mut amounts = Amounts::new();
        for (resource, left) in &mut rest {
            let used = there.and_then(|r| r.get(resource)).copied().unwrap_or(0).clamp(0, (*left).max(0));
            *left -= used;
            amounts.insert(resource.clone(), used);
        }
        shown.insert(node, amounts);
    }
    let first = shown.keys().next().copied();
    for (resource, left) in rest {
        // where pods run that request it, a pod that starts finds the rest on its own node
        let with_pods = shown.iter().find(|(_, amounts)| amounts.get(&resource).is_some_and(|n| *n > 0));
        let node = with_pods.map(|(node, _)| *node).or(first);
        if let Some(amounts) = node.and_then(|node| shown.get_mut(node)) {
            *amounts.entry(resource).or_default() += left;
        }
    }
    shown
}

/// The merge patch of a node's status that shows these amounts, and no other GPU resource; `None`: it shows them.
fn patch(node: &SlimNode, amounts: &Amounts) -> Option<Value> {
    let mut fields = Map::new();
    for (field, present) in [("capacity", &node.status.capacity), ("allocatable", &node.status.allocatable)] {
        let mut change = Map::new();
        for (resource, amount) in amounts {
            if present.get(resource) != Some(&amount.to_string()) {
                change.insert(resource.clone(), amount.to_string().into());
            }
        }
        for resource in present.keys().filter(|r| is_gpu_resource(r) && !amounts.contains_key(*r)) {
            change.insert(resource.clone(), Value::Null);
        }
        if !change.is_empty() {
            fields.insert(field.into(), Value::Object(change));
        }
    }
    (!fields.is_empty()).then(|| json!({"status": fields}))
}

/// GPU resources that synced pods request, by node of this cluster. Pods that have ended request nothing.
fn requested(pods: &[Pod]) -> BTreeMap<String, Amounts> {
    let mut all: BTreeMap<String, Amounts> = BTreeMap::new();
    for pod in pods {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else { continue };
        for (resource, amount) in gpus(pod) {
            *all.entry(node.to_owned()).or_default().entry(resource).or_default() += amount;
        }
    }
    all
}

/// GPU resources that a pod requests; none when it has ended.
fn gpus(pod: &Pod) -> Amounts {
    let mut all = Amounts::new();
    let ended = pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| p == "Succeeded" || p == "Failed");
    let Some(spec) = pod.spec.as_ref().filter(|_| !ended) else { return all };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    for container in spec.containers.iter().chain(sidecars) {
        let limits = container.resources.iter().filter_map(|r| r.limits.as_ref()).flatten();
        for (resource, amount) in limits.filter(|(r, _)| is_gpu_resource(r)) {
            *all.entry(resource.clone()).or_default() += amount.0.parse::<i64>().unwrap_or(0);
        }
    }
    all
}

/// The nodes inside.
pub async fn list(client: &Client) -> Result<Nodes, CallError> {
    let path = format!("/api/v1/nodes?limit={MOST_NODES}");
    get(client, "listing nodes of the virtual cluster", &path, None).await
}

/// Makes these nodes inside show the budget; returns their number.
pub async fn show(client: &Client, nodes: &Nodes, budget: &Amounts, requests: &Requests) -> Result<usize, CallError> {
    let nodes = &nodes.items;
    let shown = capacities(budget, nodes.iter().map(|n| n.metadata.name.as_str()), &requests.0);
    let api: Api<Node> = Api::all(client.clone());
    for node in nodes.iter().take(MOST_NODES) {
        let name = node.metadata.name.as_str();
        let Some(patch) = shown.get(name).and_then(|amounts| patch(node, amounts)) else { continue };
        let manager = FieldManager::new(MANAGER);
        // the syncer deletes nodes without pods
        let changed = async { present(manager.merge_status(&api, name, &patch).await) };
        bounded("changing a node of the virtual cluster", changed).await?;
    }
    Ok(nodes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(of: &[(&str, i64)]) -> Amounts {
        of.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect()
    }

    #[test]
    fn capacities_add_up_to_the_budget() {
        let budget = amounts(&[("nvidia.com/gpu", 4), ("nvidia.com/mig-1g.10gb", 2)]);
        let requested =
            [("b", 1), ("c", 9)].map(|(node, n)| (node.to_owned(), amounts(&[("nvidia.com/gpu", n)]))).into();
        let shown = capacities(&budget, ["a", "b", "c"], &requested);
        let total = |r: &str| shown.values().map(|a| a[r]).sum::<i64>();
        assert_eq!((total("nvidia.com/gpu"), total("nvidia.com/mig-1g.10gb")), (4, 2));
        assert_eq!((shown["b"]["nvidia.com/gpu"], shown["c"]["nvidia.com/gpu"]), (1, 3), "never above the budget");
        assert_eq!(shown["a"]["nvidia.com/mig-1g.10gb"], 2, "without pods the rest is on the first node");
        assert_eq!(capacities(&budget, ["a", "b"], &requested)["b"]["nvidia.com/gpu"], 4, "and with pods on theirs");
        assert_eq!(capacities(&budget, ["only"], &BTreeMap::new())["only"], budget);
        assert!(capacities(&budget, [], &requested).is_empty());
    }

    #[test]
    fn patch_sets_the_budget_and_removes_other_gpu_resources() {
        let node: SlimNode = serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {
            "capacity": {"cpu": "16", "nvidia.com/gpu": "8", "nvidia.com/old": "1"},
            "allocatable": {"cpu": "16", "nvidia.com/gpu": "2"},
        }}))
        .unwrap();
        let change = patch(&node, &amounts(&[("nvidia.com/gpu", 2)])).unwrap();
        assert_eq!(change, json!({"status": {"capacity": {"nvidia.com/gpu": "2", "nvidia.com/old": null}}}));
        let right: SlimNode = serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {
            "capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"},
        }}))
        .unwrap();
        assert_eq!(patch(&right, &amounts(&[("nvidia.com/gpu", 2)])), None);
    }

    fn pod(name: Option<&str>, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "spec": {"nodeName": name, "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn ended_pods_request_nothing() {
        let pods = [pod(Some("n"), "Running"), pod(Some("n"), "Succeeded")];
        assert_eq!(requested(&pods), BTreeMap::from([("n".to_owned(), amounts(&[("nvidia.com/gpu", 2)]))]));
    }

    #[test]
    fn node_of_a_pod_with_a_gpu_is_awaited_until_the_syncer_has_made_it() {
        let inside = |names: &[&str]| -> Nodes {
            let items: Vec<Value> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
            serde_json::from_value(json!({"items": items})).unwrap()
        };
        let mut dns = pod(Some("cpu-1"), "Running");
        dns.spec.as_mut().unwrap().containers.clear();
        let requests = Requests::of(&[dns, pod(Some("gpu-1"), "Running"), pod(Some("gpu-2"), "Succeeded")]);
        assert!(requests.awaits_nodes(&inside(&["cpu-1"])));
        assert!(!requests.awaits_nodes(&inside(&["gpu-1"])), "other nodes show nothing that a pod requests");
        let shown = capacities(&amounts(&[("nvidia.com/gpu", 2)]), ["cpu-1", "gpu-1"], &requests.0);
        assert_eq!((shown["cpu-1"]["nvidia.com/gpu"], shown["gpu-1"]["nvidia.com/gpu"]), (0, 2));
    }
}
