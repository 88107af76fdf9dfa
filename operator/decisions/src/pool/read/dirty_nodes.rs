//! The nodes that a decision visits. Most nodes of a large fleet have not changed since the last decision, and nothing is to be done
//! about them.
//!
//! What is decided about one node follows from its own objects, its part of the plan, and the rules of pools and profiles. A node is
//! visited if one of these has changed, or if the last decision asked for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{GpuNode, GpuPoolSpec, GpuProfileSpec, projection::SlimNode};
use kube::{Resource, ResourceExt as _};

use super::{inventory::Inventory, tolerated::Tolerated};
use crate::{
    fleet::Fleet, liveness::AgentPod, maintenance::Maintenances, partitioner::MigConfigs, plugin::PluginConfigs,
};

/// Why a decision visits a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VisitReason {
    /// Its Node has changed.
    Node,
    /// Its `GpuNode` has changed.
    GpuNode,
    /// The pod of its agent has changed.
    AgentPod,
    /// Devices of NVIDIA's DRA driver on it have come or gone.
    DraDevices,
    /// Its announced maintenance has changed.
    Maintenance,
    /// The remembered mark of its taint has changed.
    TaintMark,
    /// The cache has an older `GpuNode` than the operator has written.
    Lagging,
    /// Pools, profiles or published configs have changed: all nodes are visited.
    Rules,
    /// Its part of the plan has changed.
    Plan,
    /// Something was decided about it: it is decided again until the caches show it.
    Unwritten,
    /// A GPU of it changes, or waits for its change.
    Change,
    /// A request for it, which is partitioned as a whole, is in progress.
    Request,
    /// Its agent does not report: a deadline ends by time alone.
    Silence,
    /// Others have marked it or one of its GPUs, which ends by time alone.
    Mark,
    /// A pod on it bypasses the limit of its share.
    Bypass,
}

/// The nodes that a decision visits, each with all reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyNodes(BTreeMap<String, BTreeSet<VisitReason>>);

impl DirtyNodes {
    /// Adds nodes that are visited for this reason.
    pub fn add(&mut self, reason: VisitReason, names: impl IntoIterator<Item = impl Into<String>>) {
        for name in names {
            self.0.entry(name.into()).or_default().insert(reason);
        }
    }

    /// Names of the nodes.
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Number of nodes by reason; a node counts for each of its reasons.
    pub fn by_reason(&self) -> BTreeMap<VisitReason, usize> {
        let mut counts = BTreeMap::new();
        self.0.values().flatten().for_each(|reason| *counts.entry(*reason).or_default() += 1);
        counts
    }
}

/// What the last decision was made from, and the nodes that the next one visits in any case.
#[derive(Debug, Default)]
pub struct LastInput {
    nodes: BTreeMap<String, Arc<SlimNode>>,
    gpu_nodes: BTreeMap<String, Arc<GpuNode>>,
    agent_pods: Option<BTreeMap<String, AgentPod>>,
    dra: BTreeSet<String>,
    maintenance: Maintenances,
    marks: BTreeMap<String, String>,
    rules: Rules,
    requeued: DirtyNodes,
}

impl LastInput {
    /// The nodes that this decision visits, as far as they do not follow from the plan.
    pub fn dirty(&mut self, inventory: &Inventory<'_>) -> DirtyNodes {
        let fleet = inventory.fleet;
        let mut dirty = std::mem::take(&mut self.requeued);
        dirty.add(VisitReason::Node, names(changed(&mut self.nodes, &fleet.nodes)));
        dirty.add(VisitReason::GpuNode, names(changed(&mut self.gpu_nodes, &fleet.gpu_nodes)));
        dirty.add(VisitReason::Lagging, inventory.lagging);
        if self.dra != fleet.dra {
            dirty.add(VisitReason::DraDevices, self.dra.symmetric_difference(&fleet.dra));
            self.dra.clone_from(&fleet.dra);
        }
        if self.maintenance != fleet.maintenance {
            dirty.add(VisitReason::Maintenance, differing(&self.maintenance, &fleet.maintenance));
            self.maintenance.clone_from(&fleet.maintenance);
        }
        if self.marks != *inventory.marks {
            dirty.add(VisitReason::TaintMark, differing(&self.marks, inventory.marks));
            self.marks.clone_from(inventory.marks);
        }
        let all = || fleet.nodes.keys().chain(fleet.gpu_nodes.keys());
        if self.agent_pods != fleet.agent_pods {
            match (&self.agent_pods, &fleet.agent_pods) {
                (Some(before), Some(now)) => dirty.add(VisitReason::AgentPod, differing(before, now)),
                _ => dirty.add(VisitReason::AgentPod, all()),
            }
            self.agent_pods.clone_from(&fleet.agent_pods);
        }
        if !self.rules.are(inventory) {
            self.rules = Rules::of(inventory);
            dirty.add(VisitReason::Rules, all());
        }
        dirty
    }

    /// The next decision visits these nodes, though nothing of them may have changed.
    pub fn requeue(&mut self, nodes: DirtyNodes) {
        self.requeued = nodes;
    }
}

