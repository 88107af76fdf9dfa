//! One MIG change end to end: time beyond the driver's calls and the pod's grace period, by phase.

use std::time::{Duration, Instant};

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, set_guarantee},
    scenario::{instances_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuTenant, condition};
use kube::Api;
use serde_json::json;
use silicon::{
    history::{Event, Line},
    latency::Slow,
};

const ROUNDS: usize = 3;
/// Seconds that the pod runs after SIGTERM.
const GRACE: u64 = 2;

/// Changes two GPUs one after the other from seven 1g to two 3g, the second with a pod to evict, and prints the time of each phase.
pub async fn measure(world: &World) -> Result<()> {
    println!("change: one GPU from seven 1g to two 3g; {ROUNDS} rounds");
    for round in 1..=ROUNDS {
        objects::delete_everything(&world.client).await?;
        // the change removes the last device of the pod's profile
        let mut pool = pool("p", "gpu-1", &["mig-1g", "mig-3g"]);
        pool["spec"]["disruption"]["allowOutage"] = true.into();
        world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), pool]).await?;
        world.set(&[tenant("small", &[("mig-1g", 14)]), tenant("big", &[("mig-3g", 0)])]).await?;
        tenant_ready(world, "small").await?;
        let mut pod = workload("small", "w", "nvidia.com/mig-1g.10gb", 1);
        // the pod uses its whole grace period
        let spec = &mut pod["spec"]["template"]["spec"];
        spec["terminationGracePeriodSeconds"] = GRACE.into();
        spec["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": GRACE}}});
        world.set(&[pod]).await?;
        world.pods_ready("small", 1).await?;
        set_guarantee(&world.client, "small", "mig-1g", 0).await?;
        over_budget(world, "small").await?;
        println!("  round {round}, no pod to evict:");
        change(world, 2, Duration::ZERO).await?;
        // start at rest, as in the first half
        tokio::time::sleep(Duration::from_secs(3)).await;
        println!("  round {round}, a pod to evict with a grace period of {GRACE} s:");
        change(world, 4, Duration::from_secs(GRACE)).await?;
    }
    Ok(())
}

/// Waits until a tenant reports that its pod is over the budget.
async fn over_budget(world: &World, name: &str) -> Result<()> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually("the tenant to be over its budget", PATIENCE, || async {
        let status = api.get(name).await?.status.unwrap_or_default();
        let ready = objects::condition(&status.conditions, condition::READY);
        let reason = ready.map(|c| c.reason.clone()).unwrap_or_default();
        Ok(if reason == "OverBudget" { Ok(()) } else { Err(reason) })
    })
    .await
}

/// Raises the guarantee to this many 3g devices, and waits until they are allocatable.
async fn change(world: &World, halves: i32, grace: Duration) -> Result<()> {
    let count = usize::try_from(halves).unwrap_or(0);
    let mark = world.nvsim("gpu-1", &["history"]).await?.lines().count();
    let start = Instant::now();
    set_guarantee(&world.client, "big", "mig-3g", halves).await?;
    let (phases, total) = follow(world, count, start).await?;
    instances_ready(world, "3g.40gb", count).await?;
    let driver = driver_time(world, mark).await?;
    for (phase, at) in phases {
        println!("    {:>6.2} s  {phase}", at.as_secs_f64());
    }
    let floor = driver + grace;
    println!(
        "    {:>6.2} s  done: driver {:.2} s + grace {:.2} s; beyond them {:.2} s; ratio total / (driver + grace) = {:.2}",
        total.as_secs_f64(),
        driver.as_secs_f64(),
        grace.as_secs_f64(),
        total.saturating_sub(floor).as_secs_f64(),
        total.as_secs_f64() / floor.as_secs_f64(),
    );
    Ok(())
}

/// Times at which each phase was first observed, and at which the devices were allocatable and no change was left.
async fn follow(world: &World, halves: usize, start: Instant) -> Result<(Vec<(String, Duration)>, Duration)> {
    let mut seen: Vec<(String, Duration)> = Vec::new();
    loop {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        let changing: Vec<String> = node
            .spec
            .gpus
            .iter()
            .enumerate()
            .filter_map(|(i, g)| Some(format!("GPU {i} {:?}", g.change.as_ref()?.phase)))
            .collect();
        for phase in &changing {
            if !seen.iter().any(|(p, _)| p == phase) {
                seen.push((phase.clone(), start.elapsed()));
            }
        }
        let done = objects::layouts(&node).iter().flatten().filter(|i| i.ends_with(":3g.40gb")).count() == halves;
        if (done && changing.is_empty()) || start.elapsed() > PATIENCE {
            return Ok((seen, start.elapsed()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Time of the driver's calls, from the simulator's history and latencies.
async fn driver_time(world: &World, mark: usize) -> Result<Duration> {
    let text = world.nvsim("gpu-1", &["history"]).await?;
    let lines = text.lines().skip(mark).filter_map(|l| serde_json::from_str::<Line>(l).ok());
    let slow = lines.filter_map(|line| match line.event {
        Event::Create { ci: None, .. } => Some(Slow::CreateGpuInstance),
        Event::Create { ci: Some(_), .. } => Some(Slow::CreateComputeInstance),
        Event::Destroy { ci: None, .. } => Some(Slow::DestroyGpuInstance),
        Event::Destroy { ci: Some(_), .. } => Some(Slow::DestroyComputeInstance),
        _ => None,
    });
    Ok(slow.map(|slow| Duration::from_millis(slow.real_ms())).sum())
}
