//! A webhook that never answers for four nodes: all other objects are written as if it were not there.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant},
    objects::ensure,
    product::NAMESPACE,
    scenario::{instances_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::names::POOL_LABEL;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const WEBHOOK: &str = "e2e-slow-webhook";
/// Name of the webhook in the API server's metrics.
const HOOK: &str = "slow.example.com";
const SLOW: [&str; 4] = ["slow-1", "slow-2", "slow-3", "slow-4"];
/// A pool that does not exist.
const STALE: &str = "gone";
/// Arguments of `iptables` by which gpu-2 drops the packets to a port.
const DROP: [&str; 7] = ["INPUT", "-p", "tcp", "--dport", "9999", "-j", "DROP"];
/// A change writes gpu-1's objects at least so often, one after the other: its phases, the node's label, the statuses.
const WRITES_OF_A_CHANGE: usize = 5;

#[tokio::test]
async fn webhook_that_hangs_for_four_nodes_delays_no_other_object() {
    let world = World::enter().await.unwrap();
    world.on_node("gpu-2", &[&["iptables", "-I"], &DROP[..]].concat()).await.unwrap();
    let body = hang(&world).await;
    // also after a failure, for the next test
    remove_webhook(&world).await.unwrap();
    world.on_node("gpu-2", &[&["iptables", "-D"], &DROP[..]].concat()).await.unwrap();
    let nodes = [&["delete", "node", "--ignore-not-found"], &SLOW[..]].concat();
    let body = match body {
        Ok(()) => written(&world).await,
        failed => failed,
    };
    world.kubectl(&nodes).await.unwrap();
    world.keeping_evidence("slow-webhook", async { body }).await;
}

async fn hang(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), webhook(world).await?]).await?;
    // the operator removes the label, because no pool selects the node
    let node = |name: &str| {
        let labels = json!({POOL_LABEL: STALE});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    };
    world.set(&SLOW.map(node)).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g", "mig-3g"]), tenant("t", &[("mig-1g", 14)])]).await?;
    eventually("writes that the webhook has not answered", PATIENCE, || async {
        let failed = failed_calls(world).await?;
        Ok(if failed >= SLOW.len() { Ok(()) } else { Err(format!("{failed} calls")) })
    })
    .await?;
    tenant_ready(world, "t").await?;

    let before = failed_calls(world).await?;
    world.set(&[tenant("t", &[("mig-3g", 4)])]).await?;
    instances_ready(world, "3g.40gb", 4).await?;
    tenant_ready(world, "t").await?;
    let meanwhile = failed_calls(world).await? - before;
    // if each write of gpu-1 had waited for those of the other nodes, all of these would have failed as often
    let limit = SLOW.len() * WRITES_OF_A_CHANGE;
    ensure(meanwhile < limit, format!("{meanwhile} writes of other nodes have failed during one change of gpu-1"))?;
    for name in SLOW {
        let node = Api::<Node>::all(world.client.clone()).get(name).await?;
        ensure(node.labels().contains_key(POOL_LABEL), format!("{name} was written"))?;
    }
    Ok(())
}

/// A webhook for the operator's writes of the slow nodes, at an address that drops packets.
async fn webhook(world: &World) -> Result<Value> {
    let gpu_2 = Api::<Node>::all(world.client.clone()).get("gpu-2").await?;
    let addresses = gpu_2.status.and_then(|s| s.addresses).unwrap_or_default();
    let address = addresses.iter().find(|a| a.type_ == "InternalIP").map(|a| a.address.clone()).unwrap_or_default();
    let operator = format!("request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:gputenancy-operator'");
    let conditions = [("operator", operator), ("node", "object.metadata.name.startsWith('slow-')".to_owned())];
    let conditions = conditions.map(|(name, expression)| json!({"name": name, "expression": expression}));
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]});
    let hook = json!({
        "name": HOOK, "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "timeoutSeconds": 30,
        "clientConfig": {"url": format!("https://{address}:9999/")}, "rules": [rule], "matchConditions": conditions,
    });
    Ok(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK}, "webhooks": [hook],
    }))
}

async fn remove_webhook(world: &World) -> Result<()> {
    let delete = ["delete", "validatingwebhookconfiguration", WEBHOOK, "--ignore-not-found"];
    world.kubectl(&delete).await.map(drop)
}

/// Calls of the webhook that have ended; none of them was answered.
async fn failed_calls(world: &World) -> Result<usize> {
    let text = world.lab.apiserver_metrics().await?;
    let counts = text.lines().filter(|line| {
        line.starts_with("apiserver_admission_webhook_admission_duration_seconds_count{") && line.contains(HOOK)
    });
    Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum())
}

/// Without the webhook the four nodes are written.
async fn written(world: &World) -> Result<()> {
    eventually("the slow nodes without the label", PATIENCE, || async {
        let nodes = Api::<Node>::all(world.client.clone());
        for name in SLOW {
            if nodes.get(name).await?.labels().contains_key(POOL_LABEL) {
                return Ok(Err(name.to_owned()));
            }
        }
        Ok(Ok(()))
    })
    .await
}
