//! The order of a team's waiting jobs, and how long jobs of the team have waited of late. Pure.

use gputenancy_decisions::queues::job::{TypicalWait, typical_wait};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::{NamespaceObjects, QueueOrder, QueuedJob, RecentWaits, Sources};
use crate::units::seconds;

/// A job as Kueue's visibility API lists it.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct PendingWorkload {
    /// Of Kueue's object of the job.
    pub metadata: ObjectMeta,
    /// Jobs of the team that are admitted before it.
    pub position_in_cluster_queue: u32,
}

/// Jobs that wait in a namespace.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct PendingWorkloads {
    /// In their order.
    pub items: Vec<PendingWorkload>,
}

/// Why positions cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PositionsError {
    /// A right is missing.
    #[error("you may not get localqueues/pendingworkloads of Kueue's visibility API in namespace {0}")]
    Forbidden(String),
    /// There is no such API, or no queue.
    #[error("Kueue's visibility API is not served, or has no LocalQueue default in namespace {0}")]
    NotServed(String),
    /// Kueue is away.
    #[error("Kueue's visibility API does not answer")]
    NoBackend,
    /// Another answer.
    #[error("{0}")]
    Other(String),
}

/// The order of the jobs that wait; `None`: none waits, or the namespaces have no queue.
pub(super) fn order(sources: &Sources) -> Option<QueueOrder> {
    let mut jobs: Vec<QueuedJob> = sources.namespaces.iter().flat_map(|place| queued(sources, place)).collect();
    jobs.sort_by(|a, b| (a.position, &a.namespace, &a.job).cmp(&(b.position, &b.namespace, &b.job)));
    let mut unread = sources.namespaces.iter().filter_map(|place| place.pending.as_ref()?.as_ref().err());
    let status = sources.tenant.as_ref().and_then(|tenant| tenant.status.as_ref());
    let waits = status.and_then(|status| status.queue.as_ref()).is_none_or(|queue| queue.waiting > 0);
    let not_visible = unread.next().filter(|_| waits).map(ToString::to_string);
    if jobs.is_empty() && not_visible.is_none() {
        return None;
    }
    let workloads = sources.namespaces.iter().flat_map(|place| &place.workloads);
    let recent = typical_wait(workloads, sources.now);
    let recent = recent.map(|TypicalWait { seconds, jobs }| RecentWaits { median_seconds: seconds, jobs });
    Some(QueueOrder { jobs, not_visible, recent })
}

/// The jobs of a namespace that wait.
fn queued<'s>(sources: &'s Sources, place: &'s NamespaceObjects) -> impl Iterator<Item = QueuedJob> {
    let pending = place.pending.iter().flatten().flat_map(|pending| &pending.items);
    pending.map(move |workload| {
        let owner = workload.metadata.owner_references.iter().flatten().next();
        let created = workload.metadata.creation_timestamp.as_ref();
        QueuedJob {
            namespace: place.name.clone(),
            job: owner.map_or_else(|| workload.metadata.name.clone().unwrap_or_default(), |owner| owner.name.clone()),
            // Kueue counts from 0
            position: workload.position_in_cluster_queue.saturating_add(1),
            seconds: created.map(|at| seconds(sources.now.duration_since(at.0))),
        }
    })
}
