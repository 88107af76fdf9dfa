//! Configs of NVIDIA's device plugin: which the `ConfigMap` has to contain, and which each node selects by its label.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{Advertiser, ChangePhase, GpuNode, GpuSpec, Layout, ids::GpuKey, names, projection::SlimNode};
use gputenancy_plan::Plan;
use kube::ResourceExt as _;

use crate::{
    change::ChangeDecision,
    fleet::Fleet,
    plugin::{PluginConfig, PluginConfigs, is_key},
    pool::derive::ownership::Ownership,
};

/// Configs that have to be published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigsWrite {
    /// All configs.
    pub configs: PluginConfigs,
    /// Keys that another client has changed or deleted.
    pub repaired: Vec<String>,
}

/// The configs of the nodes' present, next and last layouts, if the published ones lack any.
pub fn write(fleet: &Fleet, ownership: &Ownership) -> Option<ConfigsWrite> {
    let mut configs = PluginConfigs::default();
    let mut shared = false;
    for (name, node) in fleet.gpu_nodes.iter().filter(|(_, node)| is_by_plugin(node)) {
        let [pool] = ownership.pools_of(name) else { continue };
        let changing = node.spec.gpus.iter().any(|gpu| gpu.change.is_some());
        let others = || [PluginConfig::with(node, next), PluginConfig::with(node, last)];
        // a layout that cannot be expressed has no config
        let found = [PluginConfig::of(node)].into_iter().chain(changing.then(others).into_iter().flatten());
        for config in found.flatten() {
            shared |= config != PluginConfig::Exclusive;
            configs.add(pool.as_str(), config);
        }
    }
    let published = &fleet.plugin_configs;
    if !shared && published.is_empty() {
        return None;
    }
    configs.add("", PluginConfig::Exclusive);
    let mut repaired = configs.altered_in(published);
    // the plugin of a node reads the config that the label names
    for key in fleet.nodes.values().filter_map(|node| selected(node)) {
        let deleted = configs.has(key) && !published.has(key) && !repaired.iter().any(|known| known == key);
        repaired.extend(deleted.then(|| key.to_owned()));
        configs.keep(published, key);
    }
    (!configs.is_published(published)).then_some(ConfigsWrite { configs, repaired })
}

fn next(gpu: &GpuSpec) -> Layout {
    gpu.change.as_ref().map_or_else(|| gpu.layout(), |c| c.to.clone())
}

fn last(gpu: &GpuSpec) -> Layout {
    gpu.change.as_ref().map_or_else(|| gpu.layout(), |c| c.from.clone())
}

/// The value of the label that selects the config of a node. A config that is not published yet, or a layout that the plugin cannot
/// express, leaves the label as it is; so does a node without a pool of its own, as long as its GPUs are shared: without the label the
/// plugin would offer them whole to other pods.
pub fn label(fleet: &Fleet, pool: Option<&str>, (name, node): (&str, &GpuNode)) -> Option<String> {
    if !is_by_plugin(node) {
        return None;
    }
    let present = || fleet.nodes.get(name).and_then(|node| selected(node)).map(str::to_owned);
    let Some(pool) = pool else {
        return if node.spec.gpus.iter().any(|gpu| gpu.sharing.is_some()) { present() } else { None };
    };
    match PluginConfig::of(node) {
        Ok(config) => {
            let key = config.key(pool)?;
            if fleet.plugin_configs.has(&key) { Some(key) } else { present() }
        }
        Err(_) => present(),
    }
}

/// Whether a GPU of a node begins to be partitioned now, and NVIDIA's plugin could not express what the node has then.
pub fn is_inexpressible_after(fleet: &Fleet, name: &str, decisions: &BTreeMap<GpuKey, ChangeDecision>) -> bool {
    let Some(node) = fleet.gpu_nodes.get(name) else { return false };
    let decided = |uuid: &str| {
        let key = GpuKey { node: name.into(), uuid: uuid.into() };
        decisions.get(&key).and_then(|decision| decision.spec.as_ref())
    };
    let partitions = |gpu: &GpuSpec| gpu.change.as_ref().is_some_and(|c| c.phase == ChangePhase::Partitioning);
    let begins = |gpu: &GpuSpec| !partitions(gpu) && decided(&gpu.uuid).is_some_and(partitions);
    node.spec.gpus.iter().any(begins)
        && PluginConfig::with(node, |gpu| decided(&gpu.uuid).unwrap_or(gpu).layout()).is_err()
}

/// Nodes whose GPUs without MIG change together, because the plugin's config holds for all of them.
pub fn whole_nodes<'f>(fleet: &'f Fleet, plan: &Plan) -> BTreeSet<&'f str> {
    let shared = |layout: Option<&Layout>| layout.is_some_and(|l| l.sharing.is_some());
    let by_plugin = || fleet.gpu_nodes.iter().filter(|(_, node)| is_by_plugin(node));
    if by_plugin().next().is_none() {
        return BTreeSet::new();
    }
    let targets: BTreeSet<&str> =
        plan.gpus.iter().filter(|(_, gpu)| shared(gpu.target.as_deref())).map(|(key, _)| key.node.as_str()).collect();
    let has_shares = |node: &GpuNode| {
        let mut changes = node.spec.gpus.iter().filter_map(|g| g.change.as_ref());
        node.spec.gpus.iter().any(|g| g.sharing.is_some())
            || changes.any(|c| c.from.sharing.is_some() || c.to.sharing.is_some())
    };
    let nodes = by_plugin().filter(|(name, node)| targets.contains(name.as_str()) || has_shares(node));
    nodes.map(|(name, _)| name.as_str()).collect()
}

/// Does NVIDIA's device plugin advertise the devices of this node?
pub fn is_by_plugin(node: &GpuNode) -> bool {
    node.spec.advertiser == Advertiser::NvidiaDevicePlugin
}

/// The key in the node's label, if it is one of ours.
fn selected(node: &SlimNode) -> Option<&str> {
    node.labels().get(names::DEVICE_PLUGIN_CONFIG_LABEL).map(String::as_str).filter(|key| is_key(key))
}
