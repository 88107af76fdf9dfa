//! The operator's labels on nodes: pool, layout, whether the layout changes, and what limits memory.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{ChangePhase, GpuNode, names};
use kube::ResourceExt as _;

use super::{discovery, node_views::NodeViews, ownership::Ownership, plugin_configs};
use crate::plan::{Cursor, NodeName, PoolName};
use gputenancy_engine::{fleet::Fleet, plugin::is_key, projection::SlimNode};

/// Value of the label `layout.state` while a GPU of the node changes.
const CHANGING: &str = "changing";

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// Nodes that have the labels that they shall have, with the objects that this follows from: most nodes have not changed since.
#[derive(Debug, Default)]
pub struct SettledLabels(BTreeMap<String, Settled>);

#[derive(Debug)]
struct Settled {
    node: Arc<SlimNode>,
    gpu_node: Arc<GpuNode>,
    pool: PoolName,
}

/// Labels by node, where they differ from what the node has; a node with a conflicting owner keeps those that it has.
pub fn labels(
    fleet: &Fleet,
    ownership: &Ownership,
    views: &NodeViews,
    SettledLabels(settled): &mut SettledLabels,
) -> BTreeMap<NodeName, Labels> {
    let mut differing = BTreeMap::new();
    if settled.len() > fleet.nodes.len() {
        settled.retain(|name, _| fleet.nodes.contains_key(name));
    }
    let (mut gpu_nodes, mut members) = (Cursor::of(&fleet.gpu_nodes), Cursor::of(&ownership.members));
    let mut updates = Vec::new();
    let mut known = Cursor::of(settled);
    for (name, node) in &fleet.nodes {
        if ownership.is_conflicting(name) {
            continue;
        }
        let gpu_node = gpu_nodes.get(name);
        let pool = if let Some([pool]) = members.get(name).map(Vec::as_slice) { Some(pool) } else { None };
        let same = |s: &Settled| {
            Arc::ptr_eq(&s.node, node)
                && gpu_node.is_some_and(|gpu_node| Arc::ptr_eq(&s.gpu_node, gpu_node))
                && pool == Some(&s.pool)
        };
        if known.get(name).is_some_and(same) {
            continue;
        }
        let wanted = wanted(fleet, views, (name, node), (gpu_node.map(|n| &**n), pool));
        let differs = wanted.iter().any(|(label, value)| node.labels().get(label) != Some(value));
        if differs || unwanted(node.labels(), &wanted).next().is_some() {
            differing.insert(name.as_str().into(), wanted);
            updates.push((name, None));
        } else if let (Some(gpu_node), Some(pool)) = (gpu_node, pool)
            // the label for NVIDIA's plugin follows from the published configs as well
            && !plugin_configs::is_by_plugin(gpu_node)
        {
            let (node, gpu_node, pool) = (Arc::clone(node), Arc::clone(gpu_node), pool.clone());
            updates.push((name, Some(Settled { node, gpu_node, pool })));
        } else {
            updates.push((name, None));
        }
    }
    for (name, update) in updates {
        match update {
            Some(update) => drop(settled.insert(name.clone(), update)),
            None => drop(settled.remove(name)),
        }
    }
    differing
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
    present.filter(move |l| (owned.contains(l) || config(l) || discovery::owns(labels, l)) && !wanted.contains_key(*l))
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
