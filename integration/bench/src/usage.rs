//! What samples of usage cost the agent: processor time and memory with 8 GPUs × 7 instances, with the default interval and with the longest one.

use std::time::Duration;

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pool, tenant, workload},
    product,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::json;

const NODE: &str = "gpu-1";
const GPUS: i32 = 8;
const SLICES: i32 = 7;
/// Instances with a container.
const PODS: i32 = 16;
const SLICE: &str = "nvidia.com/mig-1g.10gb";
/// The defaults, and the longest interval as the baseline: it has no sample within [`QUIET`].
const INTERVALS: [&str; 2] = ["10s", "5m"];
/// Time over which processor time is counted.
const QUIET: Duration = Duration::from_mins(2);
/// Pause until the agent has reported new devices.
const SETTLE: Duration = Duration::from_secs(30);
/// What sampling may cost at most, in percent of a core, and in MiB.
const BUDGET: (f64, f64) = (0.5, 20.0);

/// Prints processor time and memory of the agent, and what samples add.
pub async fn measure(world: &World) -> Result<()> {
    let mut figures = Vec::new();
    for interval in INTERVALS {
        let figure = one(world, interval).await?;
        println!("usage: samples every {interval}: {:.2} % of a core, resident {:.1} MiB", figure.0, figure.1);
        figures.push(figure);
    }
    let [(cpu, memory), (base, least)] = figures[..] else { return Err(Error::Wrong("two figures".into())) };
    let (cpu, memory) = (cpu - base, memory - least);
    println!(
        "usage: samples of {GPUS} GPUs × {SLICES} instances cost {cpu:.2} % of a core, {:.2} of the budget of {} %, and {memory:.1} MiB, {:.2} of {} MiB",
        cpu / BUDGET.0,
        BUDGET.0,
        memory / BUDGET.1,
        BUDGET.1,
    );
    world.reinstall(&["simulator.uninstallOnExit=true"]).await
}

/// Percent of a core and MiB of the agent with samples at this interval.
async fn one(world: &World, interval: &str) -> Result<(f64, f64)> {
    let (gpus, interval) = (format!("simulator.gpus={GPUS}"), format!("agent.usageInterval={interval}"));
    world.reinstall(&["simulator.uninstallOnExit=true"]).await?;
    world.reinstall(&["simulator.uninstallOnExit=true", &gpus, &interval]).await?;
    let mut full = pool("p", NODE, &["mig-1g"]);
    full["spec"] = merged(full["spec"].take(), json!({"layout": {"spare": {"policy": "Fill", "profile": "mig-1g"}}}));
    world.set(&[mig_profile("mig-1g", "1g.10gb"), full, tenant("team", &[("mig-1g", PODS)])]).await?;
    tenant_ready(world, "team").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("team", "work", SLICE, PODS)]).await?;
    world.pods_ready("team", usize::try_from(PODS).unwrap_or_default()).await?;
    eventually("all instances in the agent's metrics", PATIENCE, || async {
        let text = metrics(world).await?;
        let devices = text.lines().filter(|line| line.starts_with("gputenancy_agent_device_memory_bytes{")).count();
        let wanted = usize::try_from(GPUS * SLICES).unwrap_or_default();
        Ok(if devices >= wanted { Ok(()) } else { Err(format!("{devices} series")) })
    })
    .await?;
    tokio::time::sleep(SETTLE).await;
    let before = value(&metrics(world).await?, "process_cpu_seconds_total")?;
    tokio::time::sleep(QUIET).await;
    let text = metrics(world).await?;
    let seconds = value(&text, "process_cpu_seconds_total")? - before;
    let bytes = value(&text, "process_resident_memory_bytes")?;
    Ok((seconds / QUIET.as_secs_f64() * 100.0, bytes / f64::from(1 << 20)))
}

async fn metrics(world: &World) -> Result<String> {
    let agents = world.agents_on(NODE).await?;
    let agent = agents.first().map(kube::ResourceExt::name_any).unwrap_or_default();
    let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
    world.kubectl(&["get", "--raw", &path]).await
}

/// The value of a series without labels.
fn value(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|line| line.trim().parse().ok()).ok_or_else(|| Error::Wrong(format!("the agent has no {name}")))
}
