//! The agent's audit of shares: warnings before the memory of a share is used up, and programs that go past its limit.

use e2e::{
    Error, Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::{self, ensure},
    product,
    scenario::{pod_events, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{Bypass, ShareState};
use kube::ResourceExt;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const SHARED: &str = "nvidia.com/gpu.shared";
const TEAM: &str = "t";

#[tokio::test]
async fn teams_are_warned_at_80_and_90_percent_and_a_bypass_is_found_and_evicted() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("share-audit", async { three_programs(&world).await }).await;
}

async fn three_programs(world: &World) -> Result<()> {
    let turns = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {"device": {"timeSlice": {"replicas": 4}}, "support": {"expected": "neighbours", "incident": "less memory"}},
    });
    world.set(&[turns, pool("p", NODE, &["turns"])]).await?;
    let mut team = tenant(TEAM, &[("turns", 4)]);
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(team["spec"].take(), sharing);
    world.set(&[team]).await?;
    tenant_ready(world, TEAM).await?;

    without_cuda(world).await?;

    // of 19,712 MiB: 85 and 95 %; and more than the limit through the driver's own library
    let driver = ["--library", "/run/gputenancy/driver/libcuda.so.1", "allocate", "--count", "400", "--hold"];
    world.set(&[program("high", &["allocate", "--count", "263", "--hold"])]).await?;
    world.set(&[program("full", &["allocate", "--count", "294", "--hold"])]).await?;
    world.set(&[program("greedy", &driver)]).await?;
    event(world, TEAM, "ShareMemoryHigh", "high-", &["16832 of 19712 MiB (85 %)", "at least 80 %"]).await?;
    event(world, TEAM, "ShareMemoryHigh", "full-", &["18816 of 19712 MiB (95 %)", "at least 90 %"]).await?;
    event(world, TEAM, "MemoryLimitBypassed", "greedy-", &["25900 MiB", "counts 0 MiB"]).await?;
    event(world, "default", "MemoryLimitBypassed", NODE, &["of pod t/greedy-", "25900 MiB"]).await?;
    let (share, bypass) = bypassed(world).await?;
    let owner = share.device.owner.map(|owner| owner.pod).unwrap_or_default();
    ensure(owner.starts_with("greedy-"), format!("the share of {owner}"))?;
    ensure(
        !bypass.without_cuda && bypass.used.mib() == Ok(25_900) && bypass.limit.mib() == Ok(20_352),
        format!("{bypass:?}"),
    )?;
    // the others keep to their limits, and each threshold is reported once
    let bypasses = pod_events(world, TEAM, "MemoryLimitBypassed").await?;
    let mut others = bypasses.iter().filter(|note| !note.starts_with("drawing-"));
    ensure(others.all(|note| note.starts_with("greedy-")), format!("{bypasses:?}"))?;
    let warnings = pod_events(world, TEAM, "ShareMemoryHigh").await?;
    let once = |object: &str, threshold: &str| {
        warnings.iter().filter(|note| note.starts_with(object) && note.contains(threshold)).count() == 1
    };
    ensure(once("high-", "at least") && once("full-", "at least 90 %"), format!("{warnings:?}"))?;
    metrics(world).await?;
    evicted(world, &bypass).await
}

/// A program without CUDA that takes more memory than its share has: no limit counts it, and people read that it is no wrong library.
async fn without_cuda(world: &World) -> Result<()> {
    let mut drawing = program("drawing", &[]);
    drawing["spec"]["template"]["spec"]["containers"][0]["command"] =
        json!(["/usr/bin/gpu-work", "hold", "--memory", "25Gi"]);
    world.set(&[drawing]).await?;
    event(world, TEAM, "MemoryLimitBypassed", "drawing-", &["has not loaded libcuda.so", "25600 MiB"]).await?;
    event(world, "default", "MemoryLimitBypassed", NODE, &["of pod t/drawing-", "has not loaded libcuda.so"]).await?;
    let (_, bypass) = bypassed(world).await?;
    ensure(bypass.without_cuda, format!("{bypass:?}"))?;
    world.kubectl(&["delete", "deployment", "-n", TEAM, "drawing"]).await?;
    world.pods_ready(TEAM, 0).await.map(drop)
}

