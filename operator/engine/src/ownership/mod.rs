//! Who else owns the GPUs of a node: two owners of MIG destroy each other's instances, so the second one is found and named.

use std::collections::BTreeMap;

use gputenancy_crds::Partitioner;

use gputenancy_plan::ConflictingOwner;

/// What is read of a node to find another owner.
#[derive(Clone, Copy, Debug)]
pub struct OwnershipSigns<'a> {
    /// The node's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The node's annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// NVIDIA's DRA driver publishes a `ResourceSlice` for this node.
    pub dra: bool,
    /// Who carves by the word of the node's pool.
    pub partitioner: Partitioner,
}

/// Label by which the GPU Operator runs its MIG manager on a node; `false` keeps it away.
pub const DEPLOY_MIG_MANAGER: &str = "nvidia.com/gpu.deploy.mig-manager";
/// Label whose change makes the MIG manager carve.
pub const MIG_CONFIG: &str = "nvidia.com/mig.config";
/// Label in which the MIG manager says how far it has come.
pub const MIG_CONFIG_STATE: &str = "nvidia.com/mig.config.state";
/// Label by which nos partitions a node.
pub const NOS_PARTITIONING: &str = "nos.nebuly.com/gpu-partitioning";
/// Annotation in which `HAMi` keeps its own record of a node's GPUs.
pub const HAMI_REGISTER: &str = "hami.io/node-nvidia-register";
/// Driver name of NVIDIA's DRA driver.
pub const DRA_DRIVER: &str = "gpu.nvidia.com";

/// Is this annotation read by [`conflicting_owner`]?
pub fn is_ownership_annotation(annotation: &str) -> bool {
    annotation == HAMI_REGISTER
}

/// Who owns a node's GPUs beside us; of several the one that destroys most. Where the pool leaves carving to others, whoever
/// only carves is no stranger.
pub fn conflicting_owner(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    dra(signs).or_else(|| hami(signs)).or_else(|| nos(signs)).or_else(|| mig_manager(signs))
}

/// It destroys at its start every MIG device that is not in its own checkpoint.
fn dra(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    signs.dra.then(|| ConflictingOwner {
        by: "NVIDIA's DRA driver",
        sign: format!("driver {DRA_DRIVER} publishes a ResourceSlice for it"),
        remedy: "take the node out of the DRA driver's kubelet plugin DaemonSet, or out of the pool".into(),
    })
}

fn hami(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    let register = signs.annotations.get(HAMI_REGISTER)?;
    (!register.is_empty()).then(|| ConflictingOwner {
        by: "HAMi",
        sign: format!("annotation {HAMI_REGISTER} is set"),
        remedy: format!(
            "take the node out of HAMi's device plugin and remove annotation {HAMI_REGISTER}, or take it out of the pool"
        ),
    })
}

fn nos(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    let kind = signs.labels.get(NOS_PARTITIONING).filter(|_| signs.partitioner != Partitioner::None)?;
    Some(ConflictingOwner {
        by: "nos",
        sign: format!("label {NOS_PARTITIONING}={kind} is set"),
        remedy: format!("remove label {NOS_PARTITIONING} from the node, or take it out of the pool"),
    })
}

/// The MIG manager rewrites whole nodes, but only those that have a configuration to follow.
fn mig_manager(signs: OwnershipSigns<'_>) -> Option<ConflictingOwner> {
    if signs.partitioner != Partitioner::Agent {
        return None;
    }
    let config = signs.labels.get(MIG_CONFIG)?;
    // without the GPU Operator nothing deploys it by a label, and its own word shows that it is there
    let mark = match signs.labels.get(DEPLOY_MIG_MANAGER).map(String::as_str) {
        Some("false") => return None,
        Some(_) => DEPLOY_MIG_MANAGER,
        None => signs.labels.get_key_value(MIG_CONFIG_STATE).map(|(key, _)| key.as_str())?,
    };
    Some(ConflictingOwner {
        by: "NVIDIA's MIG manager",
        sign: format!("labels {MIG_CONFIG}={config} and {mark} are set"),
        remedy: format!(
            "label the node {DEPLOY_MIG_MANAGER}=false, or take it out of the pool, or give the pool spec.partitioner MigManager"
        ),
    })
}

#[cfg(test)]
mod tests;
