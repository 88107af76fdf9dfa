//! Jobs that run until a test ends them. A pod that is only terminated fails, as many programs do, and no failure is tolerated.

use std::collections::BTreeMap;

use e2e::{
    Result, World,
    fixtures::{merged, pod_spec},
    objects::is_ready,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

/// State of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Suspended, without active pods.
    Suspended,
    /// Between the other states.
    Changing,
    /// All of its pods are Ready.
    Running,
    /// All of its pods have succeeded.
    Complete,
    /// One of its pods has failed.
    Failed,
}

/// A Job of so many pods, all at the same time, each with one device until [`end`].
pub fn job(namespace: &str, name: &str, resource: &str, pods: i32) -> Value {
    let hold = ["/usr/bin/gpu-work", "hold", "--memory", "1Gi", "--ignore-sigterm"];
    job_of(namespace, name, pods, resource, &hold)
}

/// A Job that ends by itself as soon as its pod has a device.
pub fn short_job(namespace: &str, name: &str, resource: &str) -> Value {
    job_of(namespace, name, 1, resource, &["/usr/bin/gpu-work", "show"])
}

fn job_of(namespace: &str, name: &str, pods: i32, resource: &str, command: &[&str]) -> Value {
    let mut pod = merged(pod_spec(resource), json!({"restartPolicy": "Never"}));
    pod["containers"][0]["command"] = json!(command);
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "parallelism": pods, "completions": pods, "template": {"spec": pod}},
    })
}

fn state(job: &Job) -> State {
    let (spec, status) = (job.spec.clone().unwrap_or_default(), job.status.clone().unwrap_or_default());
    let conditions = status.conditions.unwrap_or_default();
    let is = |type_: &str| conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
    if is("Failed") || status.failed.unwrap_or(0) > 0 {
        return State::Failed;
    }
    let suspended = spec.suspend == Some(true);
    if is("Complete") {
        State::Complete
    } else if suspended && status.active.unwrap_or(0) == 0 {
        State::Suspended
    } else if !suspended && status.ready.unwrap_or(0) == spec.parallelism.unwrap_or(1) {
        State::Running
    } else {
        State::Changing
    }
}

/// The Jobs of a namespace.
pub async fn states(world: &World, namespace: &str) -> Result<BTreeMap<String, State>> {
    let jobs = Api::<Job>::namespaced(world.client.clone(), namespace).list(&ListParams::default()).await?;
    Ok(jobs.iter().map(|job| (job.name_any(), state(job))).collect())
}

/// Waits until so many Jobs of a namespace run and so many are suspended, and returns the names of both.
pub async fn divided(
    world: &World,
    namespace: &str,
    running: usize,
    suspended: usize,
) -> Result<(Vec<String>, Vec<String>)> {
    eventually(&format!("{running} Jobs of {namespace} running, {suspended} suspended"), PATIENCE, || async {
        let all = states(world, namespace).await?;
        let names = |wanted: State| -> Vec<String> {
            all.iter().filter(|(_, state)| **state == wanted).map(|(job, _)| job.clone()).collect()
        };
        let (run, wait) = (names(State::Running), names(State::Suspended));
        let right = run.len() == running && wait.len() == suspended;
        Ok(if right { Ok((run, wait)) } else { Err(format!("{all:?}")) })
    })
    .await
}

/// Waits until a Job has this state.
pub async fn state_becomes(world: &World, namespace: &str, name: &str, wanted: State) -> Result<()> {
    let jobs = Api::<Job>::namespaced(world.client.clone(), namespace);
    eventually(&format!("Job {name} of {namespace} {wanted:?}"), PATIENCE, || async {
        let now = state(&jobs.get(name).await?);
        Ok(if now == wanted { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await
}

/// Ends the programs of a Job, as soon as they run, and waits until it is complete.
pub async fn end(world: &World, namespace: &str, name: &str) -> Result<()> {
    let jobs = Api::<Job>::namespaced(world.client.clone(), namespace);
    let pods = Api::<Pod>::namespaced(world.client.clone(), namespace);
    let own = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    eventually(&format!("Job {name} of {namespace} complete"), PATIENCE, || async {
        for pod in pods.list(&own).await?.iter().filter(|pod| is_ready(pod)) {
            let pod = pod.name_any();
            // the container may end before the command
            drop(world.kubectl(&["exec", "-n", namespace, &pod, "--", "/bin/sh", "-c", "kill -INT 1"]).await);
        }
        let now = state(&jobs.get(name).await?);
        Ok(if now == State::Complete { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await
}
