//! The GPUs of a plan by node: a large fleet is written node by node, and read in the order of names.

use std::{
    collections::{BTreeMap, btree_map},
    slice,
};

use super::{
    name::{GpuKey, NodeName},
    outcome::GpuPlan,
};

/// What each GPU should become, in the order of nodes and UUIDs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpus {
    /// By node, sorted by UUID; no node without GPUs.
    nodes: BTreeMap<NodeName, Vec<(GpuKey, GpuPlan)>>,
}

/// GPUs in the order of nodes and UUIDs.
#[derive(Debug)]
pub struct Iter<'a> {
    nodes: btree_map::Values<'a, NodeName, Vec<(GpuKey, GpuPlan)>>,
    here: slice::Iter<'a, (GpuKey, GpuPlan)>,
}

impl Gpus {
    /// What is planned for a GPU.
    pub fn get(&self, key: &GpuKey) -> Option<&GpuPlan> {
        let here = self.nodes.get(&key.node)?;
        let at = here.binary_search_by(|(k, _)| k.uuid.cmp(&key.uuid)).ok()?;
        here.get(at).map(|(_, gpu)| gpu)
    }

    /// All of them.
    pub fn iter(&self) -> Iter<'_> {
        Iter { nodes: self.nodes.values(), here: [].iter() }
    }

    /// Their names.
    pub fn keys(&self) -> impl Iterator<Item = &GpuKey> {
        self.iter().map(|(key, _)| key)
    }

    /// What is planned for them.
    pub fn values(&self) -> impl Iterator<Item = &GpuPlan> {
        self.iter().map(|(_, gpu)| gpu)
    }

    /// Sets what is planned for a GPU that is there.
    pub fn set(&mut self, (key, gpu): (GpuKey, GpuPlan)) {
        let Some(here) = self.nodes.get_mut(&key.node) else { return };
        let found = here.binary_search_by(|(k, _)| k.uuid.cmp(&key.uuid));
        if let Some(slot) = found.ok().and_then(|at| here.get_mut(at)) {
            slot.1 = gpu;
        }
    }

    /// Sets what is planned for a node's GPUs, sorted by UUID; without any the node is gone.
    pub(super) fn set_node(&mut self, node: &NodeName, gpus: Vec<(GpuKey, GpuPlan)>) {
        if gpus.is_empty() {
            self.nodes.remove(node);
        } else {
            self.nodes.insert(node.clone(), gpus);
        }
    }

    /// From nodes sorted by name, each with its GPUs sorted by UUID.
    pub(super) fn of(nodes: Vec<(NodeName, Vec<(GpuKey, GpuPlan)>)>) -> Self {
        Self { nodes: nodes.into_iter().filter(|(_, gpus)| !gpus.is_empty()).collect() }
    }
}

impl<'a> IntoIterator for &'a Gpus {
    type Item = (&'a GpuKey, &'a GpuPlan);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a GpuKey, &'a GpuPlan);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, gpu)) = self.here.next() {
                return Some((key, gpu));
            }
            self.here = self.nodes.next()?.iter();
        }
    }
}
