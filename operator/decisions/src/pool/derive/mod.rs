//! What follows of a node from what was read, without a decision: states, owners, marks, devices, sums.
//!
//! Each module keeps its result from one pass to the next, and renews it for the nodes that have changed.

pub mod devices;
pub mod discovery;
pub mod enforcement;
pub mod flapping;
pub mod gpu_marks;
pub mod marks;
pub mod node_states;
pub mod node_view;
pub mod node_views;
pub mod ownership;
pub mod pod_index;
pub mod silence;
pub mod sums;

use std::ops::Deref;

use gputenancy_plan::Cluster;

use self::{
    marks::Marks, node_states::NodeStates, node_views::NodeViews, ownership::Ownership, pod_index::PodIndex,
    silence::Silent,
};
use super::read::{Read, inventory::Inventory};

/// What follows from the objects, kept from one decision to the next.
#[derive(Debug, Default)]
pub struct Derivations {
    /// Pods by what they matter for.
    pub pods: PodIndex,
    /// What follows from the objects of each node.
    pub states: NodeStates,
    /// Pools and owners of nodes.
    pub ownership: Ownership,
    /// Nodes whose agent does not report.
    pub silent: Silent,
    /// Verdicts of others on nodes and GPUs.
    pub marks: Marks,
    /// What follows from each `GpuNode` alone, and totals.
    pub views: NodeViews,
}

impl Derivations {
    /// What follows from the history of the present objects, and not from what they are now.
    #[cfg(test)]
    #[must_use]
    pub fn history(&self, fleet: &crate::fleet::Fleet) -> Self {
        Self { marks: self.marks.of_existing(fleet), ..Self::default() }
    }
}

/// What follows from the objects that were read.
pub struct Derived<'a> {
    read: Read<'a>,
    /// What follows from the objects of each node.
    pub states: &'a NodeStates,
    /// Pools and owners of nodes.
    pub ownership: &'a Ownership,
    /// Nodes whose agent does not report.
    pub silent: &'a Silent,
    /// Verdicts of others on nodes and GPUs.
    pub marks: &'a Marks,
    /// What follows from each `GpuNode` alone, and totals.
    pub views: &'a NodeViews,
    /// Pods by what they matter for.
    pub pods: &'a PodIndex,
}

impl<'a> Derived<'a> {
    /// Brings what is kept up to date with the objects, for the nodes that are visited.
    pub fn of(read: Read<'a>, kept: &'a mut Derivations) -> Self {
        let Inventory { fleet, now, tolerated, .. } = read.inventory();
        let dirty = &read.dirty;
        let Derivations { pods, states, ownership, silent, marks, views } = kept;
        pods.update(fleet);
        states.update(fleet, dirty);
        ownership.update(fleet, states, dirty);
        silent.update(states, ownership, dirty);
        marks.update(fleet, tolerated, now, dirty);
        views.update(fleet, ownership, (silent, marks), dirty);
        Self { read, states, ownership, silent, marks, views, pods }
    }

    /// The planner's input.
    pub fn cluster(&self) -> Cluster<'_> {
        self.states.cluster(self.fleet(), self.marks, self.pods, self.now())
    }
}

/// A stage has all that the one before it has.
impl<'a> Deref for Derived<'a> {
    type Target = Read<'a>;

    fn deref(&self) -> &Read<'a> {
        &self.read
    }
}
