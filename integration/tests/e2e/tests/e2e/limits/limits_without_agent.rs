//! Limits hold while neither agent nor operator run, and agents that restart under a running program continue its counts.

use e2e::{
    Error, Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::ensure,
    product,
    scenario::{pod_events, tenant_ready},
    wait::{PATIENCE, eventually},
};
use kube::ResourceExt;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const TEAM: &str = "t";
/// Blocks of 64 MiB that are left for a second program: (81,920 - 512) / 4 - 640 MiB, less the first one's 100 and a context.
const LEFT: &str = "granted=198 code=2";

#[tokio::test]
async fn limits_hold_while_agent_and_operator_are_down_and_after_restarts() {
    let world = World::enter().await.unwrap();
    world
        .keeping_evidence("limits-without-agent", async {
            let outcome = down_and_up(&world).await;
            // the tests that follow need both
            started(&world).await.and(outcome)
        })
        .await;
}

async fn down_and_up(world: &World) -> Result<()> {
    let turns = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {"device": {"timeSlice": {"replicas": 4}}, "support": {"expected": "neighbours", "incident": "less memory"}},
    });
    let mut team = tenant(TEAM, &[("turns", 1)]);
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(team["spec"].take(), sharing);
    world.set(&[turns, pool("p", NODE, &["turns"]), team]).await?;
    tenant_ready(world, TEAM).await?;
    world.set(&[program()]).await?;
    eventually("the limit", PATIENCE, || async {
        let seen = second(world).await.unwrap_or_else(|error| error.to_string());
        Ok(if seen.starts_with(LEFT) { Ok(()) } else { Err(seen) })
    })
    .await?;

    for _ in 0..3 {
        let agents = world.agents_on(NODE).await?;
        let agent = agents.first().map(ResourceExt::name_any).ok_or_else(|| Error::Wrong("no agent".into()))?;
        world.kubectl(&["delete", "pod", "-n", product::NAMESPACE, &agent, "--wait=false"]).await?;
        held(world, "while the agent restarts").await?;
        replaced(world, &agent).await?;
        held(world, "after a restart of the agent").await?;
    }

    operator(world, 0).await?;
    agents(world, json!({"test": "none"})).await?;
    eventually("no agent", PATIENCE, || async {
        let agents = world.agents_on(NODE).await?;
        Ok(if agents.is_empty() { Ok(()) } else { Err(format!("{} agents", agents.len())) })
    })
    .await?;
    held(world, "while both are down").await?;

    started(world).await?;
    // the new agent continues the counts of the program, and of the context of the latest one that ended, until another one begins
    let counted = format!("{}", (6400 + 2 * 640_u64) << 20);
    eventually("the share in the agent's metrics", PATIENCE, || async {
        let agents = world.agents_on(NODE).await?;
        let Some(agent) = agents.first().map(ResourceExt::name_any) else { return Ok(Err("no agent".to_owned())) };
        let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
        let text = world.kubectl(&["get", "--raw", &path]).await.unwrap_or_else(|error| error.to_string());
        let line = text.lines().find(|line| line.starts_with("gputenancy_agent_share_memory_counted_bytes{"));
        let continues = line.is_some_and(|line| line.ends_with(&counted));
        Ok(if continues { Ok(()) } else { Err(format!("{line:?}, not {counted}")) })
    })
    .await?;
    let bypasses = pod_events(world, TEAM, "MemoryLimitBypassed").await?;
    ensure(bypasses.is_empty(), format!("{bypasses:?}"))
}

/// Fails unless a second program of the container gets what is left, and no more.
async fn held(world: &World, when: &str) -> Result<()> {
    let seen = second(world).await?;
    ensure(seen.starts_with(LEFT), format!("{when}: {seen}"))
}

/// What a second program of the container gets.
async fn second(world: &World) -> Result<String> {
    world
        .kubectl(&["exec", "-n", TEAM, "deployment/work", "--", "/usr/bin/cuda-work", "allocate", "--count", "400"])
        .await
}

/// Waits until another agent is ready on the node.
async fn replaced(world: &World, before: &str) -> Result<()> {
    eventually("a new agent", PATIENCE, || async {
        let agents = world.agents_on(NODE).await?;
        let new = agents.iter().any(|agent| agent.name_any() != before && e2e::objects::is_ready(agent));
        Ok(if new {
            Ok(())
        } else {
            Err(format!("{:?}", agents.iter().map(ResourceExt::name_any).collect::<Vec<_>>()))
        })
    })
    .await
}

/// Starts agents and operator, and waits for them.
async fn started(world: &World) -> Result<()> {
    agents(world, json!({"test": null})).await?;
    operator(world, 2).await?;
    replaced(world, "").await
}

async fn operator(world: &World, replicas: u32) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    world.kubectl(&["scale", "-n", product::NAMESPACE, "deployment/gputenancy-operator", &replicas]).await.map(drop)
}

/// Changes the labels of nodes that agents run on.
async fn agents(world: &World, labels: Value) -> Result<()> {
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": labels}}}}).to_string();
    let patch = ["patch", "-n", product::NAMESPACE, "daemonset/gputenancy-agent", "--type=merge", "-p", &patch];
    world.kubectl(&patch).await.map(drop)
}

/// A Deployment of one pod that holds 6,400 MiB.
fn program() -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/usr/bin/cuda-work", "allocate", "--count", "100", "--all", "--hold"],
        "resources": {"limits": {"nvidia.com/gpu.shared": "1"}},
    }));
    deployment(TEAM, "work", 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}
