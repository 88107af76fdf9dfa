//! Whether NVIDIA's MIG manager partitions a node, and whether a request to it is in progress.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuNode, MigManagerStep, Partitioner, names};

use super::config::is_ours;

/// Does NVIDIA's MIG manager partition this node?
pub fn is_managed(node: &GpuNode) -> bool {
    node.spec.partitioner == Partitioner::MigManager
}

/// Has the MIG manager a request that it has not answered? Nothing else partitions the node until it has, whatever the pool says meanwhile.
pub fn awaits_answer(node: &GpuNode) -> bool {
    let run = node.spec.mig_manager.as_ref();
    run.is_some_and(|r| r.step > MigManagerStep::Publishing && r.step < MigManagerStep::GaveUp)
}

/// Does a request of ours still concern the node? The MIG manager has yet to answer, or has paused parts of the GPU Operator for a layout of
/// ours. This holds in whichever pool the node is by then.
pub fn is_engaged(node: &GpuNode, labels: &BTreeMap<String, String>) -> bool {
    let paused = || labels.iter().any(|(k, v)| k.starts_with(names::DEPLOY_LABELS) && v == names::PAUSED);
    let ours = labels.get(names::MIG_CONFIG_LABEL).is_some_and(|name| is_ours(name));
    is_managed(node) && (awaits_answer(node) || (ours && paused()))
}
