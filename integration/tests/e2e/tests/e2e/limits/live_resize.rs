//! A profile's new size reaches running pods: the shim reads it, and nothing restarts.

use e2e::{
    Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::ensure,
    product,
    scenario::{pod_events, tenant_ready},
    wait::{PATIENCE, eventually},
};
use kube::ResourceExt;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const TEAM: &str = "team";

#[tokio::test]
async fn running_pods_get_the_new_size_of_their_fraction() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("live-resize", async { three_sizes(&world).await }).await;
}

async fn three_sizes(world: &World) -> Result<()> {
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    let mut team = tenant(TEAM, &[("part", 2)]);
    team["spec"] = merged(team["spec"].take(), sharing);
    world.set(&[part("10Gi", 25), pool("p", NODE, &["part"]), team]).await?;
    tenant_ready(world, TEAM).await?;
    world.set(&[program()]).await?;
    // the program holds 6,400 MiB, and `cuda-work show` counts 640 for its own context
    shows(world, "total=10240MiB free=3200MiB device=10240MiB").await?;
    audited(world).await?;
    let before = pod(world).await?;

    world.set(&[part("12Gi", 30)]).await?;
    shows(world, "total=12288MiB free=5248MiB device=12288MiB").await?;
    // a sample between the two writes sees one of them alone, and each has its event then
    resized(world, ["has 12288 MiB", "before 10240 MiB"]).await?;
    resized(world, ["30 % of the GPU's time", "25 % of the GPU's time"]).await?;
    let more = run(world, &["allocate", "--count", "100"]).await?;
    ensure(more.starts_with("granted=82 code=2"), format!("82 × 64 MiB are left: {more}"))?;

    // smaller than what is held: refused, and named on pod, profile and GpuNode
    world.set(&[part("5Gi", 10)]).await?;
    let refused =
        ["more than the new memory 5120Mi", "keeps its limit of 12288Mi; let it free memory or restart the pod"];
    event(world, "ShareResizeRefused", refused).await?;
    profile_names_the_pod(world).await?;
    shows(world, "total=12288MiB free=5248MiB device=12288MiB").await?;

    // forced: the limit stays at 6,400 MiB and the context of the program that ended, which counts until another begins;
    // NVML's figure, which has no such context, bounds it from the agent's next sample on
    let mut forced = part("5Gi", 10);
    forced["spec"]["device"]["fraction"]["resize"] = json!("Force");
    world.set(&[forced]).await?;
    resized(world, ["has ", "before 12288 MiB"]).await?;
    let none = run(world, &["allocate", "--count", "1"]).await?;
    ensure(none.starts_with("granted=0 code=2"), none)?;
    ensure(pod(world).await? == before, "the pod runs on without a restart")?;
    world.kubectl(&["delete", "pod", "-n", TEAM, "-l", "app=work"]).await?;
    eventually("5,120 MiB for the next pod", PATIENCE, || async {
        let log =
            world.kubectl(&["logs", "-n", TEAM, "deployment/work"]).await.unwrap_or_else(|error| error.to_string());
        Ok(if log.contains("granted=80 code=2") { Ok(()) } else { Err(log) })
    })
    .await
}

fn part(memory: &str, compute: i32) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "part"},
        "spec": {
            "device": {"fraction": {"memory": memory, "compute": compute}},
            "support": {"expected": "neighbours", "incident": "less than the part"},
        },
    })
}

/// Waits for the first sample of the share: an event needs the size of before.
async fn audited(world: &World) -> Result<()> {
    eventually("the share in the agent's metrics", PATIENCE, || async {
        let agents = world.agents_on(NODE).await?;
        let Some(agent) = agents.first().map(ResourceExt::name_any) else { return Ok(Err("no agent".to_owned())) };
        let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
        let text = world.kubectl(&["get", "--raw", &path]).await.unwrap_or_else(|error| error.to_string());
        let sampled = text.lines().any(|line| line.starts_with("gputenancy_agent_share_memory_limit_bytes{"));
        Ok(if sampled { Ok(()) } else { Err("not sampled yet".to_owned()) })
    })
    .await
}

/// UID of the pod, and restarts of its container.
async fn pod(world: &World) -> Result<String> {
    let path = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].restartCount}";
    world.kubectl(&["get", "pods", "-n", TEAM, "-l", "app=work", "-o", path]).await
}

/// Waits until CUDA shows this in the container.
async fn shows(world: &World, excerpt: &str) -> Result<()> {
    eventually(&format!("CUDA shows {excerpt}"), PATIENCE, || async {
        let seen = run(world, &["show"]).await.unwrap_or_else(|error| error.to_string());
        Ok(if seen.contains(excerpt) { Ok(()) } else { Err(seen) })
    })
    .await
}

/// Waits for the event on the pod with both excerpts.
async fn resized(world: &World, excerpts: [&str; 2]) -> Result<()> {
    event(world, "ShareResized", excerpts).await
}

/// Waits until the condition of the profile names the pod that keeps its memory.
async fn profile_names_the_pod(world: &World) -> Result<()> {
    let path = "jsonpath={.status.conditions[?(@.type=='Resized')].message}";
    eventually("condition Resized of the profile", PATIENCE, || async {
        let message = world.kubectl(&["get", "gpuprofile", "part", "-o", path]).await?;
        let named = message.contains("more memory than device.fraction.memory is held by 1 pod,")
            && message.contains("team/work-");
        Ok(if named && message.contains("of 12288Mi") { Ok(()) } else { Err(message) })
    })
    .await
}

async fn event(world: &World, reason: &str, excerpts: [&str; 2]) -> Result<()> {
    eventually(&format!("event {reason} with {excerpts:?}"), PATIENCE, || async {
        let notes = pod_events(world, TEAM, reason).await?;
        let found = notes.iter().any(|note| excerpts.iter().all(|excerpt| note.contains(excerpt)));
        Ok(if found { Ok(()) } else { Err(format!("{notes:?}")) })
    })
    .await
}

/// Output of another program in the container.
async fn run(world: &World, arguments: &[&str]) -> Result<String> {
    let exec = ["exec", "-n", TEAM, "deployment/work", "--", "/usr/bin/cuda-work"];
    Ok(world.kubectl(&[&exec, arguments].concat()).await?.trim().to_owned())
}

/// A Deployment of one pod that holds 6,400 MiB, or as much as it gets.
fn program() -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/usr/bin/cuda-work", "allocate", "--count", "100", "--hold"],
        "resources": {"limits": {"gputenancy.io/part": "1"}},
    }));
    deployment(TEAM, "work", 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}
