//! Stops what still runs of deleted pods with a GPU after their time.

use std::time::{Duration, Instant};

use futures::future::join_all;
use gputenancy_agent_core::pods_past_grace::schedule::{Now, Schedule};
use gputenancy_cluster::error::sentence;
use gputenancy_crds::{GpuGrant, names::GRANT};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{OverduePod, TerminatingPods, notices::notice};
use crate::{
    event::Publish,
    forbidden_variables::runtime::{RunningContainer, Runtime},
    metrics::Metrics,
};

/// Longest sleep while a pod is deleted: the node's clock may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);
/// Seconds between SIGTERM and SIGKILL in the first attempt: where kubelet alone was down, no signal has reached the program.
const LAST_SECONDS: i64 = 10;
/// Limit for the answer of the API server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why containers of a pod were not stopped; tried again.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// Stops the containers of overdue pods of tenants.
pub struct OverdueStopper {
    /// Pods that are being deleted.
    pub pods: watch::Receiver<TerminatingPods>,
    /// The container runtime.
    pub runtime: Runtime,
    /// The API server.
    pub client: Client,
    /// Publishes an event for each pod.
    pub publish: Publish,
    /// Counts stopped containers.
    pub metrics: Metrics,
}

/// What an attempt for a pod found.
enum Attempt {
    /// Nothing runs.
    Ended,
    /// Its namespace is no tenant's.
    NotTenants,
    /// Containers ran; the event is published. An error: not all of them were killed.
    Killed(Result<(), Error>),
    /// It is unknown what runs.
    Failed(Error),
}

impl OverdueStopper {
    /// Stops for as long as it is polled.
    pub async fn run(self) {
        let mut pods = self.pods.clone();
        let mut schedule = Schedule::default();
        loop {
            let (due, next) = {
                let (pods, now) = (pods.borrow_and_update(), Now { wall: Timestamp::now(), monotonic: Instant::now() });
                schedule.update(&pods, now.monotonic);
                schedule.due(&pods, now)
            };
            if due.is_empty() {
                tokio::select! {
                    changed = pods.changed() => if changed.is_err() { return },
                    () = sleep(next.unwrap_or_default().min(LONGEST_SLEEP)), if next.is_some() => {}
                }
                continue;
            }
            // at the same time: a runtime that is slow with one team's containers must not delay those of another one
            let attempts = join_all(due.iter().map(|pod| self.attempt(pod, !schedule.is_reported(&pod.uid)))).await;
            for (pod, attempt) in due.iter().zip(attempts) {
                record(&mut schedule, pod, attempt, Instant::now());
            }
        }
    }

    /// Kills what runs of a pod. The first attempt, which `reports`, publishes the event and sends SIGTERM before.
    async fn attempt(&self, pod: &OverduePod, reports: bool) -> Attempt {
        let running = match self.runtime.running(&pod.uid).await {
            Ok(running) if running.is_empty() => return Attempt::Ended,
            Ok(running) => running,
            Err(error) => return Attempt::Failed(error.into()),
        };
        match self.is_tenants(&pod.namespace).await {
            Ok(true) => {}
            Ok(false) => return Attempt::NotTenants,
            Err(error) => return Attempt::Failed(error),
        }
        if reports {
            let names: Vec<&str> = running.iter().map(|container| container.name.as_str()).collect();
            let OverduePod { namespace, name, deadline, .. } = pod;
            tracing::warn!(namespace, pod = name, containers = names.join(", "), %deadline, "containers outlive their pod");
            (self.publish)(notice(pod, &names)).await;
        }
        let seconds = if reports { LAST_SECONDS } else { 0 };
        let killed = join_all(running.iter().map(|container| self.kill(container, seconds))).await;
        Attempt::Killed(killed.into_iter().collect())
    }

    async fn kill(&self, container: &RunningContainer, seconds: i64) -> Result<(), Error> {
        self.runtime.kill(container, seconds).await?;
        self.metrics.stopped_after_deadline();
        Ok(())
    }

    async fn is_tenants(&self, namespace: &str) -> Result<bool, Error> {
        let grants: Api<GpuGrant> = Api::namespaced(self.client.clone(), namespace);
        let grant = timeout(TIMEOUT, grants.get_opt(GRANT)).await;
        let grant = grant.map_err(|_| "reading the grant of the namespace: no answer within ten seconds")?;
        Ok(grant.map_err(|error| format!("reading the grant of the namespace: {}", sentence(&error)))?.is_some())
    }
}

/// Records an attempt and logs its error.
fn record(schedule: &mut Schedule, pod: &OverduePod, attempt: Attempt, now: Instant) {
    // the answer holds for the longest interval: other products' pods that end slowly must not load the API server
    schedule.retry(&pod.uid, now, matches!(attempt, Attempt::NotTenants));
    if matches!(attempt, Attempt::Killed(_)) {
        schedule.reported(&pod.uid);
    }
    let (Attempt::Killed(Err(error)) | Attempt::Failed(error)) = attempt else { return };
    let OverduePod { namespace, name, .. } = pod;
    if schedule.warns(&pod.uid, now) {
        tracing::warn!(namespace, pod = name, %error, "containers of deleted pod not stopped");
    } else {
        tracing::debug!(namespace, pod = name, %error, "containers of deleted pod not stopped");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn after(attempt: Attempt) -> (bool, Option<Duration>) {
        let metadata = json!({"namespace": "team-a", "name": "a", "uid": "u-a",
            "deletionTimestamp": "2026-11-27T12:00:00Z", "deletionGracePeriodSeconds": 0});
        let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        let (mut pods, mut schedule, start) = (TerminatingPods::default(), Schedule::default(), Instant::now());
        pods.apply(&from_value(json!({"metadata": metadata, "spec": {"containers": [container]}})).unwrap());
        schedule.update(&pods, start);
        let now = Now { wall: "2026-11-27T13:00:00Z".parse().unwrap(), monotonic: start + Duration::from_secs(30) };
        let (due, _) = schedule.due(&pods, now);
        record(&mut schedule, &due[0], attempt, now.monotonic);
        (schedule.is_reported("u-a"), schedule.due(&pods, now).1)
    }

    #[test]
    fn event_is_published_once_even_if_containers_cannot_be_killed() {
        let first = Some(Duration::from_secs(5));
        assert_eq!(after(Attempt::Killed(Err("task is in uninterruptible sleep".into()))), (true, first));
        assert_eq!(after(Attempt::Killed(Ok(()))), (true, first));
        assert_eq!(after(Attempt::Failed("no answer".into())), (false, first), "no event yet");
        assert_eq!(after(Attempt::Ended), (false, first));
    }

    #[test]
    fn namespace_without_a_grant_is_read_once_a_minute() {
        assert_eq!(after(Attempt::NotTenants), (false, Some(Duration::from_mins(1))));
    }
}
