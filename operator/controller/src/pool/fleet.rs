//! Reads the caches into the fleet that decisions are made from.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_cluster::watch::{Reading, Store, differs};
use gputenancy_crds::{
    GpuPool, GpuPoolStatus, GpuProfile, GpuProfileStatus, GpuTenant, ids::PodName, names, projection::SlimPod,
};
use gputenancy_decisions::{
    fleet::{Fleet, dra_node},
    liveness, maintenance,
    namespace_owners::foreign,
    partitioner::MigConfigs,
    plugin::PluginConfigs,
    pool::{decision::FleetDecision, read::agents::AbsentAgents},
    queues::PoolQueue,
};
use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube::ResourceExt;

use crate::cache::Caches;

/// The fleet as it was read last. What has not been written since is not read again.
#[derive(Debug, Default)]
pub struct FleetReader {
    fleet: Arc<Fleet>,
    gpu_nodes: Option<Reading>,
    nodes: Option<Reading>,
    pods: Option<Reading>,
    agent_pods: Option<Reading>,
    slices: Option<Reading>,
    maintenance: Option<Reading>,
    mig_config: Option<Reading>,
    plugin_configs: Option<Reading>,
    /// Nodes without a pod of the agent.
    absent: AbsentAgents,
}

/// Statuses of pools and profiles that were decided, by name: an object that differs from the last reading by this status alone is
/// the operator's own write.
#[derive(Debug, Default)]
pub struct DecidedStatuses {
    pools: BTreeMap<String, GpuPoolStatus>,
    profiles: BTreeMap<String, GpuProfileStatus>,
}

impl DecidedStatuses {
    /// Those of a decision.
    pub fn of(decision: &FleetDecision) -> Self {
        Self { pools: decision.pools.clone(), profiles: decision.profiles.clone() }
    }

    /// A rollout continues from the status of its pool.
    fn is_own_pool(&self, old: &GpuPool, new: &GpuPool) -> bool {
        new.spec.rollout.is_none()
            && new.status.as_ref() == self.pools.get(&new.name_any())
            && !differs(&GpuPool { status: new.status.clone(), ..old.clone() }, new)
    }

    fn is_own_profile(&self, old: &GpuProfile, new: &GpuProfile) -> bool {
        new.status.as_ref() == self.profiles.get(&new.name_any())
            && !differs(&GpuProfile { status: new.status.clone(), ..old.clone() }, new)
    }
}

impl FleetReader {
    /// Takes over the state of queues by pool (`None`: the operator writes none), and answers whether it differs.
    pub fn take_queues(&mut self, queues: Option<BTreeMap<String, PoolQueue>>) -> bool {
        let differs = self.fleet.queues != queues;
        if differs {
            Arc::make_mut(&mut self.fleet).queues = queues;
        }
        differs
    }

