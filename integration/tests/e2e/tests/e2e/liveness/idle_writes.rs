//! At rest the product writes nothing, by the API server's request metrics, and logs nothing.

use std::{collections::BTreeMap, time::Duration};

use e2e::{
    Error, Result, World,
    objects::ensure,
    product,
    requests::writes,
    scenario,
    wait::{PATIENCE, eventually, rounds},
};
use gputenancy_crds::{GpuPool, GpuTenant, names};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

type Counts = BTreeMap<String, f64>;

/// Time without a write after which the programs are at rest: longer than the agent's interval of reports.
const REST: Duration = Duration::from_secs(6);
/// An NVML call of a full scan, which the agent makes every 30 seconds at rest.
const FULL_SCAN: &str = "gputenancy_agent_nvml_call_seconds_count{call=\"nvmlDeviceGetVirtualizationMode\"}";

/// The counts that have grown, except by this many writes of each of the test's resources.
fn grown(before: &Counts, after: &Counts, own: &BTreeMap<&str, f64>) -> Vec<String> {
    let grown = after.iter().map(|(key, count)| (key, count - before.get(key).copied().unwrap_or(0.0)));
    grown
        // kubelet writes statuses of nodes and pods; the product's own are checked by field manager
        .filter(|(key, _)| !(key.contains("subresource=\"status\"") && key.contains("group=\"\"")))
        .filter(|(key, more)| {
            let is_own = |resource: &str| {
                [&format!("resource=\"{resource}\""), "subresource=\"\"", "verb=\"PATCH\"", "code=\"200\""]
                    .iter()
                    .all(|part| key.contains(*part))
            };
            *more > own.iter().find(|(resource, _)| is_own(resource)).map_or(0.0, |(_, count)| *count)
        })
        .map(|(key, more)| format!("{key} +{more}"))
        .collect()
}

/// Times of the last write of each of the product's field managers to each node.
async fn node_writes(world: &World) -> Result<Vec<String>> {
    let nodes = Api::<Node>::all(world.client.clone()).list(&ListParams::default()).await?;
    let of = |node: &Node| {
        let ours =
            node.managed_fields().iter().filter(|f| f.manager.as_deref().is_some_and(|m| m.starts_with("gputenancy")));
        let line =
            |f: &ManagedFieldsEntry| format!("{} {:?} {:?} {:?}", node.name_any(), f.manager, f.subresource, f.time);
        ours.map(line).collect::<Vec<_>>()
    };
    Ok(nodes.iter().flat_map(of).collect())
}

/// Waits until nothing is written for a moment.
async fn at_rest(world: &World) -> Result<()> {
    eventually("no writes for a moment", PATIENCE, || async {
        let before = writes(world).await?;
        tokio::time::sleep(REST).await;
        let more = grown(&before, &writes(world).await?, &BTreeMap::new());
        Ok(if more.is_empty() { Ok(()) } else { Err(more.join("; ")) })
    })
    .await
}

/// Waits until no Node has a resource without devices that its agent removes: those that earlier tests left go after five minutes, which is
/// logged and written. Those that another device plugin left stay for ever.
async fn without_leftovers(world: &World) -> Result<()> {
    eventually("no resource without devices on any node", PATIENCE * 2, || async {
        let nodes = Api::<Node>::all(world.client.clone()).list(&ListParams::default()).await?;
        let of = |node: &Node| {
            let amounts = node.status.iter().flat_map(|s| s.capacity.iter().flatten());
            let ours = amounts.filter(|(name, _)| name.starts_with("gputenancy.io/") || by_agent(node, name));
            ours.filter(|(_, amount)| amount.0 == "0").map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let left: Vec<String> = nodes.iter().flat_map(of).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
}

/// Was the agent the last to change this entry of the node's allocatable?
fn by_agent(node: &Node, resource: &str) -> bool {
    let entries = node.metadata.managed_fields.iter().flatten();
    entries.filter(|entry| entry.manager.as_deref() == Some(names::AGENT_MANAGER)).any(|entry| {
        let allocatable = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:status")?.get("f:allocatable"));
        allocatable.is_some_and(|fields| fields.get(format!("f:{resource}")).is_some())
    })
}

/// Sum of the values of a metric of a pod, by the beginning of its lines.
async fn metric(world: &World, pod: &str, port: u16, beginning: &str) -> Result<f64> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy/metrics", product::NAMESPACE);
    let text = world.kubectl(&["get", "--raw", &path]).await?;
    let lines = text.lines().filter_map(|line| line.strip_prefix(beginning));
    Ok(lines.filter_map(|rest| rest.trim().parse::<f64>().ok()).sum())
}

/// What the programs have done so far: reconciles of tenants, decisions about the fleet, and full scans by each agent.
async fn work(world: &World) -> Result<Vec<f64>> {
    let leases = Api::<Lease>::namespaced(world.client.clone(), product::NAMESPACE);
    let leader = leases.get("gputenancy-operator").await?.spec.and_then(|s| s.holder_identity).unwrap_or_default();
    let mut done = Vec::new();
    for controller in ["tenant", "fleet"] {
        let reconciles = format!("gputenancy_operator_reconciles_total{{controller=\"{controller}\"}}");
        done.push(metric(world, &leader, 8080, &reconciles).await?);
    }
    for node in scenario::NODES {
        let agents = world.agents_on(node).await?;
        let agent =
            agents.first().map(ResourceExt::name_any).ok_or_else(|| Error::Wrong(format!("no agent on {node}")))?;
        done.push(metric(world, &agent, 9410, FULL_SCAN).await?);
    }
    Ok(done)
}

/// Lines of operators and agents since this time.
async fn logged(world: &World, since: Timestamp) -> Result<Vec<String>> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE).list(&ListParams::default()).await?;
    let (since, mut lines) = (format!("--since-time={since}"), Vec::new());
    for pod in pods.iter().map(ResourceExt::name_any).filter(|n| n.contains("operator") || n.contains("agent")) {
        let text = world.kubectl(&["logs", "-n", product::NAMESPACE, &pod, "--all-containers", &since]).await?;
        lines.extend(text.lines().map(|line| format!("{pod}: {line}")));
    }
    Ok(lines)
}

