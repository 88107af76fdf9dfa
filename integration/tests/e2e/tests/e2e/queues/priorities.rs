//! Within a team a Job with a higher priority gets the devices of one with a lower priority; a team has no class of another one.

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    fixtures::mig_profile,
    scenario::{MIG_1G, TEAM_A, TEAM_B, pod_events},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::{
    kueue::{API, Kueue},
    scene::{all_ready, in_lab, installed, queued_pool, team},
    work::{State, end, job, state_becomes},
};

/// A class of Kueue, which a Job names in a label.
const PRODUCTION: &str = "e2e-production";
/// A class of the scheduler, which the template of a Job names.
const URGENT: &str = "e2e-urgent";
const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";
const OWNER_OF_B: Actor = Actor::Person("ben", &["owners-of-b"]);

#[tokio::test]
async fn production_preempts_development_of_its_own_team_alone() {
    in_lab("queues-priorities", with_classes).await;
}

async fn with_classes(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    let outcome = Box::pin(preempted(world, kueue)).await;
    let removed = world.kubectl(&["delete", "priorityclass", URGENT, "--ignore-not-found"]).await.map(drop);
    outcome.and(removed)
}

async fn preempted(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    installed(world, kueue).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), queued_pool(&["mig-1g"])]).await?;
    world
        .set(&[
            json!({
                "apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": PRODUCTION}, "value": 1000,
            }),
            // the scheduler knows no teams: without this field it could evict pods of the other one
            json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT},
                "value": 500, "preemptionPolicy": "Never",
            }),
        ])
        .await?;
    let mut owner = team(TEAM_A, "mig-1g", json!({"count": 1}));
    owner["spec"]["priorityClasses"] = json!([PRODUCTION, URGENT]);
    let mut other = team(TEAM_B, "mig-1g", json!({"count": 1}));
    other["spec"]["owners"] = json!([{"kind": "Group", "name": "owners-of-b"}]);
    world.set(&[owner, other]).await?;
    all_ready(world, &[TEAM_A, TEAM_B]).await?;

    world.set(&[job(TEAM_A, "development", MIG_1G, 1), job(TEAM_B, "neighbour", MIG_1G, 1)]).await?;
    state_becomes(world, TEAM_A, "development", State::Running).await?;
    state_becomes(world, TEAM_B, "neighbour", State::Running).await?;
    takes_over(world, "production", labelled(TEAM_A, "production")).await?;
    has_event(world, "QueuePreempted", "development: suspended: job production of team-a has a higher priority")
        .await?;
    takes_over(world, "urgent", of_class(TEAM_A, "urgent")).await?;
    has_event(world, "QueueWaiting", "development: waits for 1 nvidia.com/mig-1g.10gb: team-a is guaranteed 1").await?;
    classes_are_refused(world).await?;

    end(world, TEAM_A, "development").await?;
    state_becomes(world, TEAM_B, "neighbour", State::Running).await?;
    end(world, TEAM_B, "neighbour").await
}

/// This Job runs in place of that of development, which goes on when it has ended. The other team's Job runs all the time.
async fn takes_over(world: &World, name: &str, job: Value) -> Result<()> {
    world.set(&[job]).await?;
    state_becomes(world, TEAM_A, name, State::Running).await?;
    state_becomes(world, TEAM_A, "development", State::Suspended).await?;
    state_becomes(world, TEAM_B, "neighbour", State::Running).await?;
    // longer than a job waits before it has an event
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    end(world, TEAM_A, name).await?;
    state_becomes(world, TEAM_A, "development", State::Running).await
}

/// A Job with the class of Kueue.
fn labelled(namespace: &str, name: &str) -> Value {
    let mut labelled = job(namespace, name, MIG_1G, 1);
    labelled["metadata"]["labels"] = json!({PRIORITY_LABEL: PRODUCTION});
    labelled
}

/// A Job whose pods have the class of the scheduler.
fn of_class(namespace: &str, name: &str) -> Value {
    let mut job = job(namespace, name, MIG_1G, 1);
    job["spec"]["template"]["spec"]["priorityClassName"] = json!(URGENT);
    job
}

/// The other team may name neither class.
async fn classes_are_refused(world: &World) -> Result<()> {
    let jobs = format!("/apis/batch/v1/namespaces/{TEAM_B}/jobs");
    for (body, words) in [
        (labelled(TEAM_B, "foreign"), "may have these priorities: none"),
        (of_class(TEAM_B, "foreign"), "may wait in its queue with these classes"),
    ] {
        OWNER_OF_B.check(&world.client, Verb::Create, &jobs, &body, Some(words)).await?;
    }
    Ok(())
}

/// Waits for an event of a Job.
async fn has_event(world: &World, reason: &str, words: &str) -> Result<()> {
    eventually(&format!("event {reason}: {words}"), PATIENCE, || async {
        let events = pod_events(world, TEAM_A, reason).await?;
        Ok(if events.iter().any(|event| event.starts_with(words)) { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await
}