    /// The present content of the caches, and whether it differs from the last reading by anything that a decision is made from. It is
    /// written in place unless the last one is still in use.
    pub fn read(&mut self, caches: &Caches, decided: &DecidedStatuses, now: Timestamp) -> (Arc<Fleet>, bool) {
        let fleet = Arc::make_mut(&mut self.fleet);
        let (profiles, pools, tenants) = (objects(&caches.profiles), objects(&caches.pools), caches.tenants.state());
        let mut differs = !same(&fleet.profiles, &profiles, |old, new| old == new || decided.is_own_profile(old, new))
            || !same(&fleet.pools, &pools, |old, new| old == new || decided.is_own_pool(old, new))
            || !same(&fleet.tenants, &tenants, |old, new| Arc::ptr_eq(old, new) || is_same_demand(old, new));
        (fleet.profiles, fleet.pools, fleet.tenants) = (profiles, pools, tenants);
        if let Some((slices, changed)) = caches.slices.as_ref().and_then(|slices| slices.since(&mut self.slices)) {
            fleet.dra = slices.iter().filter_map(|s| dra_node(s)).collect();
            differs |= changed;
        }
        if let Some((objects, changed)) = caches.maintenance.since(&mut self.maintenance) {
            fleet.maintenance = maintenance::by_node(&objects);
            differs |= changed;
        }
        if let Some((objects, changed)) = caches.mig_config.since(&mut self.mig_config) {
            fleet.mig_configs = mig_configs(&objects);
            differs |= changed;
        }
        if let Some((objects, changed)) = caches.plugin_configs.since(&mut self.plugin_configs) {
            fleet.plugin_configs = plugin_configs(&objects);
            differs |= changed;
        }
        if let Some((nodes, changed)) = caches.nodes.since(&mut self.nodes) {
            replace(&mut fleet.nodes, nodes, ResourceExt::name_any);
            differs |= changed;
        }
        if let Some((pods, changed)) = caches.pods.since(&mut self.pods) {
            replace(&mut fleet.pods, pods, pod_name);
            differs |= changed;
        }
        let mut names_differ = false;
        if let Some((gpu_nodes, changed)) = caches.gpu_nodes.since(&mut self.gpu_nodes) {
            names_differ = replace(&mut fleet.gpu_nodes, gpu_nodes, ResourceExt::name_any);
            differs |= changed;
        }
        if let Some(agent_pods) = &caches.agent_pods {
            let pods = agent_pods.since(&mut self.agent_pods);
            differs |= pods.as_ref().is_some_and(|(_, changed)| *changed);
            if let Some(pods) = pods.map(|(pods, _)| pods).or_else(|| names_differ.then(|| agent_pods.state())) {
                fleet.agent_pods = Some(liveness::agent_pods(pods.iter().map(|p| &**p)));
                self.absent.add_to(fleet, now);
            }
        }
        (Arc::clone(&self.fleet), differs)
    }
}

/// Takes over the objects of a store, which are in the order of their keys. True: there are other keys.
fn replace<K: Ord, V>(map: &mut BTreeMap<K, Arc<V>>, objects: Vec<Arc<V>>, key: impl Fn(&V) -> K) -> bool {
    let aligned = |(entry, new): ((&K, &Arc<V>), &Arc<V>)| Arc::ptr_eq(entry.1, new) || *entry.0 == key(new);
    if map.len() == objects.len() && map.iter().zip(&objects).all(aligned) {
        map.values_mut().zip(objects).for_each(|(old, new)| *old = new);
        return false;
    }
    *map = objects.into_iter().map(|object| (key(&object), object)).collect();
    true
}

fn pod_name(pod: &SlimPod) -> PodName {
    PodName { namespace: pod.metadata.namespace.as_deref().unwrap_or_default().into(), name: pod.name_any() }
}

fn same<K>(old: &[K], new: &[K], is_same: impl Fn(&K, &K) -> bool) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_same(old, new))
}

/// Of a tenant's status only foreign namespaces are read; its writes are frequent.
fn is_same_demand(old: &GpuTenant, new: &GpuTenant) -> bool {
    let (before, now) = (&old.metadata, &new.metadata);
    before.uid == now.uid
        && before.generation == now.generation
        && before.deletion_timestamp == now.deletion_timestamp
        && old.spec == new.spec
        && foreign(old).eq(foreign(new))
}

fn objects<K: Clone>(store: &Store<K>) -> Vec<K> {
    store.state().iter().map(|object| (**object).clone()).collect()
}

/// The published layouts; what cannot be read is published again.
fn mig_configs(objects: &[Arc<ConfigMap>]) -> MigConfigs {
    let text = objects.first().and_then(|c| c.data.as_ref()?.get(names::MIG_CONFIG_KEY));
    let configs = text.map(|text| MigConfigs::parse(text)).unwrap_or_default();
    for error in configs.unreadable() {
        let (configmap, key) = (names::MIG_CONFIG_MAP, names::MIG_CONFIG_KEY);
        tracing::warn!(error, configmap, key, "published layouts cannot be read, replacing them");
    }
    configs
}

