//! Jobs that wait in queues of the real Kueue.

mod borrowing;
mod bypass;
mod gangs;
mod kueue;
mod maintenance;
mod outage;
mod priorities;
mod scene;
mod switching;
mod work;
mod workloads;

use std::time::Duration;

use e2e::{
    Error, Result, World,
    fixtures::{merged, restricted_spec},
    objects::ensure,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use kueue::{API, Kueue, VISIBILITY};

/// Its folder among the lab's artifacts.
const TEST: &str = "kueue-jobs";
const TEAM: &str = "queues";
const DEVICE: &str = "nvidia.com/mig-1g.10gb";
/// The queue of Jobs that name none.
const QUEUE: &str = "default";

#[tokio::test]
async fn kueue_admits_one_of_two_jobs_and_the_other_after_an_outage() {
    let world = World::attach().await.unwrap();
    let kueue = Kueue::new(&world, TEST);
    let outcome = one_device(&world, &kueue).await;
    if outcome.is_err() {
        // what cannot be kept must not hide the failure
        let _ = kueue.evidence().await;
    }
    let removed = removed(&world, &kueue).await;
    world.keeping_evidence(TEST, async { outcome.and(removed) }).await;
}

async fn one_device(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    kueue.start().await?;
    world.set(&queue()).await?;
    for object in ["clusterqueues.kueue.x-k8s.io/queues", "localqueues.kueue.x-k8s.io/default"] {
        world.kubectl(&["wait", "--for=condition=Active", object, "-n", TEAM, "--timeout=2m"]).await?;
    }
    world.set(&[job("one"), job("two")]).await?;
    let (admitted, waiting) = eventually("one of two Jobs admitted", PATIENCE, || async {
        let (running, held) = jobs(world).await?;
        Ok(match (running.as_slice(), held.as_slice()) {
            ([one], [other]) => Ok((one.clone(), other.clone())),
            _ => Err(format!("admitted {running:?}, suspended {held:?}")),
        })
    })
    .await?;
    first_in_line(world, &waiting).await?;

    kueue.stop().await?;
    world.kubectl(&["delete", "job", "-n", TEAM, &admitted, "--wait=false"]).await?;
    // nothing else may resume a Job
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (running, held) = jobs(world).await?;
    ensure(running.is_empty() && held == [waiting.clone()], format!("admitted {running:?}, suspended {held:?}"))?;
    kueue.resume().await?;
    eventually("the other Job admitted", PATIENCE, || async {
        let (running, held) = jobs(world).await?;
        Ok(if running == [waiting.clone()] { Ok(()) } else { Err(format!("suspended {held:?}")) })
    })
    .await
}

async fn removed(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    kueue.remove().await?;
    world.kubectl(&["delete", "namespace", TEAM, "--ignore-not-found", "--timeout=4m"]).await.map(drop)
}

/// One device for the namespace.
fn queue() -> [Value; 4] {
    let quota = json!({"name": "devices", "resources": [{"name": DEVICE, "nominalQuota": "1"}]});
    let spec = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": TEAM}},
        "resourceGroups": [{"coveredResources": [DEVICE], "flavors": [quota]}],
    });
    [
        json!({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "devices"}}),
        json!({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": TEAM}, "spec": spec}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}),
        json!({
            "apiVersion": API, "kind": "LocalQueue", "metadata": {"name": QUEUE, "namespace": TEAM},
            "spec": {"clusterQueue": TEAM},
        }),
    ]
}

/// A suspended Job with one pod on one device.
fn job(name: &str) -> Value {
    let pod = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/usr/bin/gpu-work", "hold", "--memory", "1Gi"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {DEVICE: "1"}},
    }));
    let pod = merged(pod, json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 2}));
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": TEAM},
        "spec": {"suspend": true, "backoffLimit": 0, "template": {"spec": pod}},
    })
}

/// Names of the Jobs in the queue: those that are admitted, and those that are suspended.
async fn jobs(world: &World) -> Result<(Vec<String>, Vec<String>)> {
    let queued = ListParams::default().labels(&format!("kueue.x-k8s.io/queue-name={QUEUE}"));
    let all = Api::<Job>::namespaced(world.client.clone(), TEAM).list(&queued).await?.items;
    let suspended = |job: &Job| job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    let (held, running): (Vec<Job>, Vec<Job>) = all.into_iter().partition(suspended);
    let names = |jobs: Vec<Job>| jobs.iter().map(Job::name_any).collect();
    Ok((names(running), names(held)))
}

/// Waits until the visibility API lists this Job alone, at the first position.
async fn first_in_line(world: &World, job: &str) -> Result<()> {
    let path = format!("{VISIBILITY}/namespaces/{TEAM}/localqueues/{QUEUE}/pendingworkloads");
    eventually(&format!("{job} first in the queue"), PATIENCE, || async {
        let text = world.kubectl(&["get", "--raw", &path]).await?;
        let summary: Value = serde_json::from_str(&text)
            .map_err(|e| Error::Text { what: format!("{path}: {text}"), why: e.to_string() })?;
        let items = summary["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let right = |item: &Value| {
            item["metadata"]["ownerReferences"][0]["name"] == job
                && item["positionInLocalQueue"] == 0
                && item["positionInClusterQueue"] == 0
        };
        Ok(if matches!(items, [item] if right(item)) { Ok(()) } else { Err(text) })
    })
    .await
}
