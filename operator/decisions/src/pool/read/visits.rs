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

/// Names of nodes.
pub type Names = BTreeSet<String>;

/// What the last decision was made from, and the nodes that the next one visits in any case.
#[derive(Debug, Default)]
pub struct Visits {
    nodes: BTreeMap<String, Arc<SlimNode>>,
    gpu_nodes: BTreeMap<String, Arc<GpuNode>>,
    agent_pods: Option<BTreeMap<String, AgentPod>>,
    dra: Names,
    maintenance: Maintenances,
    marks: BTreeMap<String, String>,
    rules: Rules,
    again: Names,
}

impl Visits {
    /// The nodes that this decision visits, as far as they do not follow from the plan.
    pub fn begin(&mut self, inventory: &Inventory<'_>) -> Names {
        let fleet = inventory.fleet;
        let mut visited = std::mem::take(&mut self.again);
        visited.extend(names(changed(&mut self.nodes, &fleet.nodes)));
        visited.extend(names(changed(&mut self.gpu_nodes, &fleet.gpu_nodes)));
        visited.extend(inventory.lagging.iter().cloned());
        if self.dra != fleet.dra {
            visited.extend(self.dra.symmetric_difference(&fleet.dra).cloned());
            self.dra.clone_from(&fleet.dra);
        }
        if self.maintenance != fleet.maintenance {
            visited.extend(differing(&self.maintenance, &fleet.maintenance));
            self.maintenance.clone_from(&fleet.maintenance);
        }
        if self.marks != *inventory.marks {
            visited.extend(differing(&self.marks, inventory.marks));
            self.marks.clone_from(inventory.marks);
        }
        let mut all = !self.rules.are(inventory);
        if self.agent_pods != fleet.agent_pods {
            match (&self.agent_pods, &fleet.agent_pods) {
                (Some(before), Some(now)) => visited.extend(differing(before, now)),
                _ => all = true,
            }
            self.agent_pods.clone_from(&fleet.agent_pods);
        }
        if all {
            self.rules = Rules::of(inventory);
            visited.extend(fleet.nodes.keys().chain(fleet.gpu_nodes.keys()).cloned());
        }
        visited
    }

    /// The next decision visits these nodes, though nothing of them may have changed.
    pub fn end(&mut self, again: Names) {
        self.again = again;
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
