//! Jobs that leave their devices: through Kueue, which suspends and queues them again. An eviction of their pods would count as a failure of the
//! job.

use std::sync::Arc;

use gputenancy_crds::projection::SlimPod;
use k8s_openapi::jiff::Timestamp;
use kube::{ResourceExt as _, api::DynamicObject};

use super::{
    observe::has_condition,
    workloads::{self, CheckState},
    write::Write,
};
use crate::{
    apply::{Part, Writer},
    cache::KueueCaches,
};

/// The job of a pod as Kueue has admitted it; `None`: Kueue has not admitted the pod.
pub fn workload_of(pod: &SlimPod, kueue: &KueueCaches) -> Option<Arc<DynamicObject>> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let of_job = |workload: &DynamicObject| {
        has_condition(workload, "QuotaReserved")
            && workload.owner_references().iter().any(|job| job.uid == owner.uid)
            && workloads::state(workload).is_some()
    };
    kueue.workloads.in_namespace(pod.metadata.namespace.as_deref()?).into_iter().find(|workload| of_job(workload))
}

/// Has Kueue suspend a job and queue it again; false: that is under way already.
///
/// # Errors
/// The answer of the API server.
pub async fn requeue(writer: &Writer, workload: &DynamicObject, reason: &str) -> kube::Result<bool> {
    if has_condition(workload, "Evicted") || workloads::state(workload) == Some("Retry") {
        return Ok(false);
    }
    let Write::Status((kind, namespace, name), fields) =
        workloads::status(workload, CheckState::Retry, reason, Timestamp::now())
    else {
        return Ok(false);
    };
    writer.apply_status_as(Part::Queues, &kind.resource(), (&namespace, &name), &fields).await.map(|()| true)
}
