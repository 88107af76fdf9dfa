//! Quota and queue hand over the admission of pods to each other, while pods run and Jobs come.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pod_spec, pool, workload},
    objects::{self, PodIdentity, ensure, running},
    scenario::{MIG_1G, TEAM_A, TEAM_B, pool_ready, refused_pod, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, GpuTenant, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{
    kueue::Kueue,
    scene::{NODE, POOL, in_lab, installed, queue_ready, team, wall_becomes},
    work::{State, end, job, short_job, state_becomes},
};

/// Guarantee of the team, and what it may borrow above it.
const COUNT: i64 = 2;
const BORROW: i64 = 1;
/// A Job that borrows.
const BORROWER: &str = "borrower";
/// The kinds of Kueue that the operator writes.
const WRITTEN: &str = "topologies.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io,admissionchecks.kueue.x-k8s.io,\
                       cohorts.kueue.x-k8s.io,clusterqueues.kueue.x-k8s.io,localqueues.kueue.x-k8s.io";

#[tokio::test]
async fn quota_and_queue_hand_over_under_load() {
    in_lab("queues-switching", there_and_back).await;
}

async fn there_and_back(world: &World, kueue: &Kueue<'_>) -> Result<()> {
    installed(world, kueue).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool(POOL, NODE, &["mig-1g"])]).await?;
    let teams = [
        team(TEAM_A, "mig-1g", json!({"count": COUNT, "borrow": BORROW})),
        team(TEAM_B, "mig-1g", json!({"count": 2, "lend": 2})),
    ];
    world.set(&teams).await?;
    tenant_ready(world, TEAM_A).await?;
    tenant_ready(world, TEAM_B).await?;
    pool_ready(world, POOL).await?;
    wall_becomes(world, TEAM_A, MIG_1G, COUNT).await?;
    world.set(&[workload(TEAM_A, "w", MIG_1G, 2)]).await?;
    let before = world.pods_ready(TEAM_A, 2).await?;

    let sampler = Sampler::start(&world.client);
    switch(world, "Kueue", COUNT + BORROW, "to-kueue").await?;
    queue_ready(world, TEAM_A).await?;
    // behind the Jobs that came meanwhile
    world.set(&[job(TEAM_A, BORROWER, MIG_1G, 1)]).await?;
    state_becomes(world, TEAM_A, BORROWER, State::Running).await?;
    let borrowing = lasting(world).await?;
    unchanged(&before, &borrowing)?;

    switch(world, "None", COUNT, "to-none").await?;
    no_condition(world).await?;
    unchanged(&borrowing, &lasting(world).await?)?;
    // without a queue nothing reclaims what the Job has borrowed
    end(world, TEAM_A, BORROWER).await?;
    let (most, taken) = sampler.end();
    ensure(most == COUNT + BORROW && taken > 0, format!("at most {most} devices in {taken} taken"))?;

    world.kubectl(&["delete", "jobs", "-n", TEAM_A, "--all", "--timeout=2m"]).await?;
    nothing_is_left(world).await?;
    unchanged(&before, &lasting(world).await?)?;
    quota_admits(world).await
}

/// Sets the queueing system of the pool while Jobs come, and waits until the team's quota admits so many devices.
async fn switch(world: &World, system: &str, devices: i64, prefix: &str) -> Result<()> {
    let switched = async {
        let change = json!({"spec": {"queueing": {"system": system}}});
        let pools = Api::<GpuPool>::all(world.client.clone());
        pools.patch(POOL, &PatchParams::default(), &Patch::Merge(change)).await?;
        wall_becomes(world, TEAM_A, MIG_1G, devices).await
    };
    tokio::select! {
        () = jobs_come(world, prefix) => Err(Error::Wrong("no more Jobs come".into())),
        switched = switched => switched,
    }
}

