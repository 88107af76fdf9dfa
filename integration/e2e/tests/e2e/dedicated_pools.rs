//! A pool for one team: its profile has a resource name of its own, which no other team is granted, and the pool's taint keeps pods without
//! a GPU away. `samples/dedicated-pool.yaml` is such a pool.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    fixtures::{mig_profile, pod_spec, pool, tenant, workload},
    objects::ensure,
    scenario::{pool_ready, refused_pod, tenant_ready},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

/// Instances of `1g.10gb` on the two GPUs of a node.
const ALL: i32 = 14;
/// Each team with the node of its pool.
const TEAMS: [(&str, &str); 2] = [("red", "gpu-1"), ("blue", "gpu-2")];

fn resource(team: &str) -> String {
    format!("gputenancy.io/{team}-slice")
}

/// Profile, pool and tenant of a team.
fn dedicated(team: &str, node: &str) -> [Value; 3] {
    let profile = format!("{team}-slice");
    let mut slice = mig_profile(&profile, "1g.10gb");
    slice["spec"]["resourceName"] = resource(team).into();
    let mut nodes = pool(team, node, &[&profile]);
    nodes["spec"]["taint"] = json!({"key": "nvidia.com/gpu"});
    [slice, nodes, tenant(team, &[(&profile, ALL)])]
}

#[tokio::test]
async fn pods_of_two_teams_with_a_pool_each_share_no_node() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("dedicated-pools", disjoint(&world)).await;
}

async fn disjoint(world: &World) -> Result<()> {
    world.set(&TEAMS.map(|(team, node)| dedicated(team, node)).concat()).await?;
    for (team, _) in TEAMS {
        tenant_ready(world, team).await?;
        pool_ready(world, team).await?;
        world.set(&[workload(team, "all", &resource(team), ALL)]).await?;
    }
    for (team, node) in TEAMS {
        let pods = world.pods_ready(team, usize::try_from(ALL).unwrap_or_default()).await?;
        let nodes: BTreeSet<&str> = pods.values().map(|pod| pod.node.as_str()).collect();
        ensure(nodes == [node].into(), format!("pods of {team} on {nodes:?}"))?;
    }
    // the other team's resource is refused on every node
    let refusal = refused_pod(world, "red", &resource("blue")).await?;
    ensure(refusal.contains(&resource("blue")), refusal)?;
    without_gpu(world).await
}

/// A pod without a GPU that selects the other team's node stays Pending for the taint.
async fn without_gpu(world: &World) -> Result<()> {
    let mut spec = pod_spec("cpu");
    spec["containers"][0]["resources"] = json!({"limits": {"cpu": "10m", "memory": "32Mi"}});
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": "gpu-2"});
    let plain =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": "red"}, "spec": spec});
    world.set(&[plain]).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), "red");
    eventually("the scheduler to keep a pod without a GPU away", PATIENCE, || async {
        let conditions = pods.get("plain").await?.status.and_then(|s| s.conditions).unwrap_or_default();
        let messages: Vec<String> = conditions.into_iter().filter_map(|c| c.message).collect();
        Ok(if messages.iter().any(|m| m.contains("untolerated taint")) { Ok(()) } else { Err(messages.join("; ")) })
    })
    .await
}
