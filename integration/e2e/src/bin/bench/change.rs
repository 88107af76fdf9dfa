//! One MIG change end to end: what the platform adds to the driver's own time and to the pod's grace, by step.

use std::time::{Duration, Instant};

use e2e::{
    Result, World,
    objects::{self, set_guarantee},
    scene::{mig_profile, pool, tenant, workload},
    story::{settled, tenant_ready},
    wait::PATIENCE,
};
use serde_json::Value;

const ROUNDS: usize = 3;

/// Moves one GPU with one pod in the way from seven slices to two halves, and prints where the time went.
pub async fn measure(world: &World) -> Result<()> {
    println!("change: one GPU, seven 1g to two 3g, one pod in the way (grace 2 s), {ROUNDS} rounds");
    for round in 1..=ROUNDS {
        objects::delete_everything(&world.client).await?;
        world
            .set(&[
                mig_profile("mig-1g", "1g.10gb"),
                mig_profile("mig-3g", "3g.40gb"),
                pool("p", "gpu-1", &["mig-1g", "mig-3g"]),
            ])
            .await?;
        world.set(&[tenant("small", &[("mig-1g", 14)]), tenant("big", &[("mig-3g", 0)])]).await?;
        tenant_ready(world, "small").await?;
        world.set(&[workload("small", "w", "nvidia.com/mig-1g.10gb", 1)]).await?;
        world.pods_ready("small", 1).await?;
        set_guarantee(&world.client, "small", "mig-1g", 0).await?;
        let mark = world.nvsim("gpu-1", &["history"]).await?.lines().count();
        let start = Instant::now();
        set_guarantee(&world.client, "big", "mig-3g", 4).await?;
        let phases = follow(world, start).await?;
        settled(world, "3g.40gb", 4).await?;
        let total = start.elapsed();
        let driver = driver_time(world, mark).await?;
        let grace = Duration::from_secs(2);
        println!("  round {round}: total {:.2} s", total.as_secs_f64());
        for (phase, at) in phases {
            println!("    {:>6.2} s  {phase}", at.as_secs_f64());
        }
        let floor = driver + grace;
        println!(
            "    driver {:.2} s + grace {:.2} s; beyond them {:.2} s; ratio total / (driver + grace) = {:.2}",
            driver.as_secs_f64(),
            grace.as_secs_f64(),
            total.saturating_sub(floor).as_secs_f64(),
            total.as_secs_f64() / floor.as_secs_f64(),
        );
    }
    Ok(())
}

/// When each phase of each GPU was first seen.
async fn follow(world: &World, start: Instant) -> Result<Vec<(String, Duration)>> {
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
        let done = objects::layouts(&node).iter().flatten().filter(|i| i.ends_with(":3g.40gb")).count() == 4;
        if (done && changing.is_empty()) || start.elapsed() > PATIENCE {
            return Ok(seen);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Time between the first and the last change of an instance in each burst, by the silicon's own record.
async fn driver_time(world: &World, mark: usize) -> Result<Duration> {
    let text = world.nvsim("gpu-1", &["history"]).await?;
    let times: Vec<u64> = text
        .lines()
        .skip(mark)
        .filter_map(|l| serde_json::from_str::<Value>(l).ok())
        .filter(|l| matches!(l["event"].as_str(), Some("create" | "destroy")))
        .filter_map(|l| l["time_ms"].as_u64())
        .collect();
    // calls of one burst follow each other; a pause of more than two seconds is not the driver's
    let busy: u64 = times.windows(2).map(|w| w[1].saturating_sub(w[0])).filter(|gap| *gap < 2000).sum();
    Ok(Duration::from_millis(busy))
}
