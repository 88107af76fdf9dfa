//! Devices that a team leaves idle are lent, and come back when their owner needs them.

use std::collections::BTreeMap;

use e2e::{
    Error, Result, World,
    fixtures::mig_profile,
    objects::ensure,
    scenario::{MIG_1G, TEAM_A, TEAM_B, TEAM_C},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{
    kueue::Kueue,
    scene::{all_ready, in_lab, installed, queued_pool, team, wall_becomes},
    work::{State, divided, end, job, state_becomes, states},
    workloads::{limits_become, reserved_at, waits},
};

/// Jobs of the borrower.
const BORROWERS: [&str; 3] = ["one", "two", "three"];

#[tokio::test]
async fn idle_devices_are_lent_and_come_back_without_losing_a_job() {
    in_lab("queues-borrowing", lent_and_returned).await;
}

async fn lent_and_returned(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    installed(world, kueue).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), queued_pool(&["mig-1g"])]).await?;
    world
        .set(&[
            team(TEAM_A, "mig-1g", json!({"count": 1, "borrow": 3})),
            team(TEAM_B, "mig-1g", json!({"count": 2, "lend": 2})),
            team(TEAM_C, "mig-1g", json!({"count": 1})),
        ])
        .await?;
    all_ready(world, &[TEAM_A, TEAM_B, TEAM_C]).await?;
    // no device is spare
    limits_become(world, MIG_1G, 4).await?;
    wall_becomes(world, TEAM_A, MIG_1G, 4).await?;

    let reserved = borrowed(world).await?;
    world.set(&[job(TEAM_B, "first", MIG_1G, 1), job(TEAM_B, "second", MIG_1G, 1)]).await?;
    divided(world, TEAM_B, 2, 0).await?;
    // the other two are suspended, and so is the one that waited before
    let (kept, _) = divided(world, TEAM_A, 1, 3).await?;
    let oldest = reserved.values().min();
    ensure(kept.iter().all(|job| reserved.get(job) == oldest), format!("{kept:?} runs, of {reserved:?}"))?;

    for job in ["first", "second"] {
        end(world, TEAM_B, job).await?;
    }
    divided(world, TEAM_A, 3, 1).await?;
    for job in BORROWERS.into_iter().chain(["four"]) {
        end(world, TEAM_A, job).await?;
    }
    for team in [TEAM_A, TEAM_B] {
        let all = states(world, team).await?;
        ensure(all.values().all(|state| *state == State::Complete), format!("{team}: {all:?}"))?;
    }
    limits_become(world, MIG_1G, 4).await
}

/// Starts one Job within the guarantee and two on lent devices, and a fourth one, for which only a device of a team is idle that lends none. Returns
/// when each of the three got its quota.
async fn borrowed(world: &World) -> Result<BTreeMap<String, Timestamp>> {
    let mut reserved = BTreeMap::new();
    // one after another, so that their order is known
    for name in BORROWERS {
        world.set(&[job(TEAM_A, name, MIG_1G, 1)]).await?;
        state_becomes(world, TEAM_A, name, State::Running).await?;
        reserved.insert(name.to_owned(), reserved_at(world, TEAM_A, name).await?);
    }
    world.set(&[job(TEAM_A, "four", MIG_1G, 1)]).await?;
    waits(world, TEAM_A, "four").await?;
    let (running, suspended) = divided(world, TEAM_A, 3, 1).await?;
    if suspended == ["four"] { Ok(reserved) } else { Err(Error::Wrong(format!("{running:?} run, {suspended:?} wait"))) }
}
