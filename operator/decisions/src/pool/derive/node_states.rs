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

use super::{marks::Marks, pod_index::PodIndex, silence::Silent};
use crate::{
    fleet::{Fleet, NodeState},
    pool::read::{tolerated::Tolerated, visits::Names},
};

/// The states of all nodes, by name.
#[derive(Debug, Default)]
pub struct NodeStates {
    nodes: BTreeMap<String, Known>,
    silent: Silent,
    marks: Marks,
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
    /// What follows from the history alone.
    #[cfg(test)]
    pub fn with_marks_alone(&self) -> Self {
        Self { marks: self.marks.clone(), ..Self::default() }
    }

    /// Brings the states of these nodes up to date with the fleet.
    pub fn update(&mut self, fleet: &Fleet, visited: &Names) {
        for name in visited {
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

    /// Brings the verdicts of others on these nodes up to date with the fleet.
    pub fn update_marks(&mut self, fleet: &Fleet, tolerated: &Tolerated, now: Timestamp, visited: &Names) {
        self.marks.update(fleet, tolerated, now, visited);
    }

    /// Brings the silent ones of these nodes up to date. Only nodes of a pool, and those with a `GpuNode`, are expected to report: all others
    /// have no GPUs, and may be many.
    pub fn update_silent(&mut self, is_pooled: impl Fn(&str) -> bool, visited: &Names) {
        for name in visited {
            let expected = |known: &&Known| known.gpu_node.is_some() || is_pooled(name);
            let liveness = self.nodes.get(name).filter(expected).map(|known| known.state.liveness);
            match liveness.filter(|liveness| !liveness.is_alive()) {
                Some(liveness) => drop(self.silent.insert(name.clone(), liveness)),
                None => drop(self.silent.remove(name)),
            }
        }
    }

    /// The planner's input at `now`.
    pub fn cluster<'a>(&'a self, fleet: &'a Fleet, pods: &'a PodIndex, now: Timestamp) -> Cluster<'a> {
        let facts = |(name, known): (&'a String, &'a Known)| {
            let Known { node, gpu_node, state } = known;
            let (ready, foreign) = (state.is_supply(Some(now)), state.foreign.clone());
            let marked = self.marks.of(name).map(Cow::Borrowed);
            let (labels, withdrawn, gpus) = (node.as_ref()?.labels(), self.marks.withdrawn(name), gpu_node.as_ref());
            Some(NodeFacts { name, labels, ready, foreign, marked, withdrawn, gpus })
        };
        fleet.cluster_with(self.nodes.iter().filter_map(facts).collect(), pods.priorities())
    }

    /// A conflicting owner of the GPUs of a node.
    pub fn foreign(&self, node: &str) -> Option<&ConflictingOwner> {
        self.nodes.get(node)?.state.foreign.as_ref()
    }

    /// Nodes whose agent is expected to report and does not.
    pub fn silent(&self) -> &Silent {
        &self.silent
    }

    /// Verdicts of others on nodes.
    pub fn marks(&self) -> &Marks {
        &self.marks
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
