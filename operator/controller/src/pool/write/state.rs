//! What a write about one node needs to know, and what is remembered of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use gputenancy_cluster::events::EventType;
use gputenancy_crds::{
    GpuNode,
    ids::{NodeName, PodName},
    reasons::Reason,
};
use gputenancy_decisions::{change::Refusal, fleet::Fleet, pool::decide::labels::Labels};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource as _, api::DynamicObject};
use tokio::time::Instant;

use super::{FleetWriter, repair::LastWrite};
use crate::queues::requeue::workload_of;

/// An eviction that the API server refused.
#[derive(Clone, Debug)]
pub struct RefusedEviction {
    /// When, and why in full.
    pub refusal: Refusal,
    /// The API server's answer.
    pub answer: String,
}

/// What is remembered of the writes about one node.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// UID and generation of the `GpuNode` as written last; the cache has to reach it before the next decision.
    pub(super) written: Option<(Option<String>, i64)>,
    /// Refused evictions by the pod's UID.
    pub refusals: BTreeMap<String, RefusedEviction>,
    /// Deadlines of the notices that were written, by the pod's UID: a pod that loses its annotation is not notified again.
    pub(super) notices: BTreeMap<String, Timestamp>,
    pub(super) labels: LastWrite<Labels>,
    pub(super) taint: LastWrite<Option<String>>,
    /// Cordons for changes, but for one that lasted.
    pub(super) cordon: LastWrite<()>,
}

impl NodeState {
    /// Is the cache older than the last write?
    pub fn is_lagging(&self) -> bool {
        self.written.is_some()
    }

    /// Is there anything that a change of the cache may end?
    pub(super) fn awaits(&self) -> bool {
        self.is_lagging() || !self.refusals.is_empty() || !self.notices.is_empty()
    }

    /// Drops what the cache has reached, and pods that are gone.
    pub(super) fn forget(&mut self, cached: Option<&GpuNode>, uids: &BTreeSet<&str>) {
        // a GpuNode that was created again begins with generation 1
        self.written.take_if(|(uid, generation)| {
            !cached.is_some_and(|n| n.metadata.uid == *uid && n.metadata.generation.is_some_and(|g| g < *generation))
        });
        self.refusals.retain(|uid, _| uids.contains(uid.as_str()));
        self.notices.retain(|uid, _| uids.contains(uid.as_str()));
    }
}

/// The pods that the last decision evicts. A write asks for them right before an eviction: plan, window or budget may say otherwise by
/// then.
#[derive(Clone, Debug, Default)]
pub struct EvictedPods(Arc<RwLock<BTreeSet<PodName>>>);

impl EvictedPods {
    /// A new decision evicts these.
    pub fn replace(&self, pods: BTreeSet<PodName>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pods;
    }

    /// Does the last decision evict this pod?
    pub fn contains(&self, pod: &PodName) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(pod)
    }
}

/// A node, where its writes go, and the objects as they were read.
#[derive(Clone, Copy)]
pub(super) struct NodeContext<'a> {
    pub writer: &'a FleetWriter,
    pub fleet: &'a Fleet,
    /// When it was decided about them.
    pub decided: Instant,
    /// The pods that the last decision evicts.
    pub evicted: &'a EvictedPods,
    pub name: &'a NodeName,
}

/// A decision to end a pod is not carried out any more after this time; the fleet is decided again.
const LIFETIME: Duration = Duration::from_secs(3);

impl NodeContext<'_> {
    /// The job of this pod, if Kueue has admitted it.
    pub fn workload_of(&self, name: &PodName, uid: &str) -> Option<Arc<DynamicObject>> {
        let kueue = self.writer.kueue.as_ref()?;
        let pod = self.fleet.pods.get(name).filter(|pod| pod.metadata.uid.as_deref() == Some(uid))?;
        workload_of(pod, kueue)
    }

    /// Plan and maintenance window may have changed since this was decided.
    pub fn is_outdated(&self) -> bool {
        self.decided.elapsed() > LIFETIME
    }

    /// Publishes an event about the `GpuNode`.
    pub async fn report(&self, event_type: EventType, reason: Reason, action: &str, message: String) {
        if let Some(gpu_node) = self.fleet.gpu_nodes.get(self.name.as_str()) {
            self.writer.report(gpu_node.object_ref(&()), event_type, reason, action, message).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::GpuNodeSpec;

    use super::*;

    fn cached(uid: &str, generation: i64) -> GpuNode {
        let mut node = GpuNode::new("gpu-1", GpuNodeSpec::default());
        (node.metadata.uid, node.metadata.generation) = (Some(uid.into()), Some(generation));
        node
    }

    #[test]
    fn cache_lags_until_it_has_the_written_generation_or_another_object() {
        for (present, lags) in
            [(Some(cached("a", 6)), true), (Some(cached("a", 7)), false), (Some(cached("b", 1)), false), (None, false)]
        {
            let mut state = NodeState { written: Some((Some("a".into()), 7)), ..NodeState::default() };
            state.forget(present.as_ref(), &BTreeSet::new());
            assert_eq!(state.is_lagging(), lags, "{:?}", present.map(|node| node.metadata));
        }
    }
}
