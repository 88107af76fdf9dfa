//! What follows from one `GpuNode` alone. It is computed again only when the `GpuNode` has changed: in a large fleet most have not.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{ChangePhase, GpuNode, Isolation};
use gputenancy_engine::{fingerprint::fingerprint, fleet::Fleet};

use super::{devices::NodeDevices, discovery, enforcement, silence::Silent};
use crate::{
    fleet_view::MemoryLimit,
    plan::{Cursor, plain},
};

/// What follows from each `GpuNode`, by node.
#[derive(Debug, Default)]
pub struct NodeViews(BTreeMap<String, NodeView>);

/// What follows from one `GpuNode`.
#[derive(Debug)]
pub struct NodeView {
    /// The object that this follows from; a changed one is another.
    node: Arc<GpuNode>,
    /// The node is Ready, and its agent reports.
    answers: bool,
    /// Its devices.
    pub devices: NodeDevices,
    /// Value of the label for the layout.
    pub layout: String,
    /// NVIDIA's labels of its instances.
    pub instance_labels: BTreeMap<String, String>,
    /// The weakest means that limits the memory of its devices.
    pub enforcement: Option<Isolation>,
    /// What limits the memory of devices that pods have, by namespace.
    pub limits: BTreeMap<String, MemoryLimit>,
    /// Phases of its changes.
    pub phases: Vec<ChangePhase>,
    /// A pod bypasses the limit of its share.
    pub bypassed: bool,
    /// A pod keeps more memory than its share has.
    pub resize_refused: bool,
}

impl NodeView {
    fn of(node: &Arc<GpuNode>, answers: bool) -> Self {
        let instance_labels = node.status.as_ref().map(discovery::of).unwrap_or_default();
        let (devices, layout) = (NodeDevices::of(node, answers), layout(node));
        let (enforcement, limits) = (enforcement::of_node(node), enforcement::by_namespace(node));
        let phases = node.spec.gpus.iter().filter_map(|gpu| Some(gpu.change.as_ref()?.phase)).collect();
        let shares = || node.status.iter().flat_map(|status| &status.gpus).flat_map(|gpu| &gpu.shares);
        Self {
            node: Arc::clone(node),
            answers,
            devices,
            layout,
            instance_labels,
            enforcement,
            limits,
            phases,
            bypassed: shares().any(|share| share.bypass.is_some()),
            resize_refused: shares().any(|share| share.refused_resize.is_some()),
        }
    }
}

impl NodeViews {
    /// Brings the views up to date with the fleet.
    pub fn update(&mut self, fleet: &Fleet, silent: &Silent<'_>) {
        let (mut known, mut silent) = (Cursor::of(&self.0), Cursor::of(silent));
        let outdated = fleet.gpu_nodes.iter().filter_map(|(name, node)| {
            let answers = silent.get(name).is_none();
            let current = known.get(name).is_some_and(|v| Arc::ptr_eq(&v.node, node) && v.answers == answers);
            (!current).then(|| (name.clone(), NodeView::of(node, answers)))
        });
        let outdated: Vec<_> = outdated.collect();
        self.0.extend(outdated);
        if self.0.len() > fleet.gpu_nodes.len() {
            self.0.retain(|name, _| fleet.gpu_nodes.contains_key(name));
        }
    }

    /// `GpuNode`s that meet a condition, by name.
    pub fn nodes(&self, holds: impl Fn(&NodeView) -> bool) -> impl Iterator<Item = (&str, &GpuNode)> {
        self.0.iter().filter(move |(_, view)| holds(view)).map(|(name, view)| (name.as_str(), &*view.node))
    }

    /// The view of one node.
    pub fn get(&self, node: &str) -> Option<&NodeView> {
        self.0.get(node)
    }

    /// The devices of every node.
    pub fn devices(&self) -> impl Iterator<Item = &NodeDevices> {
        self.0.values().map(|view| &view.devices)
    }

    /// Phases of all changes.
    pub fn phases(&self) -> impl Iterator<Item = ChangePhase> {
        self.0.values().flat_map(|view| view.phases.iter().copied())
    }

    /// What limits the memory of devices that pods have, by namespace.
    pub fn limits(&self) -> BTreeMap<String, MemoryLimit> {
        let mut limits: BTreeMap<String, MemoryLimit> = BTreeMap::new();
        for (namespace, limit) in self.0.values().flat_map(|view| &view.limits) {
            match limits.get_mut(namespace) {
                Some(sum) => sum.add(limit),
                None => drop(limits.insert(namespace.clone(), limit.clone())),
            }
        }
        limits
    }

    /// The devices of every node, with its name.
    pub fn by_node(&self) -> impl Iterator<Item = (&str, &NodeDevices)> {
        self.0.iter().map(|(name, view)| (name.as_str(), &view.devices))
    }
}

/// Fingerprint of the layouts in the order of the GPUs' indices. A GPU under change counts with the layout that its spec has.
fn layout(node: &GpuNode) -> String {
    let index = |uuid: &str| {
        let state = node.status.iter().flat_map(|s| &s.gpus).find(|g| g.uuid == uuid);
        state.map_or(i32::MAX, |s| s.index)
    };
    let mut layouts: Vec<_> = node.spec.gpus.iter().map(|g| (index(&g.uuid), plain(g.layout()))).collect();
    layouts.sort();
    fingerprint(&layouts)
}
