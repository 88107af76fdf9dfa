//! The operator's labels on nodes: pool, layout, whether the layout changes, and what limits memory.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    ChangePhase, GpuNode,
    ids::{NodeName, PoolName},
    names,
    projection::SlimNode,
};
use kube::ResourceExt as _;

use super::plugin_configs;
use crate::{
    fleet::Fleet,
    plugin::is_key,
    pool::{
        derive::{discovery, node_views::NodeViews, ownership::Ownership},
        read::dirty_nodes::DirtyNodes,
    },
};

/// Value of the label `layout.state` while a GPU of the node changes.
const CHANGING: &str = "changing";

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// Labels of the visited nodes, where they differ from what the node has; a node with a conflicting owner, or in several pools, keeps
/// those that it has.
pub fn labels(
    fleet: &Fleet,
    ownership: &Ownership,
    views: &NodeViews,
    visited: &DirtyNodes,
) -> BTreeMap<NodeName, Labels> {
    let differing = |name: &String| {
        let decided = !ownership.is_conflicting(name) && !ownership.overlaps(name);
        let node = fleet.nodes.get(name).filter(|_| decided)?;
        let gpu_node = fleet.gpu_nodes.get(name).map(|n| &**n);
        let wanted = wanted(fleet, views, (name, node), (gpu_node, ownership.pool_of(name)));
        let differs = wanted.iter().any(|(label, value)| node.labels().get(label) != Some(value));
        let differs = differs || unwanted(node.labels(), &wanted).next().is_some();
        differs.then(|| (name.as_str().into(), wanted))
    };
    visited.iter().filter_map(differing).collect()
}

/// Visited nodes whose pool's name has to be copied from the Node to the `GpuNode`.
pub fn pool_names(fleet: &Fleet, visited: &DirtyNodes) -> BTreeSet<NodeName> {
    let differs = |name: &&String| {
        let pool = fleet.nodes.get(*name).and_then(|n| n.labels().get(names::POOL_LABEL));
        fleet.gpu_nodes.get(*name).is_some_and(|gpu_node| gpu_node.labels().get(names::POOL_LABEL) != pool)
    };
    visited.iter().filter(differs).map(|name| name.as_str().into()).collect()
}

/// The labels that a node shall have, as far as the operator writes them.
fn wanted(
    fleet: &Fleet,
    views: &NodeViews,
    (name, node): (&str, &SlimNode),
    (gpu_node, pool): (Option<&GpuNode>, Option<&PoolName>),
) -> Labels {
    let mut wanted = Labels::new();
    if let (Some(pool), Some(gpu_node)) = (pool, gpu_node) {
        wanted.insert(names::POOL_LABEL.to_owned(), pool.to_string());
        if !gpu_node.spec.gpus.is_empty() {
            let state = state(gpu_node);
            wanted.insert(names::LAYOUT_STATE_LABEL.to_owned(), state.to_owned());
            if let Some(view) = views.get(name) {
                wanted.insert(names::LAYOUT_LABEL.to_owned(), view.layout.clone());
                let means = view.enforcement.map(|means| (names::ENFORCEMENT_LABEL.to_owned(), means.to_string()));
                wanted.extend(means);
                wanted.extend(discovery::labels(node, &view.instance_labels, state == CHANGING));
            }
        }
    }
    let config =
        gpu_node.and_then(|gpu_node| plugin_configs::label(fleet, pool.map(PoolName::as_str), (name, gpu_node)));
    wanted.extend(config.map(|config| (names::DEVICE_PLUGIN_CONFIG_LABEL.to_owned(), config)));
    if gpu_node.and_then(|n| n.status.as_ref()).is_some_and(|s| s.simulated == Some(true)) {
        wanted.insert(names::SIMULATED_LABEL.to_owned(), "true".to_owned());
    }
    wanted
}

/// Labels of a node that are written by the operator alone and not wanted: an apply leaves them if another client has set them.
pub fn unwanted<'a>(labels: &'a Labels, wanted: &'a Labels) -> impl Iterator<Item = &'a str> {
    // an agent that is gone does not take the mark of simulation with it
    let owned = [names::POOL_LABEL, names::LAYOUT_LABEL, names::LAYOUT_STATE_LABEL, names::ENFORCEMENT_LABEL];
    let present = labels.keys().map(String::as_str);
    // an administrator's own config stays
    let config = |l: &str| l == names::DEVICE_PLUGIN_CONFIG_LABEL && labels.get(l).is_some_and(|value| is_key(value));
    // labels of instances on a node without ours are of another client
    let instances = |l: &str| labels.contains_key(names::POOL_LABEL) && discovery::owns(labels, l);
    present.filter(move |l| (owned.contains(l) || config(l) || instances(l)) && !wanted.contains_key(*l))
}

fn state(node: &GpuNode) -> &'static str {
    let phases = || node.spec.gpus.iter().filter_map(|g| g.change.as_ref()).map(|c| c.phase);
    if phases().any(|p| p < ChangePhase::RolledBack) {
        CHANGING
    } else if phases().next().is_some() {
        "failed"
    } else {
        "steady"
    }
}
