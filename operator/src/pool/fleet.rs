//! Reads the caches into the fleet that decisions are made from.

use std::sync::Arc;

use gputenancy_crds::names;
use gputenancy_engine::{
    fleet::{Fleet, dra_node},
    liveness,
    mig_manager::MigConfigs,
    plugin::PluginConfigs,
    projection::SlimPod,
};
use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube::ResourceExt as _;

use super::agents::AbsentAgents;
use crate::{
    cache::{Caches, Store},
    plan::PodName,
};

/// The fleet as it was read last. The maps of many objects are built again only when one of them has been written since.
#[derive(Debug, Default)]
pub struct FleetReader {
    fleet: Arc<Fleet>,
    gpu_nodes: Option<u64>,
    nodes: Option<u64>,
    pods: Option<u64>,
    agent_pods: Option<u64>,
    /// Nodes without a pod of the agent.
    absent: AbsentAgents,
}

impl FleetReader {
    /// The present content of the caches. It is written in place unless the last one is still in use.
    pub fn read(&mut self, caches: &Caches, now: Timestamp) -> Arc<Fleet> {
        let fleet = Arc::make_mut(&mut self.fleet);
        fleet.profiles = objects(&caches.profiles);
        fleet.pools = objects(&caches.pools);
        fleet.tenants = caches.tenants.state();
        fleet.dra = caches.slices.iter().flat_map(Store::state).filter_map(|s| dra_node(&s)).collect();
        fleet.mig_configs = mig_configs(&caches.mig_config);
        fleet.plugin_configs = plugin_configs(&caches.plugin_configs);
        if let Some(nodes) = caches.nodes.changed_since(&mut self.nodes) {
            fleet.nodes = nodes.into_iter().map(|n| (n.name_any(), n)).collect();
        }
        if let Some(pods) = caches.pods.changed_since(&mut self.pods) {
            let name = |p: &SlimPod| PodName {
                namespace: p.metadata.namespace.as_deref().unwrap_or_default().into(),
                name: p.name_any(),
            };
            fleet.pods = pods.into_iter().map(|p| (name(&p), p)).collect();
        }
        let gpu_nodes = caches.gpu_nodes.changed_since(&mut self.gpu_nodes);
        let agent_pods = caches.agent_pods.as_ref().map(|pods| pods.changed_since(&mut self.agent_pods));
        let changed = gpu_nodes.is_some() || agent_pods.as_ref().is_some_and(Option::is_some);
        if let Some(gpu_nodes) = gpu_nodes {
            fleet.gpu_nodes = gpu_nodes.into_iter().map(|n| (n.name_any(), n)).collect();
        }
        if let Some(pods) = agent_pods.filter(|_| changed) {
            let pods = pods.or_else(|| Some(caches.agent_pods.as_ref()?.state())).unwrap_or_default();
            fleet.agent_pods = Some(liveness::agent_pods(pods.iter().map(|p| &**p)));
            self.absent.add_to(fleet, now);
        }
        Arc::clone(&self.fleet)
    }
}

fn objects<K: Clone>(store: &Store<K>) -> Vec<K> {
    store.state().iter().map(|object| (**object).clone()).collect()
}

/// The layouts that are published for NVIDIA's MIG manager; what cannot be read is published again.
fn mig_configs(store: &Store<ConfigMap>) -> MigConfigs {
    let objects = store.state();
    let text = objects.first().and_then(|c| c.data.as_ref()?.get(names::MIG_CONFIG_KEY));
    let configs = text.map(|text| MigConfigs::parse(text)).unwrap_or_default();
    for error in configs.unreadable() {
        let (configmap, key) = (names::MIG_CONFIG_MAP, names::MIG_CONFIG_KEY);
        tracing::warn!(error, configmap, key, "published layouts cannot be read, replacing them");
    }
    configs
}

/// The configs that are published for NVIDIA's device plugin.
fn plugin_configs(store: &Store<ConfigMap>) -> PluginConfigs {
    let objects = store.state();
    objects.first().and_then(|c| c.data.as_ref()).map(PluginConfigs::parse).unwrap_or_default()
}