/// Keys whose object is another one than before or gone, each with the object before; `before` becomes `now`.
pub fn changed<K: Ord + Clone, V>(
    before: &mut BTreeMap<K, Arc<V>>,
    now: &BTreeMap<K, Arc<V>>,
) -> Vec<(K, Option<Arc<V>>)> {
    // one object has one key: only keys of different objects are compared
    let mut pairs = before.iter().zip(now);
    if before.len() == now.len() && pairs.all(|(old, new)| Arc::ptr_eq(old.1, new.1) || old.0 == new.0) {
        let replaced = before.values_mut().zip(now).filter(|(before, (_, now))| !Arc::ptr_eq(before, now));
        let replace = |(before, (key, now)): (&mut Arc<V>, (&K, &Arc<V>))| {
            (key.clone(), Some(std::mem::replace(before, Arc::clone(now))))
        };
        return replaced.map(replace).collect();
    }
    let before = std::mem::replace(before, now.clone());
    let new = now.iter().filter(|(key, now)| before.get(*key).is_none_or(|before| !Arc::ptr_eq(before, now)));
    let new: Vec<K> = new.map(|(key, _)| key.clone()).collect();
    let gone = before.keys().filter(|key| !now.contains_key(*key)).cloned();
    new.into_iter().chain(gone).map(|key| (before.get(&key).cloned(), key)).map(|(before, key)| (key, before)).collect()
}

fn names<V>(changed: Vec<(String, Option<Arc<V>>)>) -> impl Iterator<Item = String> {
    changed.into_iter().map(|(name, _)| name)
}

fn differing<V: PartialEq>(before: &BTreeMap<String, V>, now: &BTreeMap<String, V>) -> Vec<String> {
    let gone = before.keys().filter(|key| !now.contains_key(*key));
    let new = now.iter().filter(|(key, now)| before.get(*key) != Some(now)).map(|(key, _)| key);
    gone.chain(new).cloned().collect()
}

/// What the decision about every node depends on.
#[derive(Debug, Default)]
struct Rules {
    profiles: Vec<Rule<GpuProfileSpec>>,
    pools: Vec<Rule<GpuPoolSpec>>,
    mig_configs: MigConfigs,
    plugin_configs: PluginConfigs,
    tolerated: Tolerated,
}

/// An object of an administrator, without its status.
#[derive(Debug)]
struct Rule<S> {
    name: String,
    deleted: bool,
    spec: S,
}

impl<S: Clone + PartialEq> Rule<S> {
    fn of(object: &impl Resource, spec: &S) -> Self {
        Self { name: object.name_any(), deleted: object.meta().deletion_timestamp.is_some(), spec: spec.clone() }
    }

    fn is(&self, object: &impl Resource, spec: &S) -> bool {
        let meta = object.meta();
        let same = meta.name.as_ref() == Some(&self.name) && meta.deletion_timestamp.is_some() == self.deleted;
        same && *spec == self.spec
    }
}

impl Rules {
    fn of(inventory: &Inventory<'_>) -> Self {
        let Fleet { profiles, pools, mig_configs, plugin_configs, .. } = inventory.fleet;
        Self {
            profiles: profiles.iter().map(|p| Rule::of(p, &p.spec)).collect(),
            pools: pools.iter().map(|p| Rule::of(p, &p.spec)).collect(),
            mig_configs: mig_configs.clone(),
            plugin_configs: plugin_configs.clone(),
            tolerated: inventory.tolerated.clone(),
        }
    }

    fn are(&self, inventory: &Inventory<'_>) -> bool {
        let Fleet { profiles, pools, mig_configs, plugin_configs, .. } = inventory.fleet;
        let Self { profiles: our_profiles, pools: our_pools, .. } = self;
        our_profiles.len() == profiles.len()
            && our_pools.len() == pools.len()
            && our_profiles.iter().zip(profiles).all(|(rule, p)| rule.is(p, &p.spec))
            && our_pools.iter().zip(pools).all(|(rule, p)| rule.is(p, &p.spec))
            && self.mig_configs == *mig_configs
            && self.plugin_configs == *plugin_configs
            && self.tolerated == *inventory.tolerated
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changed_keys_are_those_of_other_objects(
            before in proptest::collection::btree_map("[a-e]", 0..3_usize, 0..5),
            now in proptest::collection::btree_map("[a-e]", 0..3_usize, 0..5),
        ) {
            // an object of its own for each key and number
            let mut objects: BTreeMap<(String, usize), Arc<usize>> = BTreeMap::new();
            let mut map = |numbers: BTreeMap<String, usize>| -> BTreeMap<String, Arc<usize>> {
                let object = |(key, n): (String, usize)| {
                    let object = objects.entry((key.clone(), n)).or_insert_with(|| Arc::new(n));
                    (key, Arc::clone(object))
                };
                numbers.into_iter().map(object).collect()
            };
            let (mut before, now) = (map(before), map(now));
            let mut expected = differing(&before, &now);
            let old = before.clone();
            let found = changed(&mut before, &now);
            for (key, object) in &found {
                prop_assert_eq!(object.as_ref(), old.get(key));
            }
            let mut found: Vec<String> = names(found).collect();
            expected.sort();
            found.sort();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(&before, &now);
            prop_assert!(changed(&mut before, &now).is_empty());
        }
    }
}
