//! All writes about one `GpuNode`, its GPUs and their pods; and those about the labels and taints of a Node. The two do not wait for
//! each other: a webhook that hangs for Nodes must not stop a change.

use std::collections::BTreeMap;

use futures::future;
use gputenancy_crds::{
    GpuNode,
    ids::{NodeName, PodName},
    names,
};
use gputenancy_decisions::{
    fleet::Fleet,
    partitioner::RequestDecision,
    pool::{
        decide::{canary::OrphanedCanary, labels::Labels, node_specs::GpuWork, taints::TaintChange},
        decision::FleetDecision,
    },
};
use kube::ResourceExt as _;
use serde_json::json;

use super::{
    Outcome, WriteError, Written, canary, event_type, failed, labels, partition_request, plugin, pods,
    state::{NodeContext, NodeState},
};
use crate::apply::Part;

/// What is written about one Node.
#[derive(Default)]
pub struct NodeWrite {
    labels: Option<Labels>,
    taint: Option<TaintChange>,
}

impl NodeWrite {
    /// Takes what concerns Nodes out of a decision.
    pub fn by_node(decision: &mut FleetDecision) -> BTreeMap<NodeName, Self> {
        let mut writes: BTreeMap<NodeName, Self> = BTreeMap::new();
        for (node, labels) in std::mem::take(&mut decision.labels) {
            writes.entry(node).or_default().labels = Some(labels);
        }
        for (node, taint) in std::mem::take(&mut decision.taints) {
            writes.entry(node).or_default().taint = Some(taint);
        }
        writes
    }

    /// Writes labels and taint. A failure of one does not keep the other from being written.
    pub(super) async fn steps(self, node: NodeContext<'_>, state: &mut NodeState, outcome: &mut Outcome) {
        let Self { labels, taint } = self;
        if let Some(taint) = taint {
            outcome.record(labels::write_taint(node, state, taint).await);
        }
        // last: a new version of the Node would make the write above conflict, which carries the version from the cache
        if let Some(labels) = labels {
            outcome.record(labels::write(node, state, labels).await);
        }
    }
}

/// What is written about one `GpuNode`.
#[derive(Default)]
pub struct GpuNodeWrite {
    /// The pool's name has to be copied from the Node to the `GpuNode`.
    pool_label: bool,
    work: GpuWork,
    orphaned_canaries: Vec<OrphanedCanary>,
    request: Option<RequestDecision>,
    cancelled_evictions: Vec<(PodName, String)>,
}

impl GpuNodeWrite {
    /// Takes what concerns GPUs out of a decision.
    pub fn by_node(fleet: &Fleet, decision: &mut FleetDecision) -> BTreeMap<NodeName, Self> {
        let mut writes: BTreeMap<NodeName, Self> = BTreeMap::new();
        for node in std::mem::take(&mut decision.pool_names) {
            writes.entry(node).or_default().pool_label = true;
        }
        for (node, work) in std::mem::take(&mut decision.nodes) {
            writes.entry(node).or_default().work = work;
        }
        for (node, canaries) in std::mem::take(&mut decision.orphaned_canaries) {
            writes.entry(node).or_default().orphaned_canaries = canaries;
        }
        for (node, request) in std::mem::take(&mut decision.requests) {
            writes.entry(node).or_default().request = Some(request);
        }
        for (pod, uid) in std::mem::take(&mut decision.cancelled_evictions) {
            let node = fleet.pods.get(&pod).and_then(|p| p.spec.node_name.as_deref()).unwrap_or_default();
            writes.entry(node.into()).or_default().cancelled_evictions.push((pod, uid));
        }
        writes
    }

    /// Writes everything about one `GpuNode`. A failure does not keep later steps from being done, unless they depend on it.
    pub(super) async fn steps(self, node: NodeContext<'_>, state: &mut NodeState, outcome: &mut Outcome) {
        let Self { pool_label, work, orphaned_canaries, request, cancelled_evictions } = self;
        if pool_label {
            outcome.record(labels::copy_pool(node, pool_of(node.fleet, node.name.as_str())).await);
        }
        let worked = gpus(node, state, work, outcome).await;
        // the verdict of a canary pod is deleted only when what follows from it is written
        if matches!(worked, Ok(Written::Done)) {
            for canary in orphaned_canaries {
                outcome.record(canary::delete(node, canary).await);
            }
        }
        outcome.record(worked);
        if let Some(request) = request {
            outcome.record(partition_request::write(node, request).await);
        }
        for (pod, uid) in cancelled_evictions {
            state.notices.remove(&uid);
            outcome.record(pods::cancel_notice(node, &pod, &uid).await);
        }
    }
}

fn pool_of<'a>(fleet: &'a Fleet, node: &str) -> Option<&'a String> {
    fleet.nodes.get(node).and_then(|n| n.labels().get(names::POOL_LABEL))
}

/// Writes the spec first: what follows depends on it. It carries the version that was decided about, so that a decision about an older
/// one is not written.
async fn gpus(
    node: NodeContext<'_>,
    state: &mut NodeState,
    work: GpuWork,
    outcome: &mut Outcome,
) -> Result<Written, WriteError> {
    let NodeContext { writer, fleet, name, decided: _, evicted: _ } = node;
    let Some(gpu_node) = fleet.gpu_nodes.get(name.as_str()) else {
        return plugin::write(node, state, work.plugin).await;
    };
    if let Some(spec) = work.spec {
        let metadata = json!({"uid": gpu_node.uid(), "resourceVersion": gpu_node.resource_version()});
        let fields = json!({"metadata": metadata, "spec": spec});
        let applied = match writer.writer.apply_fields::<GpuNode>(Part::Pool, name.as_str(), fields).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => return Ok(Written::Again),
            applied => applied.map_err(failed("writing the GpuNode's spec"))?,
        };
        state.written = applied.metadata.generation.map(|generation| (applied.uid(), generation));
    }
    outcome.record(Ok(plugin::write(node, state, work.plugin).await?));
    // at once: a slow write of events must not delay an eviction
    future::join_all(work.events.into_iter().map(|event| {
        writer.metrics.event(event.reason);
        node.report(event_type(event.warning), event.reason, "Change", event.message)
    }))
    .await;
    // before notices: kubelet ends a pod that it has just synced for its new annotation up to a second later
    for eviction in work.evictions {
        outcome.record(pods::evict(node, state, eviction).await);
    }
    pods::notify(node, state, work.notices, outcome).await;
    for request in work.canaries {
        canary::create(node, request).await?;
    }
    Ok(Written::Done)
}
