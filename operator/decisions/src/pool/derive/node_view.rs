//! What follows from one `GpuNode` alone.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{ChangePhase, GpuNode, Isolation, ids::PoolName};
use gputenancy_plan::plain;

use super::{devices::NodeDevices, discovery, enforcement};
use crate::{fingerprint::fingerprint, fleet_view::MemoryLimit};

/// What follows from one `GpuNode`.
#[derive(Debug)]
pub struct NodeView {
    /// The object.
    pub node: Arc<GpuNode>,
    /// The only pool of the node.
    pub pool: Option<PoolName>,
    /// Number of GPUs that the agent reports.
    pub gpus: i32,
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
}

impl NodeView {
    /// Reads a `GpuNode`. `answers`: the node is Ready, its agent reports, and no mark says that it should take no new work.
    pub fn of(node: &Arc<GpuNode>, pool: Option<&PoolName>, answers: bool) -> Self {
        let gpus = node.status.as_ref().map_or(0, |status| status.gpus.len());
        Self {
            pool: pool.cloned(),
            gpus: i32::try_from(gpus).unwrap_or(i32::MAX),
            devices: NodeDevices::of(node, answers),
            layout: layout(node),
            instance_labels: node.status.as_ref().map(discovery::of).unwrap_or_default(),
            enforcement: enforcement::of_node(node),
            limits: enforcement::by_namespace(node),
            phases: node.spec.gpus.iter().filter_map(|gpu| Some(gpu.change.as_ref()?.phase)).collect(),
            node: Arc::clone(node),
        }
    }

    /// Name of the node.
    pub fn name(&self) -> String {
        self.node.metadata.name.clone().unwrap_or_default()
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
