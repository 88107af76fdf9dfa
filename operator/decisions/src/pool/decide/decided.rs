//! What is decided about GPUs and nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use gputenancy_crds::ids::{GpuKey, NodeName, PodName};

use super::{
    bypass::{self, BypassEvictions},
    gpu_changes,
    labels::{self, Labels},
    node_specs::{self, GpuWork},
    overlap,
    scheduled::Scheduled,
    taints::{self, TaintChange},
};
use crate::{
    change::ChangeDecision,
    pool::read::dirty_nodes::{DirtyNodes, VisitReason},
};

/// What is decided about GPUs and nodes, with all that it was decided from.
pub struct Decided<'a> {
    scheduled: Scheduled<'a>,
    /// Steps of changes, by GPU.
    pub gpu_changes: BTreeMap<GpuKey, ChangeDecision>,
    /// Pods that bypass the memory limit of their share.
    pub bypass: BypassEvictions,
    /// Specs that differ from what the cluster has, and what is done about pods, by node.
    pub nodes: BTreeMap<NodeName, GpuWork>,
    /// The operator's labels of nodes that lack them or have others.
    pub labels: BTreeMap<NodeName, Labels>,
    /// Taints of nodes that lack their pool's, or have one of the operator's that no pool wants.
    pub taints: BTreeMap<NodeName, TaintChange>,
    /// Nodes whose pool's name has to be copied from the Node to the `GpuNode`.
    pub pool_names: BTreeSet<NodeName>,
    /// Nodes that the next decision visits because of this one.
    pub requeued: DirtyNodes,
}

impl<'a> Decided<'a> {
    /// Decides about the visited nodes.
    pub fn of(scheduled: Scheduled<'a>) -> Self {
        let (inventory, ownership, visited) = (&scheduled.inventory(), scheduled.ownership, &scheduled.visited);
        let busy = gpu_changes::busy(&scheduled);
        let mut gpu_changes = gpu_changes::decisions(&scheduled, &busy);
        gpu_changes.extend(overlap::decisions(&scheduled));
        let bypass = bypass::evictions(inventory, ownership, scheduled.views, scheduled.pods);
        let nodes = node_specs::work(&scheduled, &gpu_changes, &bypass.evictions);
        let labels = labels::labels(inventory.fleet, ownership, scheduled.views, visited);
        let taints = taints::taints(inventory, ownership, visited);
        let pool_names = labels::pool_names(inventory.fleet, visited);
        let mut requeued = DirtyNodes::default();
        let changing = gpu_changes.keys().chain(busy.iter().map(|(key, _)| *key)).map(|key| key.node.as_str());
        requeued.add(VisitReason::Change, changing);
        requeued.add(VisitReason::Request, scheduled.requests.keys().map(NodeName::as_str));
        let written = nodes.keys().chain(labels.keys()).chain(taints.keys()).chain(&pool_names);
        requeued.add(VisitReason::Unwritten, written.map(NodeName::as_str));
        requeued.add(VisitReason::Lagging, inventory.lagging);
        requeued.add(VisitReason::Silence, scheduled.silent.nodes());
        requeued.add(VisitReason::Mark, scheduled.marks.visited_again());
        requeued.add(VisitReason::Bypass, scheduled.views.bypassed().map(|(name, _)| name));
        Self { scheduled, gpu_changes, bypass, nodes, labels, taints, pool_names, requeued }
    }

    /// Pods that are evicted now, and those of nodes whose agent has yet to report on the last spec: until then no eviction is decided there,
    /// and one that is being carried out goes on.
    pub fn evicted(&self) -> impl Iterator<Item = &PodName> {
        let evicted = self.gpu_changes.iter().flat_map(|(key, decision)| {
            let node = self.fleet().gpu_nodes.get(key.node.as_str());
            let observed = node.and_then(|n| n.status.as_ref()?.observed_generation);
            let stale =
                node.is_some_and(|n| n.metadata.generation != observed) && self.fleet().answers(key.node.as_str());
            let evicted = decision.evictions.iter().map(|eviction| &eviction.pod);
            evicted.chain(decision.notified.iter().filter(move |_| stale))
        });
        evicted.chain(self.bypass.pods())
    }
}

/// A stage has all that the one before it has.
impl<'a> Deref for Decided<'a> {
    type Target = Scheduled<'a>;

    fn deref(&self) -> &Scheduled<'a> {
        &self.scheduled
    }
}
