//! The pods that a decision is about, found without a walk over all of them.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use gputenancy_crds::{ids::PodName, names, projection::SlimPod};
use kube::ResourceExt as _;

use crate::{
    fleet::{Fleet, priority},
    pool::read::dirty_nodes::changed,
};

/// Pods by what they matter for.
#[derive(Debug, Default)]
pub struct PodIndex {
    known: BTreeMap<PodName, Arc<SlimPod>>,
    by_node: BTreeMap<String, BTreeSet<PodName>>,
    /// With the notice of an eviction.
    noticed: BTreeSet<PodName>,
    /// With a priority other than 0.
    priorities: BTreeMap<PodName, i32>,
    /// Without a node.
    unbound: BTreeSet<PodName>,
}

impl PodIndex {
    /// Brings the index up to date with the fleet.
    pub fn update(&mut self, fleet: &Fleet) {
        for (name, before) in changed(&mut self.known, &fleet.pods) {
            if let Some(node) = before.and_then(|pod| pod.spec.node_name.clone())
                && let Entry::Occupied(mut pods) = self.by_node.entry(node)
            {
                pods.get_mut().remove(&name);
                if pods.get().is_empty() {
                    pods.remove();
                }
            }
            self.noticed.remove(&name);
            self.priorities.remove(&name);
            self.unbound.remove(&name);
            let Some(pod) = fleet.pods.get(&name) else { continue };
            if pod.annotations().contains_key(names::EVICTION_NOTICE) {
                self.noticed.insert(name.clone());
            }
            if let Some(priority) = priority(pod) {
                self.priorities.insert(name.clone(), priority);
            }
            match pod.spec.node_name.clone() {
                Some(node) => drop(self.by_node.entry(node).or_default().insert(name)),
                None => drop(self.unbound.insert(name)),
            }
        }
    }

    /// Priorities other than 0, by namespace and name.
    pub fn priorities(&self) -> BTreeMap<(&str, &str), i32> {
        self.priorities.iter().map(|(name, priority)| (name.as_pair(), *priority)).collect()
    }

    /// The pod with this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&SlimPod> {
        let name = PodName { namespace: namespace.into(), name: name.to_owned() };
        self.known.get(&name).map(|pod| &**pod)
    }

    /// Pods that are bound to a node.
    pub fn on_node(&self, node: &str) -> Vec<(&PodName, &SlimPod)> {
        self.pods(self.by_node.get(node).into_iter().flatten()).collect()
    }

    /// Pods with the notice of an eviction.
    pub fn noticed(&self) -> impl Iterator<Item = (&PodName, &SlimPod)> {
        self.pods(self.noticed.iter())
    }

    /// Pods without a node.
    pub fn unbound(&self) -> impl Iterator<Item = (&PodName, &SlimPod)> {
        self.pods(self.unbound.iter())
    }

    fn pods<'a>(
        &'a self,
        names: impl Iterator<Item = &'a PodName>,
    ) -> impl Iterator<Item = (&'a PodName, &'a SlimPod)> {
        names.filter_map(|name| Some((name, &**self.known.get(name)?)))
    }
}
