//! What follows from each `GpuNode`, and the totals over all of them. It is computed again only when the `GpuNode` has changed: in a large
//! fleet most have not.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::GpuNode;

use super::{
    devices::NodeDevices, marks::Marks, node_view::NodeView, ownership::Ownership, silence::Silent, sums::Sums,
};
use crate::{fleet::Fleet, pool::read::dirty_nodes::DirtyNodes};

/// What follows from each `GpuNode`, by node.
#[derive(Debug, Default)]
pub struct NodeViews {
    views: BTreeMap<String, NodeView>,
    sums: Sums,
    /// Nodes on which a pod bypasses the limit of its share.
    bypassed: BTreeSet<String>,
    /// Nodes on which a pod keeps more memory than its share has.
    resize_refused: BTreeSet<String>,
}

impl NodeViews {
    /// Brings the views of these nodes up to date with the fleet.
    pub fn update(
        &mut self,
        fleet: &Fleet,
        ownership: &Ownership,
        (silent, marks): (&Silent, &Marks),
        visited: &DirtyNodes,
    ) {
        for name in visited.iter() {
            let node = fleet.gpu_nodes.get(name);
            let free = !silent.contains(name) && marks.of(name).is_none();
            let view = node.map(|node| NodeView::of(node, ownership.pool_of(name), free));
            let shares = || node.iter().flat_map(|n| n.status.iter()).flat_map(|s| &s.gpus).flat_map(|gpu| &gpu.shares);
            let (bypassed, refused) =
                (shares().any(|share| share.bypass.is_some()), shares().any(|share| share.refused_resize.is_some()));
            keep(&mut self.bypassed, name, bypassed);
            keep(&mut self.resize_refused, name, refused);
            // taken out first: both may name the same GPUs
            if let Some(before) = self.views.remove(name) {
                self.sums.remove(&before);
            }
            if let Some(view) = view {
                self.sums.add(&view);
                self.views.insert(name.clone(), view);
            }
        }
    }

    /// The view of one node.
    pub fn get(&self, node: &str) -> Option<&NodeView> {
        self.views.get(node)
    }

    /// Totals over all nodes.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// `GpuNode`s on which a pod bypasses the limit of its share, by name.
    pub fn bypassed(&self) -> impl Iterator<Item = (&str, &GpuNode)> {
        self.nodes(&self.bypassed)
    }

    /// `GpuNode`s on which a pod keeps more memory than its share has, by name.
    pub fn resize_refused(&self) -> impl Iterator<Item = (&str, &GpuNode)> {
        self.nodes(&self.resize_refused)
    }

    fn nodes<'a>(&'a self, names: &'a BTreeSet<String>) -> impl Iterator<Item = (&'a str, &'a GpuNode)> {
        names.iter().filter_map(|name| Some((name.as_str(), &*self.views.get(name)?.node)))
    }

    /// The devices of every node, with its name.
    pub fn by_node(&self) -> impl Iterator<Item = (&str, &NodeDevices)> {
        self.views.iter().map(|(name, view)| (name.as_str(), &view.devices))
    }
}

/// Keeps a name in a set, or takes it out.
fn keep(names: &mut BTreeSet<String>, name: &str, kept: bool) {
    if kept {
        names.insert(name.to_owned());
    } else {
        names.remove(name);
    }
}
