//! Work on devices of a pool with queues that no queue has admitted is refused to a team's owner, with the remedy.

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    fixtures::{deployment, merged, mig_profile, pod_spec, restricted_spec},
    objects::ensure,
    scenario::{MIG_1G, TEAM_A, TEAM_B, pod_events},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::{
    kueue::{API, Kueue},
    scene::{all_ready, in_lab, installed, queued_pool, team, wall_becomes},
    work::{State, job, state_becomes},
    workloads::waits,
};

const OWNER: Actor = Actor::Person("ann", &["owners-of-a"]);
/// Words of the refusal of a pod.
const POD: &[&str] = &["Kueue", "write a Job"];

#[tokio::test]
async fn work_that_no_queue_has_admitted_is_refused() {
    in_lab("queues-bypass", refused).await;
}

async fn refused(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    installed(world, kueue).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), queued_pool(&["mig-1g"])]).await?;
    let mut owned = team(TEAM_A, "mig-1g", json!({"count": 1, "borrow": 1}));
    owned["spec"]["owners"] = json!([{"kind": "Group", "name": "owners-of-a"}]);
    world.set(&[owned, team(TEAM_B, "mig-1g", json!({"count": 1}))]).await?;
    all_ready(world, &[TEAM_A, TEAM_B]).await?;
    // so that no quota refuses a second device
    wall_becomes(world, TEAM_A, MIG_1G, 2).await?;
    world.set(&[job(TEAM_A, "admitted", MIG_1G, 1)]).await?;
    state_becomes(world, TEAM_A, "admitted", State::Running).await?;
    world.set(&[job(TEAM_A, "waiting", MIG_1G, 1)]).await?;
    waits(world, TEAM_A, "waiting").await?;

    admits_others(world).await?;
    let mut wrong = Vec::new();
    for (what, verb, path, body, words) in attempts(world).await? {
        let answer = OWNER.may(&world.client, verb, &path, &body).await?.map_err(|status| status.message);
        if !answer.as_ref().is_err_and(|message| has_words(message, words)) {
            wrong.push(format!("{what}: {answer:?}"));
        }
    }
    ensure(wrong.is_empty(), wrong.join("\n"))?;
    pods_of_a_deployment_are_refused(world).await?;
    state_becomes(world, TEAM_A, "waiting", State::Suspended).await?;
    state_becomes(world, TEAM_A, "admitted", State::Running).await
}

fn has_words(message: &str, words: &[&str]) -> bool {
    let message = message.to_lowercase();
    words.iter().all(|word| message.contains(&word.to_lowercase()))
}

fn pods() -> String {
    format!("/api/v1/namespaces/{TEAM_A}/pods")
}

fn jobs() -> String {
    format!("/apis/batch/v1/namespaces/{TEAM_A}/jobs")
}

/// A Job is queued also if it is created without suspension, and a pod without a device is admitted.
async fn admits_others(world: &World) -> Result<()> {
    let mut unsuspended = job(TEAM_A, "unsuspended", MIG_1G, 1);
    unsuspended["spec"]["suspend"] = json!(false);
    // the rights of a new owner may not be known at once
    let queued = eventually("a Job of the owner", PATIENCE, || async {
        let answer = OWNER.may(&world.client, Verb::Create, &jobs(), &unsuspended).await?;
        Ok(answer.map_err(|status| status.message))
    })
    .await?;
    let right =
        queued["spec"]["suspend"] == true && queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default";
    ensure(right, format!("a Job that is not suspended: {queued}"))?;
    let idle = restricted_spec(json!({"name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never"}));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "without-device"}, "spec": idle});
    OWNER.check(&world.client, Verb::Create, &pods(), &pod, None).await
}

/// A request, and words of its refusal.
type Attempt = (&'static str, Verb, String, Value, &'static [&'static str]);

async fn attempts(world: &World) -> Result<Vec<Attempt>> {
    let admitted = Api::<Job>::namespaced(world.client.clone(), TEAM_A).get("admitted").await?;
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": "admitted", "uid": admitted.uid(), "controller": true,
    });
    let pod = |metadata: Value| {
        let metadata = merged(json!({"name": "bypass"}), metadata);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(MIG_1G)})
    };
    let unsuspended = |metadata: Value| {
        let mut made = job(TEAM_A, "bypass", MIG_1G, 1);
        made["metadata"] = merged(made["metadata"].take(), metadata);
        made["spec"]["suspend"] = json!(false);
        made
    };
    let forged = json!({"ownerReferences": [owner]});
    let label = |key: &str, value: &str| json!({"labels": {key: value}});
    let local_queue = json!({
        "apiVersion": API, "kind": "LocalQueue", "metadata": {"name": "theirs"}, "spec": {"clusterQueue": "gput-team-b"},
    });
    let local_queues = format!("/apis/{API}/namespaces/{TEAM_A}/localqueues");
    let waiting = format!("{}/waiting", jobs());
    let class = unsuspended(label("kueue.x-k8s.io/priority-class", "high"));
    let queue = unsuspended(label("kueue.x-k8s.io/queue-name", "theirs"));
    // Kueue suspends no Job whose owner it manages
    let claims = unsuspended(forged.clone());
    let attempts: [Attempt; 7] = [
        ("pod of no Job", Verb::Create, pods(), pod(json!({})), POD),
        ("pod that claims an admitted Job", Verb::Create, pods(), pod(forged), POD),
        ("Job that claims an admitted Job", Verb::Create, jobs(), claims, &["Kueue", "suspend: true"]),
        (
            "start of a waiting Job",
            Verb::Merge,
            waiting,
            json!({"spec": {"suspend": false}}),
            &["Kueue", "suspend: true"],
        ),
        ("queue of another team", Verb::Create, local_queues, local_queue, &["localqueues.kueue.x-k8s.io"]),
        ("foreign queue", Verb::Create, jobs(), queue, &["kueue.x-k8s.io/queue-name", "write default"]),
        ("class of priority", Verb::Create, jobs(), class, &["kueue.x-k8s.io/priority-class", "leave it out"]),
    ];
    Ok(attempts.into())
}

/// The Deployment is admitted, and an event names the reason why it has no pods.
async fn pods_of_a_deployment_are_refused(world: &World) -> Result<()> {
    let object = deployment(TEAM_A, "served", 1, &pod_spec(MIG_1G));
    let path = format!("/apis/apps/v1/namespaces/{TEAM_A}/deployments");
    OWNER.does(&world.client, Verb::Create, &path, &object).await?;
    eventually("an event about the refused pod of a Deployment", PATIENCE, || async {
        let events = pod_events(world, TEAM_A, "FailedCreate").await?;
        let named = events.iter().any(|event| event.starts_with("served-") && has_words(event, POD));
        Ok(if named { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await
}
