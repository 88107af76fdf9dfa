//! Compute limits of fractions by the shim: two pods on one GPU that launch as fast as they can.

use e2e::{
    Error, Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::ensure,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use kube::ResourceExt;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";

#[tokio::test]
async fn fractions_use_the_gpu_for_their_part_of_the_time_at_most() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("compute-limits", async { two_fractions(&world).await }).await;
}

#[tokio::test]
async fn suspended_pod_launches_nothing_keeps_its_memory_and_goes_on() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("compute-suspend", async { suspended(&world).await }).await;
}

fn profile(name: &str, compute: i32) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
        "spec": {
            "device": {"fraction": {"memory": "10Gi", "compute": compute}},
            "support": {"expected": "neighbours", "incident": "less than the part"},
        },
    })
}

async fn suspended(world: &World) -> Result<()> {
    world.set(&[profile("small", 20)]).await?;
    world.set(&[pool("p", NODE, &["small"])]).await?;
    let mut team = tenant("team", &[("small", 1)]);
    let spec = team["spec"].take();
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(spec, sharing);
    world.set(&[team]).await?;
    tenant_ready(world, "team").await?;
    // a line for each run of kernels, next to a program that holds memory
    let command = "/usr/bin/cuda-work allocate --count 2 --hold & \
                   while /usr/bin/cuda-work launch --iteration 1 --millis 200; do :; done";
    world.set(&[pod_of("small", command)]).await?;
    let more_than = |lines: usize| async move {
        eventually(&format!("more than {lines} runs"), PATIENCE, || async move {
            let seen = runs(world).await?;
            Ok(if seen > lines { Ok(seen) } else { Err(format!("{seen} runs")) })
        })
        .await
    };
    more_than(2).await?;
    let pod = world.kubectl(&["get", "pods", "-n", "team", "-l", "app=small", "-o", "name"]).await?;
    let pod = pod.trim();
    let annotate = |value: &'static str| async move { world.kubectl(&["annotate", "-n", "team", pod, value]).await };
    annotate("gputenancy.io/suspend-compute=true").await?;
    event_of(world, "ComputeSuspended").await?;
    // the run in progress ends before; the agent shows the state after it has set it
    let before = runs(world).await?;
    let held = memory(world, "holds its memory", |held| held > 0).await?;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let after = runs(world).await?;
    ensure(after <= before + 1, format!("{before} runs, {after} three seconds later"))?;
    let still = memory(world, "still holds its memory", |held| held > 0).await?;
    ensure(still >= held, format!("{held} bytes, {still} while it is suspended"))?;
    annotate("gputenancy.io/suspend-compute-").await?;
    event_of(world, "ComputeResumed").await?;
    more_than(after + 2).await?;
    Ok(())
}

/// Runs of kernels that the pod has printed.
async fn runs(world: &World) -> Result<usize> {
    let text = world.kubectl(&["logs", "-n", "team", "-l", "app=small", "--tail=-1"]).await.unwrap_or_default();
    Ok(text.matches("percent=").count())
}

async fn event_of(world: &World, reason: &str) -> Result<()> {
    let selector = format!("reason={reason}");
    eventually(&format!("event {reason}"), PATIENCE, || async {
        let text = world.kubectl(&["get", "events", "-n", "team", "--field-selector", &selector, "-o", "name"]).await?;
        Ok(if text.trim().is_empty() { Err("none".to_owned()) } else { Ok(()) })
    })
    .await
}

/// Bytes that NVML lists for the pod, by the agent's metric, once they are as expected.
async fn memory(world: &World, what: &str, expected: impl Fn(u64) -> bool) -> Result<u64> {
    let agents = world.agents_on(NODE).await?;
    let agent = agents.first().map(ResourceExt::name_any).ok_or_else(|| Error::Wrong("no agent".into()))?;
    let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
    eventually(what, PATIENCE, || async {
        let text = world.kubectl(&["get", "--raw", &path]).await?;
        let of_pod = |line: &&str| {
            line.starts_with("gputenancy_agent_share_memory_used_bytes{") && line.contains("namespace=\"team\"")
        };
        let line = text.lines().find(of_pod);
        let held = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
        Ok(if expected(held) { Ok(held) } else { Err(format!("{held} bytes")) })
    })
    .await
}

async fn two_fractions(world: &World) -> Result<()> {
    world.set(&[profile("small", 20), profile("large", 50)]).await?;
    world.set(&[pool("p", NODE, &["small", "large"])]).await?;
    let mut team = tenant("team", &[("small", 1), ("large", 1)]);
    let spec = team["spec"].take();
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(spec, sharing);
    world.set(&[team]).await?;
    tenant_ready(world, "team").await?;
    world.set(&[launching("small"), launching("large")]).await?;
    for (name, percent) in [("small", 20.0), ("large", 50.0)] {
        let got = part(world, name).await?;
        // how much less depends on the machine, which has few processors
        ensure(got <= percent + 3.0 && got > 0.0, format!("{name}: {got} percent of the time"))?;
    }
    Ok(())
}

/// A Deployment of one pod that launches kernels, and then prints for which part of the time they ran.
fn launching(profile: &str) -> Value {
    pod_of(profile, "/usr/bin/cuda-work launch --iteration 1 --millis 8000 && sleep 3600")
}

/// A Deployment of one pod that runs a command.
fn pod_of(profile: &str, command: &str) -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": {"limits": {format!("gputenancy.io/{profile}"): "1"}},
    }));
    deployment("team", profile, 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}

/// The part of the time that a program printed, in percent.
async fn part(world: &World, name: &str) -> Result<f64> {
    let selector = format!("app={name}");
    let text = eventually(&format!("part of the time of {name}"), PATIENCE, || async {
        let text = world.kubectl(&["logs", "-n", "team", "-l", &selector]).await.unwrap_or_default();
        if text.contains("percent=") {
            return Ok(Ok(text));
        }
        let pods = world.kubectl(&["get", "pods", "-n", "team", "-l", &selector, "-o", "wide"]).await?;
        Ok(Err(format!("{text}{pods}")))
    })
    .await?;
    let number = text.split("percent=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    number
        .parse()
        .map_err(|error: std::num::ParseFloatError| Error::Text { what: text.clone(), why: error.to_string() })
}
