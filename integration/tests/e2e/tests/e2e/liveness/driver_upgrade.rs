//! The agent as a client of the GPU Operator: it leaves a node for a driver upgrade, for short or for long, and returns.

use std::collections::BTreeMap;

use e2e::{
    Result, World,
    departure::{CLIENT_LABEL, agent_leaves, agent_returns, install_as_before, install_as_client},
    fixtures::{mig_profile, no_eviction, pool, tenant, workload},
    interrupt,
    objects::{self, PodIdentity, ensure, set_guarantee},
    product,
    scenario::{NODES, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode, GpuPool, condition, reasons};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

const SLICE: &str = "nvidia.com/mig-1g.10gb";
/// A little longer than the time for which the pool does not name a silent agent.
const NAMED: SignedDuration = SignedDuration::from_secs(61);
/// A little longer than the time for which a change on a node with a silent agent counts for `maxUnavailable`.
const NOT_COUNTED: SignedDuration = SignedDuration::from_secs(301);

#[tokio::test]
async fn agent_leaves_for_driver_upgrade_and_returns() {
    let world = World::enter().await.unwrap();
    let body = leave_and_return(&world).await;
    // also after a failure
    install_as_before(&world).await.unwrap();
    world.keeping_evidence("gpu-client", async { body }).await;
}

async fn leave_and_return(world: &World) -> Result<()> {
    install_as_client(world).await?;
    world
        .set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 2)])])
        .await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("t", "w", SLICE, 1)]).await?;
    let before = world.pods_ready("t", 1).await?;

    agent_leaves(world, "gpu-1").await?;
    let left = objects::allocatable(&world.client, "gpu-1", SLICE).await?;
    ensure(left <= 1, format!("allocatable without an agent: {left}"))?;
    ensure(objects::running(&world.client, "t").await? == before, "a pod was disturbed while the agent left")?;

    agent_returns(world, "gpu-1").await?;
    eventually("both devices to be allocatable again", PATIENCE, || async {
        let offered = objects::allocatable(&world.client, "gpu-1", SLICE).await?;
        Ok(if offered == 2 { Ok(()) } else { Err(offered.to_string()) })
    })
    .await?;
    ensure(objects::running(&world.client, "t").await? == before, "a pod was disturbed when the agent returned")
}

#[tokio::test]
async fn pool_changes_other_nodes_while_an_agent_is_away_and_all_end_when_it_returns() {
    let world = World::enter().await.unwrap();
    let body = Box::pin(stay_away(&world)).await;
    // also after a failure
    install_as_before(&world).await.unwrap();
    world.keeping_evidence("agent-away", async { body }).await;
}

