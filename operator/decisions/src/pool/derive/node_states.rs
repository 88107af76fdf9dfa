//! What follows from the objects of each node: whether its agent reports, who else owns its GPUs, what others say about it, and which
//! resources it offers.

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use gputenancy_crds::{GpuNode, names, projection::SlimNode};
use gputenancy_plan::{Cluster, ConflictingOwner, NodeFacts};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::{marks::Marks, pod_index::PodIndex};
use crate::{
    fleet::{Fleet, NodeState},
    liveness::Liveness,
    pool::read::dirty_nodes::DirtyNodes,
};

/// The states of all nodes, by name.
#[derive(Debug, Default)]
pub struct NodeStates {
    nodes: BTreeMap<String, Known>,
    /// Number of nodes by GPU resource in `status.allocatable`.
    resources: BTreeMap<String, usize>,
}

/// One node with its objects.
#[derive(Debug)]
struct Known {
    node: Option<Arc<SlimNode>>,
    gpu_node: Option<Arc<GpuNode>>,
    state: NodeState,
}

impl NodeStates {
    /// Brings the states of these nodes up to date with the fleet.
    pub fn update(&mut self, fleet: &Fleet, visited: &DirtyNodes) {
        for name in visited.iter() {
            let (node, gpu_node) = (fleet.nodes.get(name).cloned(), fleet.gpu_nodes.get(name).cloned());
            let state = (node.is_some() || gpu_node.is_some()).then(|| fleet.node_state(name));
            for resource in node.iter().flat_map(|node| resources(node)) {
                *self.resources.entry(resource.to_owned()).or_default() += 1;
            }
            let before = match state {
                Some(state) => self.nodes.insert(name.clone(), Known { node, gpu_node, state }),
                None => self.nodes.remove(name),
            };
            for resource in before.iter().filter_map(|known| known.node.as_ref()).flat_map(|node| resources(node)) {
                if let Entry::Occupied(mut count) = self.resources.entry(resource.to_owned()) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
            }
        }
    }

    /// Liveness of an agent that is expected to report: that of a node with a `GpuNode`, or of a pool. All other nodes have no GPUs, and may be
    /// many.
    pub fn expected_agent(&self, node: &str, is_pooled: bool) -> Option<Liveness> {
        let expected = |known: &&Known| known.gpu_node.is_some() || is_pooled;
        self.nodes.get(node).filter(expected).map(|known| known.state.liveness)
    }

    /// The planner's input at `now`.
    pub fn cluster<'a>(
        &'a self,
        fleet: &'a Fleet,
        marks: &'a Marks,
        pods: &'a PodIndex,
        now: Timestamp,
    ) -> Cluster<'a> {
        let facts = |(name, known): (&'a String, &'a Known)| {
            let Known { node, gpu_node, state } = known;
            let (ready, foreign) = (state.is_supply(Some(now)), state.foreign.clone());
            let marked = marks.of(name).map(Cow::Borrowed);
            let (labels, withdrawn, gpus) = (node.as_ref()?.labels(), marks.withdrawn(name), gpu_node.as_ref());
            Some(NodeFacts { name, labels, ready, foreign, marked, withdrawn, gpus })
        };
        fleet.cluster_with(self.nodes.iter().filter_map(facts).collect(), pods.priorities())
    }

    /// A conflicting owner of the GPUs of a node.
    pub fn foreign(&self, node: &str) -> Option<&ConflictingOwner> {
        self.nodes.get(node)?.state.foreign.as_ref()
    }

    /// GPU resources that nodes offer.
    pub fn resources(&self) -> impl Iterator<Item = &String> {
        self.resources.keys()
    }
}

fn resources(node: &SlimNode) -> impl Iterator<Item = &str> {
    let named = |resource: &&str| names::is_gpu_resource(resource) && !names::is_canary_resource(resource);
    node.status.allocatable.keys().map(String::as_str).filter(named)
}