/// The metrics of the node's agent show the shares and the bypass.
async fn metrics(world: &World) -> Result<()> {
    let agents = world.agents_on(NODE).await?;
    let agent = agents.first().map(ResourceExt::name_any).ok_or_else(|| Error::Wrong("no agent".into()))?;
    let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
    let value = |text: &str, metric: &str, pod: &str| {
        let of_pod = |line: &&str| line.starts_with(&format!("{metric}{{")) && line.contains(&format!("pod=\"{pod}-"));
        text.lines().find(of_pod).and_then(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
    };
    let mib = |mib: u64| Some(mib << 20);
    let expected = [
        ("gputenancy_agent_share_memory_limit_bytes", "high", mib(19_712)),
        // with the context, which is counted with 640 MiB and has 300
        ("gputenancy_agent_share_memory_counted_bytes", "high", mib(16_832 + 640)),
        ("gputenancy_agent_share_memory_used_bytes", "high", mib(16_832 + 300)),
        ("gputenancy_agent_share_memory_used_bytes", "greedy", mib(25_900)),
        ("gputenancy_agent_share_refused_allocations", "high", Some(0)),
        ("gputenancy_agent_share_bypassed", "high", Some(0)),
        ("gputenancy_agent_share_bypassed", "greedy", Some(1)),
        ("gputenancy_agent_processes", "full", Some(1)),
    ];
    eventually("the shares in the agent's metrics", PATIENCE, || async {
        let text = world.kubectl(&["get", "--raw", &path]).await?;
        let differs = expected.iter().find(|(metric, pod, wanted)| value(&text, metric, pod) != *wanted);
        // the agent may have counted those of earlier tests
        let total = text.lines().find_map(|line| line.strip_prefix("gputenancy_agent_bypasses_total "));
        let counted = total.and_then(|n| n.trim().parse::<u64>().ok()).is_some_and(|n| n >= 1);
        Ok(match differs {
            None if counted => Ok(()),
            _ => Err(format!("{differs:?}, counted: {counted}")),
        })
    })
    .await
}

/// With `onBypass: Evict` the pod is evicted, although it is annotated, and with the numbers as the reason.
async fn evicted(world: &World, bypass: &Bypass) -> Result<()> {
    let pods = world.kubectl(&["get", "pods", "-n", TEAM, "-l", "app=greedy", "-o", "name"]).await?;
    world.kubectl(&["annotate", "-n", TEAM, pods.trim(), "gputenancy.io/do-not-evict=true"]).await?;
    let mut supply = pool("p", NODE, &["turns"]);
    supply["spec"]["enforcement"] = json!({"onBypass": "Evict"});
    world.set(&[supply]).await?;
    let reason = format!("its processes use {}", bypass.used);
    event(world, TEAM, "Evicted", "greedy-", &["bypasses the memory limit of share", &reason]).await?;
    eventually("the pod gone", PATIENCE, || async {
        let uids = ["get", "pods", "-n", TEAM, "-o", "jsonpath={.items[*].metadata.uid}"];
        let uids = world.kubectl(&uids).await?;
        Ok(if uids.contains(&bypass.uid) { Err(uids) } else { Ok(()) })
    })
    .await?;
    let evicted = pod_events(world, TEAM, "Evicted").await?;
    ensure(evicted.iter().all(|note| note.starts_with("greedy-")), format!("{evicted:?}"))
}

/// Waits for an event about an object whose name begins so, with all these excerpts.
async fn event(world: &World, namespace: &str, reason: &str, object: &str, excerpts: &[&str]) -> Result<()> {
    eventually(&format!("event {reason} about {object} with {excerpts:?}"), PATIENCE, || async {
        let notes = pod_events(world, namespace, reason).await?;
        let has = |note: &String| note.starts_with(object) && excerpts.iter().all(|excerpt| note.contains(excerpt));
        Ok(if notes.iter().any(has) { Ok(()) } else { Err(format!("{notes:?}")) })
    })
    .await
}

/// The share whose bypass the `GpuNode` reports.
async fn bypassed(world: &World) -> Result<(ShareState, Bypass)> {
    eventually("the bypass in GpuNode.status", PATIENCE, || async {
        let node = objects::gpu_node(&world.client, NODE).await?;
        let shares = node.status.into_iter().flat_map(|status| status.gpus).flat_map(|gpu| gpu.shares);
        let found = shares.filter_map(|share| share.bypass.clone().map(|bypass| (share, bypass)));
        let found: Vec<_> = found.collect();
        let [only] = found.as_slice() else { return Ok(Err(format!("{found:?}"))) };
        Ok(Ok(only.clone()))
    })
    .await
}

/// A Deployment of one pod that runs `cuda-work` on a share.
fn program(name: &str, arguments: &[&str]) -> Value {
    let command: Vec<&str> = ["/usr/bin/cuda-work"].into_iter().chain(arguments.iter().copied()).collect();
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": command, "resources": {"limits": {SHARED: "1"}},
    }));
    deployment(TEAM, name, 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}
