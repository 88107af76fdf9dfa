//! Jobs on devices that a change removes leave them through Kueue, which queues them again: an eviction of their pods would count as a failure.
//!
//! A `stopPolicy` that a person writes is not tested: the operator owns that field, and writes it again.

use e2e::{
    Result, World,
    fixtures::mig_profile,
    objects::{ensure, running, set_guarantee},
    scenario::{MIG_1G, MIG_3G, TEAM_A, TEAM_B, instances_ready, pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::json;

use super::{
    kueue::Kueue,
    scene::{POOL, all_ready, in_lab, installed, queued_pool, team, wall_becomes},
    work::{State, divided, end, job, states},
    workloads::{evicted_by_the_check, limits_become},
};

/// One for each half of the node's two GPUs.
const JOBS: [&str; 4] = ["one", "two", "three", "four"];

#[tokio::test]
async fn jobs_on_changed_gpus_are_queued_again_and_complete() {
    in_lab("queues-maintenance", queued_again).await;
}

async fn queued_again(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    installed(world, kueue).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    world.set(&[queued_pool(&["mig-1g", "mig-3g"])]).await?;
    let (large, small) = (json!({"count": 4}), json!({"count": 0}));
    world.set(&[team(TEAM_A, "mig-3g", large), team(TEAM_B, "mig-1g", small)]).await?;
    all_ready(world, &[TEAM_A]).await?;
    limits_become(world, MIG_3G, 4).await?;
    wall_becomes(world, TEAM_A, MIG_3G, 4).await?;
    world.set(&JOBS.map(|name| job(TEAM_A, name, MIG_3G, 1))).await?;
    divided(world, TEAM_A, 4, 0).await?;
    let before = running(&world.client, TEAM_A).await?;

    // seven small devices need the place of two large ones
    set_guarantee(&world.client, TEAM_A, "mig-3g", 2).await?;
    set_guarantee(&world.client, TEAM_B, "mig-1g", 7).await?;
    let (kept, requeued) = divided(world, TEAM_A, 2, 2).await?;
    for job in &requeued {
        evicted_by_the_check(world, TEAM_A, job).await?;
        named_in_an_event(world, job).await?;
    }
    instances_ready(world, "1g.10gb", 7).await?;
    pool_ready(world, POOL).await?;
    tenant_ready(world, TEAM_B).await?;
    for (resource, devices) in [(MIG_3G, 2), (MIG_1G, 7)] {
        limits_become(world, resource, devices).await?;
    }
    let after = running(&world.client, TEAM_A).await?;
    let same = after.iter().all(|(pod, identity)| before.get(pod) == Some(identity));
    ensure(same && after.len() == 2, format!("pods before {before:?}, after {after:?}"))?;
    let evicted = pod_events(world, TEAM_A, "Evicted").await?;
    let evicted_pods: Vec<&String> =
        evicted.iter().filter(|event| before.keys().any(|p| event.starts_with(p))).collect();
    ensure(evicted_pods.is_empty(), format!("pods evicted: {evicted_pods:?}"))?;

    // they wait for the devices that the change has left
    for job in &kept {
        end(world, TEAM_A, job).await?;
    }
    divided(world, TEAM_A, 2, 0).await?;
    for job in &requeued {
        end(world, TEAM_A, job).await?;
    }
    let all = states(world, TEAM_A).await?;
    ensure(all.len() == 4 && all.values().all(|state| *state == State::Complete), format!("{all:?}"))
}

/// Waits until an event says that the pod of a Job leaves its device through Kueue.
async fn named_in_an_event(world: &World, job: &str) -> Result<()> {
    let of_job = format!("{job}-");
    eventually(&format!("an event about the pod of Job {job}"), PATIENCE, || async {
        let events = pod_events(world, TEAM_A, "Requeued").await?;
        let named = events.iter().any(|event| event.starts_with(&of_job) && event.contains("Kueue"));
        Ok(if named { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await
}