/// Creates a Job every two seconds. Some are queued; the pods of others are refused, by the quota or by the policy.
async fn jobs_come(world: &World, prefix: &str) {
    for number in 0_u32.. {
        drop(world.set(&[short_job(TEAM_A, &format!("{prefix}-{number}"), MIG_1G)]).await);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// The running pods of the Deployment and of the Job that borrows.
async fn lasting(world: &World) -> Result<BTreeMap<String, PodIdentity>> {
    let mut pods = running(&world.client, TEAM_A).await?;
    pods.retain(|pod, _| pod.starts_with("w-") || pod.starts_with(BORROWER));
    Ok(pods)
}

/// Do all of these pods still run, with the same start?
fn unchanged(before: &BTreeMap<String, PodIdentity>, now: &BTreeMap<String, PodIdentity>) -> Result<()> {
    let same = before.iter().all(|(pod, identity)| now.get(pod) == Some(identity));
    ensure(same, format!("pods before {before:?}, now {now:?}"))
}

/// Waits until the team has no condition about a queue.
async fn no_condition(world: &World) -> Result<()> {
    let teams = Api::<GpuTenant>::all(world.client.clone());
    eventually("no condition QueueReady", PATIENCE, || async {
        let conditions = teams.get(TEAM_A).await?.status.unwrap_or_default().conditions;
        Ok(objects::condition(&conditions, "QueueReady").map_or(Ok(()), |c| Err(c.message.clone())))
    })
    .await
}

/// Waits until Kueue has no object of the operator.
async fn nothing_is_left(world: &World) -> Result<()> {
    let ours = format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGED_BY);
    eventually("no object of Kueue left", PATIENCE, || async {
        let labelled = world.kubectl(&["get", WRITTEN, "-A", "-l", &ours, "-o", "name"]).await?;
        let all = world.kubectl(&["get", WRITTEN, "-A", "-o", "name"]).await?;
        let named: Vec<&str> = all.lines().filter(|object| object.contains("/gput-")).collect();
        let none = labelled.trim().is_empty() && named.is_empty();
        Ok(if none { Ok(()) } else { Err(format!("{labelled} {named:?}")) })
    })
    .await
}

/// A pod of no Job is admitted within the guarantee, and none above it.
async fn quota_admits(world: &World) -> Result<()> {
    world.kubectl(&["scale", "deployment", "-n", TEAM_A, "w", "--replicas=1"]).await?;
    world.pods_ready(TEAM_A, 1).await?;
    let plain = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": TEAM_A}, "spec": pod_spec(MIG_1G),
    });
    // the quota counts the other pod until it has ended
    eventually("a pod admitted by the quota", PATIENCE, || async {
        world.set(std::slice::from_ref(&plain)).await.map(Ok)
    })
    .await?;
    world.pods_ready(TEAM_A, 2).await?;
    let refusal = refused_pod(world, TEAM_A, MIG_1G).await?;
    ensure(refusal.contains("exceeded quota"), refusal)
}

/// Counts what pods of the team hold, five times a second.
struct Sampler {
    most: Arc<AtomicI64>,
    samples: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Sampler {
    fn start(client: &Client) -> Self {
        let (most, samples) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicUsize::new(0)));
        let (pods, to, taken) = (Api::<Pod>::namespaced(client.clone(), TEAM_A), most.clone(), samples.clone());
        let task = tokio::spawn(async move {
            loop {
                if let Ok(now) = pods.list(&ListParams::default()).await {
                    to.fetch_max(now.iter().map(held).sum(), Ordering::Relaxed);
                    taken.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Self { most, samples, task }
    }

    /// The most devices at one time, and the number of samples.
    fn end(self) -> (i64, usize) {
        (self.most.load(Ordering::Relaxed), self.samples.load(Ordering::Relaxed))
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Devices of a pod with a node, until its programs have ended.
fn held(pod: &Pod) -> i64 {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let spec = pod.spec.as_ref().filter(|spec| spec.node_name.is_some() && !["Succeeded", "Failed"].contains(&phase));
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    let devices = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref()?.get(MIG_1G)?.0.parse::<i64>().ok());
    devices.sum()
}