/// Annotates all objects of a type, and returns how many there are.
async fn touch<K: e2e::objects::ClusterObject>(world: &World, round: u32) -> Result<f64> {
    let api = Api::<K>::all(world.client.clone());
    let note = Patch::Merge(json!({"metadata": {"annotations": {"example.com/touch": round.to_string()}}}));
    let objects = api.list(&ListParams::default()).await?.items;
    for object in &objects {
        api.patch(&object.name_any(), &PatchParams::default(), &note).await?;
    }
    Ok(u32::try_from(objects.len()).unwrap_or_default().into())
}

/// Has the fleet decided again: whether a pod may be evicted is one of the things that it decides by, unlike annotations of pools.
async fn decide_again(world: &World, round: u32) -> Result<f64> {
    let pods = Api::<Pod>::all(world.client.clone());
    let pod = pods.list(&ListParams::default()).await?.items.into_iter().find(|pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref()).any(|l| l.keys().any(|k| k.contains("mig-")))
    });
    let pod = pod.ok_or_else(|| Error::Wrong("no pod has a device".into()))?;
    let stays = round.is_multiple_of(2).to_string();
    let note = Patch::Merge(json!({"metadata": {"annotations": {names::DO_NOT_EVICT: stays}}}));
    let here = Api::<Pod>::namespaced(world.client.clone(), &pod.namespace().unwrap_or_default());
    here.patch(&pod.name_any(), &PatchParams::default(), &note).await?;
    Ok(1.0)
}

/// Has every tenant and the fleet reconciled once more, by annotations, and waits for that and for a full scan by each agent. Returns the number of
/// annotated objects.
async fn repeat_work(world: &World, round: u32) -> Result<[(&'static str, f64); 3]> {
    let before = work(world).await?;
    let touched = [
        ("gputenants", touch::<GpuTenant>(world, round).await?),
        ("gpupools", touch::<GpuPool>(world, round).await?),
        ("pods", decide_again(world, round).await?),
    ];
    eventually("every tenant and the fleet reconciled, and all GPUs scanned", PATIENCE, || async {
        let now = work(world).await?;
        let wanted = [touched[0].1, 1.0].into_iter().chain(scenario::NODES.map(|_| 1.0));
        let done = now.iter().zip(&before).zip(wanted).all(|((now, before), more)| *now >= before + more);
        Ok(if done { Ok(()) } else { Err(format!("{before:?} -> {now:?}")) })
    })
    .await?;
    Ok(touched)
}

/// The programs repeat their work and write nothing. What a timer of more than 30 seconds would write is found by several rounds
/// (`GPUTENANCY_ROUNDS`): four take two minutes.
#[tokio::test]
async fn programs_at_rest_write_nothing() {
    let world = World::enter().await.unwrap();
    let body = async {
        scenario::onboard(&world).await?;
        scenario::start_pods(&world).await?;
        without_leftovers(&world).await?;
        at_rest(&world).await?;
        let marks = node_writes(&world).await?;
        let (before, since) = (writes(&world).await?, Timestamp::now());
        let mut own = BTreeMap::new();
        for round in 0..rounds() {
            for (resource, count) in repeat_work(&world, round).await? {
                *own.entry(resource).or_default() += count;
            }
        }
        let more = grown(&before, &writes(&world).await?, &own);
        ensure(more.is_empty(), format!("writes at rest: {}", more.join("; ")))?;
        ensure(!before.is_empty(), "the API server counts writes")?;
        let lines = logged(&world, since).await?;
        ensure(lines.is_empty(), format!("states are logged at rest, and not changes alone: {}", lines.join("\n")))?;
        let now = node_writes(&world).await?;
        ensure(
            now == marks && !now.is_empty(),
            format!("writes of the product's field managers to nodes: {marks:?} -> {now:?}"),
        )
    };
    world.keeping_evidence("quiet", body).await;
}
