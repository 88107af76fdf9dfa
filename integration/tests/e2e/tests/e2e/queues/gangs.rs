//! A Job gets quota for all of its pods, or for none.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use e2e::{
    Result, World,
    fixtures::mig_profile,
    objects::ensure,
    scenario::{MIG_1G, TEAM_A},
    wait::{PATIENCE, eventually, follow},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, runtime::watcher};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    kueue::Kueue,
    scene::{all_ready, in_lab, installed, queued_pool, team, wall_becomes},
    work::{State, divided, end, job, state_becomes},
    workloads::{limits_become, waits},
};

/// The label of a pod with the name of its Job.
const JOB: &str = "batch.kubernetes.io/job-name";

#[tokio::test]
async fn of_two_gangs_of_four_on_six_devices_one_runs_whole() {
    in_lab("queues-gangs", one_whole).await;
}

async fn one_whole(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    installed(world, kueue).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), queued_pool(&["mig-1g"])]).await?;
    world.set(&[team(TEAM_A, "mig-1g", json!({"count": 6}))]).await?;
    all_ready(world, &[TEAM_A]).await?;
    limits_become(world, MIG_1G, 6).await?;
    wall_becomes(world, TEAM_A, MIG_1G, 6).await?;

    let mut tasks = JoinSet::new();
    let seen = pods_seen(world, &mut tasks);
    world.set(&[job(TEAM_A, "left", MIG_1G, 4), job(TEAM_A, "right", MIG_1G, 4)]).await?;
    let (whole, other) = divided(world, TEAM_A, 1, 1).await?;
    let (whole, other) = (whole.concat(), other.concat());
    waits(world, TEAM_A, &other).await?;
    let count = |job: &str| seen.lock().unwrap().values().filter(|of| *of == job).count();
    eventually(&format!("the pods of {whole} seen"), PATIENCE, || async {
        let pods = count(&whole);
        Ok(if pods == 4 { Ok(()) } else { Err(format!("{pods} pods")) })
    })
    .await?;
    ensure(count(&other) == 0, format!("{} pods of {other} next to those of {whole}", count(&other)))?;

    // Kueue gives away what a pod leaves that has succeeded, so that the other one may start before all four have
    end(world, TEAM_A, &whole).await?;
    state_becomes(world, TEAM_A, &other, State::Running).await?;
    end(world, TEAM_A, &other).await?;
    state_becomes(world, TEAM_A, &whole, State::Complete).await
}

/// All pods of Jobs of the team since now, each with its Job, as long as the tasks run.
fn pods_seen(world: &World, tasks: &mut JoinSet<()>) -> Arc<Mutex<BTreeMap<String, String>>> {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let (to, pods) = (seen.clone(), Api::<Pod>::namespaced(world.client.clone(), TEAM_A));
    follow(tasks, pods, watcher::Config::default(), move |pod| {
        let job = pod.labels().get(JOB).cloned();
        to.lock().unwrap().extend(job.map(|job| (pod.name_any(), job)));
    });
    seen
}