/// A pool of two nodes that changes one GPU at a time. The agent of the node that changes stays away for longer than its change may keep
/// the others waiting: the time at which it stopped is set back.
async fn stay_away(world: &World) -> Result<()> {
    install_as_client(world).await?;
    let mut both = pool("p", "", &["mig-3g", "mig-7g"]);
    let hosts = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": NODES}]);
    both["spec"]["nodeSelector"] = json!({"matchExpressions": hosts});
    both["spec"]["disruption"] = json!({"maxUnavailable": 1});
    world.set(&[mig_profile("mig-3g", "3g.40gb"), mig_profile("mig-7g", "7g.80gb"), both]).await?;
    world.set(&[tenant("small", &[("mig-3g", 8)]), tenant("big", &[("mig-7g", 0)])]).await?;
    tenant_ready(world, "small").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("small", "w", "nvidia.com/mig-3g.40gb", 8), no_eviction("small", "stay")]).await?;
    world.pods_ready("small", 8).await?;
    set_guarantee(&world.client, "small", "mig-3g", 2).await?;
    set_guarantee(&world.client, "big", "mig-7g", 1).await?;
    let away = eventually("a change in phase Evicting", PATIENCE, || evicting(world)).await?;
    let before = pods_on(world, away).await?;
    agent_leaves(world, away).await?;
    let other = if away == NODES[0] { NODES[1] } else { NODES[0] };

    stopped_before(world, away, NAMED).await?;
    world.condition_becomes::<GpuPool>("p", "AgentSilent", "True", "Silent", &[away]).await?;
    event(world, "AgentSilent", away).await?;
    let phases = interrupt::phases(world, other).await?;
    ensure(
        phases.is_empty(),
        format!("the change on the silent node keeps the pool's only slot, and {other} has {phases:?}"),
    )?;
    stopped_before(world, away, NOT_COUNTED).await?;
    eventually("a change on the other node", PATIENCE, || async {
        let phases = interrupt::phases(world, other).await?;
        Ok(if phases.contains(&ChangePhase::Evicting) { Ok(()) } else { Err(format!("{phases:?}")) })
    })
    .await?;
    world.kubectl(&["delete", "pdb", "-n", "small", "stay"]).await?;
    eventually("a 7g.80gb instance on the other node", PATIENCE, || async {
        let found = objects::layouts(&objects::gpu_node(&world.client, other).await?);
        let created = found.iter().flatten().any(|i| i.ends_with(":7g.80gb"));
        Ok(if created { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await?;
    tenant_ready(world, "big").await?;
    ensure(pods_on(world, away).await? == before, "a pod on the silent node was disturbed")?;

    agent_returns(world, away).await?;
    world.condition_becomes::<GpuPool>("p", "AgentSilent", "False", "Reporting", &[]).await?;
    event(
        world,
        "AgentReturned",
        "every agent that has reported before still reports, or is silent for less than a minute",
    )
    .await?;
    // `small` keeps more pods than its lowered guarantee, so it is not Ready
    pool_ready(world, "p").await?;
    tenant_ready(world, "big").await.map(drop)
}

/// Sets the time at which the agent of a node has stopped, as its `GpuNode` has it, to this time before now.
async fn stopped_before(world: &World, node: &str, time: SignedDuration) -> Result<()> {
    let api = Api::<GpuNode>::all(world.client.clone());
    eventually(&format!("the agent of {node} to report that it stopped"), PATIENCE, || async {
        let mut conditions = api.get(node).await?.status.unwrap_or_default().conditions;
        let stopped = |c: &&mut Condition| c.type_ == condition::READY && reasons::AGENT_STOPPED == c.reason.as_str();
        let Some(stopped) = conditions.iter_mut().find(stopped) else { return Ok(Err(format!("{conditions:?}"))) };
        stopped.last_transition_time = Time(Timestamp::now() - time);
        let earlier = Patch::Merge(json!({"status": {"conditions": conditions}}));
        api.patch_status(node, &PatchParams::default(), &earlier).await.map(drop)?;
        Ok(Ok(()))
    })
    .await
}

/// The node with a change that evicts pods.
async fn evicting(world: &World) -> Result<std::result::Result<&'static str, String>> {
    let mut seen = Vec::new();
    for node in NODES {
        let phases = interrupt::phases(world, node).await?;
        if phases.contains(&ChangePhase::Evicting) {
            return Ok(Ok(node));
        }
        seen.push(format!("{node}: {phases:?}"));
    }
    Ok(Err(seen.join(", ")))
}

async fn pods_on(world: &World, node: &str) -> Result<BTreeMap<String, PodIdentity>> {
    let mut pods = objects::running(&world.client, "small").await?;
    pods.retain(|_, pod| pod.node == node);
    Ok(pods)
}

/// Waits for an event of the pool with these words.
async fn event(world: &World, reason: &str, words: &str) -> Result<()> {
    let select = format!("reason={reason},involvedObject.name=p");
    let columns = "custom-columns=MESSAGE:.message";
    let get = ["get", "events", "-A", "--field-selector", &select, "--no-headers", "-o", columns];
    eventually(&format!("event {reason} of the pool with {words}"), PATIENCE, || async {
        let found = world.kubectl(&get).await?;
        Ok(if found.contains(words) { Ok(()) } else { Err(found) })
    })
    .await
}

#[tokio::test]
async fn gpu_operator_client_auto_requires_cluster_policy_and_node_label() {
    let world = World::enter().await.unwrap();
    let body = auto(&world).await;
    world.kubectl(&["delete", "crd", POLICIES, "--ignore-not-found"]).await.unwrap();
    world.kubectl(&["label", "node", "gpu-2", &format!("{CLIENT_LABEL}-")]).await.unwrap();
    world.keeping_evidence("gpu-client-auto", async { body }).await;
}

const POLICIES: &str = "clusterpolicies.nvidia.com";

async fn auto(world: &World) -> Result<()> {
    ensure(!is_client(world).await?, "client without the CRD")?;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let names = json!({"plural": "clusterpolicies", "singular": "clusterpolicy", "kind": "ClusterPolicy", "listKind": "ClusterPolicyList"});
    let spec = json!({"group": "nvidia.com", "scope": "Cluster", "names": names, "versions": [version]});
    let kind = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": POLICIES}, "spec": spec});
    world.set(&[kind]).await?;
    world.kubectl(&["wait", "--for=condition=Established", "crd", POLICIES, "--timeout=60s"]).await?;
    let label = format!("{CLIENT_LABEL}=true");
    world.kubectl(&["label", "--overwrite", "node", "gpu-2", &label]).await?;
    ensure(!is_client(world).await?, "client without a ClusterPolicy")?;
    world.apply("{apiVersion: nvidia.com/v1, kind: ClusterPolicy, metadata: {name: cluster-policy}, spec: {}}").await?;
    ensure(is_client(world).await?, "no client with ClusterPolicy and node label")?;
    world.kubectl(&["label", "node", "gpu-2", &format!("{CLIENT_LABEL}-")]).await?;
    ensure(!is_client(world).await?, "client without the node label, as with an older GPU Operator")
}

/// Does helm render the agent as a client on this cluster, without simulated GPUs?
async fn is_client(world: &World) -> Result<bool> {
    let chart = product::root().join("helm/gputenancy").display().to_string();
    let install = ["template", product::RELEASE, &chart, "--namespace", product::NAMESPACE, "--dry-run=server"];
    let text = world.lab.helm(&[&install[..], &["--show-only", "templates/agent.yaml"]].concat()).await?;
    Ok(text.contains(&format!("{CLIENT_LABEL}: \"true\"")))
}