/// The configs that are published for NVIDIA's device plugin.
fn plugin_configs(objects: &[Arc<ConfigMap>]) -> PluginConfigs {
    objects.first().and_then(|c| c.data.as_ref()).map(PluginConfigs::parse).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pool(status: &Value, spec: &Value) -> GpuPool {
        let selector = json!({"nodeSelector": {"matchLabels": {"x": "y"}}, "profiles": ["small"]});
        let mut pool = json!({"metadata": {"name": "p", "resourceVersion": status.to_string()}, "spec": selector});
        pool["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pool["status"] = status.clone();
        serde_json::from_value(pool).unwrap()
    }

    #[test]
    fn status_that_was_decided_is_no_reason_for_a_decision_unless_a_rollout_continues_from_it() {
        let (before, decided, others) = (json!({"nodes": 1}), json!({"nodes": 2}), json!({"nodes": 3}));
        let (plain, rollout) = (json!({}), json!({"rollout": {"soak": "1m"}}));
        let statuses = |status: &Value| DecidedStatuses {
            pools: [("p".to_owned(), serde_json::from_value(status.clone()).unwrap())].into(),
            ..DecidedStatuses::default()
        };
        let own = |old: (&Value, &Value), new: (&Value, &Value)| {
            statuses(&decided).is_own_pool(&pool(old.0, old.1), &pool(new.0, new.1))
        };
        assert!(own((&before, &plain), (&decided, &plain)));
        assert!(!own((&before, &plain), (&others, &plain)), "another client wrote it");
        assert!(!own((&before, &plain), (&decided, &json!({"profiles": []}))), "the spec has changed as well");
        assert!(!own((&before, &rollout), (&decided, &rollout)));
        assert!(!DecidedStatuses::default().is_own_pool(&pool(&before, &plain), &pool(&decided, &plain)));
    }

    #[test]
    fn demand_of_a_tenant_depends_on_its_foreign_namespaces() {
        let tenant = |phase: &str| -> GpuTenant {
            serde_json::from_value(json!({
                "metadata": {"name": "t"},
                "spec": {"namespaces": [{"name": "t"}]},
                "status": {"namespaces": [{"name": "t", "phase": phase}]},
            }))
            .unwrap()
        };
        assert!(is_same_demand(&tenant("Missing"), &tenant("Active")));
        assert!(!is_same_demand(&tenant("Missing"), &tenant("Foreign")));
        assert!(!is_same_demand(&tenant("Foreign"), &tenant("Missing")));
    }

    #[test]
    fn status_of_a_tenant_is_no_demand() {
        let tenant = |generation: i64, count: i32, reason: &str| -> GpuTenant {
            serde_json::from_value(json!({
                "metadata": {"name": "t", "uid": "u", "generation": generation},
                "spec": {"namespaces": [{"name": "t"}], "gpus": [{"profile": "small", "count": count}]},
                "status": {"conditions": [{"type": "Ready", "status": "True", "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .unwrap()
        };
        assert!(is_same_demand(&tenant(1, 1, "Ready"), &tenant(1, 1, "Reconciling")));
        assert!(!is_same_demand(&tenant(1, 1, "Ready"), &tenant(2, 2, "Ready")));
    }

    proptest! {
        #[test]
        fn map_takes_over_a_store(
            before in proptest::collection::btree_set(0..6_u8, 0..6),
            now in proptest::collection::btree_set(0..6_u8, 0..6),
            kept: bool,
        ) {
            let object = |key: &u8| (*key, Arc::new((*key, 'o')));
            let mut map: BTreeMap<u8, Arc<(u8, char)>> = before.iter().map(object).collect();
            let new = |key: &u8| map.get(key).filter(|_| kept).cloned().unwrap_or_else(|| Arc::new((*key, 'n')));
            let objects: Vec<_> = now.iter().map(new).collect();
            let expected: BTreeMap<u8, Arc<(u8, char)>> = objects.iter().map(|o| (o.0, Arc::clone(o))).collect();
            prop_assert_eq!(replace(&mut map, objects, |o| o.0), before != now);
            prop_assert_eq!(map, expected);
        }
    }
}
