//! Reads the caches into the fleet that decisions are made from.

use gputenancy_crds::names;
use gputenancy_engine::{
    fleet::{Fleet, dra_node},
    liveness::agent_pods,
    mig_manager::MigConfigs,
    plugin::PluginConfigs,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use crate::{
    cache::{Caches, Store},
    plan::PodName,
};

/// The present content of the caches.
pub fn read(caches: &Caches) -> Fleet {
    let pods = caches.pods.state().into_iter();
    Fleet {
        profiles: objects(&caches.profiles),
        pools: objects(&caches.pools),
        tenants: caches.tenants.state(),
        gpu_nodes: caches.gpu_nodes.state().into_iter().map(|n| (n.name_any(), n)).collect(),
        nodes: caches.nodes.state().into_iter().map(|n| (n.name_any(), n)).collect(),
        dra: caches.slices.iter().flat_map(Store::state).filter_map(|s| dra_node(&s)).collect(),
        pods: pods
            .map(|p| (PodName { namespace: p.namespace().unwrap_or_default().into(), name: p.name_any() }, p))
            .collect(),
        mig_configs: mig_configs(&caches.mig_config),
        plugin_configs: plugin_configs(&caches.plugin_configs),
        agent_pods: caches.agent_pods.as_ref().map(|pods| agent_pods(pods.state().iter().map(|p| &**p))),
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
