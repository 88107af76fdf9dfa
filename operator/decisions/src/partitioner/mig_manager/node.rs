//! Nodes that NVIDIA's MIG manager partitions, and whether a request is in progress.

use std::collections::BTreeMap;

use gputenancy_crds::{self as crds, GpuNode, GpuState, Layout, MigManagerStep, names};
use gputenancy_plan::ConflictingOwner;

use super::config::{Shape, is_ours};
use crate::partitioner::{Partitioner, is_whole};

#[derive(Debug)]
pub struct MigManager;

impl Partitioner for MigManager {
    fn whole_node(&self) -> Option<&'static str> {
        Some("NVIDIA's MIG manager")
    }

    fn recreates(&self, state: &GpuState, layout: &Layout) -> bool {
        Shape::of(layout) != Shape::seen(state)
    }
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
    is_whole(node) && (awaits_answer(node) || (ours && paused()))
}

/// The MIG manager as another owner where the agent partitions: it repartitions whole nodes, but only those with the label of a layout.
pub fn conflict(partitioner: crds::Partitioner, labels: &BTreeMap<String, String>) -> Option<ConflictingOwner> {
    let (label, deploy) = (names::MIG_CONFIG_LABEL, names::DEPLOY_MIG_MANAGER_LABEL);
    let config = labels.get(label).filter(|_| partitioner == crds::Partitioner::Agent)?;
    // without the GPU Operator no label deploys it, but its status label shows that it runs
    let evidence = match labels.get(deploy).map(String::as_str) {
        Some("false") => return None,
        Some(_) => deploy,
        None => labels.get_key_value(names::MIG_STATE_LABEL).map(|(key, _)| key.as_str())?,
    };
    Some(ConflictingOwner {
        by: "NVIDIA's MIG manager",
        sign: format!("labels {label}={config} and {evidence} are set"),
        remedy: format!(
            "label the node {deploy}=false, or take it out of the pool, or give the pool spec.partitioner MigManager"
        ),
    })
}
