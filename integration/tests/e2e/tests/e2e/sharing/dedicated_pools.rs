//! A pool for one team: its profile has a resource name of its own, which no other team is granted, and the pool's taint keeps pods without
//! a GPU away. `samples/dedicated-pool.yaml` is such a pool.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    fixtures::{deployment, merged, mig_profile, pod_spec, pool, restricted_spec, tenant, workload},
    objects::{self, ensure},
    scenario::{pool_ready, refused_pod, tenant_ready, wait_for_devices},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
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

#[tokio::test]
async fn out_of_memory_storm_in_one_pool_leaves_no_event_in_the_other() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("out-of-memory-storm", storm(&world)).await;
}

/// All devices of one team are with pods that the kernel kills again and again, while the other team's pods run.
async fn storm(world: &World) -> Result<()> {
    let [(red, _), (blue, node)] = TEAMS;
    world.set(&TEAMS.map(|(team, node)| dedicated(team, node)).concat()).await?;
    for (team, _) in TEAMS {
        tenant_ready(world, team).await?;
        pool_ready(world, team).await?;
    }
    world.set(&[workload(blue, "calm", &resource(blue), 2)]).await?;
    let calm = world.pods_ready(blue, 2).await?;
    wait_for_devices(world, &[node], 2).await?;
    let concerns = [node, blue, &format!("{blue}-slice")];
    let before = events(world, blue, &concerns).await?;

    world.set(&[deployment(red, "storm", ALL.into(), &greedy(&resource(red)))]).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), red);
    eventually("every pod of the storm killed twice", PATIENCE, || async {
        let pods = pods.list(&ListParams::default()).await?.items;
        let kills: Vec<i32> = pods.iter().map(kills).collect();
        let enough = kills.len() == usize::try_from(ALL).unwrap_or_default() && kills.iter().all(|count| *count >= 2);
        Ok(if enough { Ok(()) } else { Err(format!("{kills:?}")) })
    })
    .await?;
    let new: Vec<_> = events(world, blue, &concerns).await?.difference(&before).cloned().collect();
    ensure(new.is_empty(), format!("the storm left events in the other pool: {new:?}"))?;
    ensure(objects::running(&world.client, blue).await? == calm, "a pod of the other pool was disturbed")?;
    tenant_ready(world, blue).await?;
    pool_ready(world, blue).await?;
    world.kubectl(&["delete", "deployment", "-n", red, "storm"]).await.map(drop)
}

/// A program that allocates four times the memory of its container.
fn greedy(resource: &str) -> Value {
    let container = json!({
        "name": "work", "image": "lab.local/busybox:1", "imagePullPolicy": "Never",
        "command": ["dd", "if=/dev/zero", "of=/dev/null", "bs=64M"],
        "resources": {"limits": {resource: "1", "cpu": "50m", "memory": "16Mi"}},
    });
    merged(restricted_spec(container), json!({"terminationGracePeriodSeconds": 1}))
}

/// How often the kernel has killed the container of a pod for its memory.
fn kills(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    let killed = statuses.filter(|s| {
        let ends =
            [s.state.as_ref(), s.last_state.as_ref()].into_iter().flatten().filter_map(|s| s.terminated.as_ref());
        ends.filter_map(|end| end.reason.as_deref()).any(|reason| reason == "OOMKilled")
    });
    killed.map(|s| s.restart_count).sum()
}

/// Events in a namespace or about one of these objects, with how often each has come.
async fn events(world: &World, namespace: &str, concerns: &[&str]) -> Result<BTreeSet<(String, i32, String)>> {
    let all = Api::<Event>::all(world.client.clone()).list(&ListParams::default()).await?;
    let about = |e: &Event| {
        let object = e.involved_object.name.as_deref().unwrap_or_default();
        e.involved_object.namespace.as_deref() == Some(namespace) || concerns.contains(&object)
    };
    let line = |e: Event| {
        let times = e.series.as_ref().and_then(|s| s.count).or(e.count).unwrap_or(1);
        (e.name_any(), times, format!("{}: {}", e.reason.unwrap_or_default(), e.message.unwrap_or_default()))
    };
    Ok(all.items.into_iter().filter(about).map(line).collect())
}
