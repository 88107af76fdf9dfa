//! In whose hands the GPUs of each node are: whoever the pool says, and nobody of ours where somebody else has laid hands on them.

use std::collections::BTreeMap;

use gputenancy_crds::Partitioner;
use kube::ResourceExt as _;

use super::fleet::Fleet;
use crate::plan::{NodeName, PoolName};

/// Who carves, node by node.
#[derive(Clone, Debug, Default)]
pub struct Hands {
    /// Nodes of pools that have another owner, with its name: nothing is done there.
    pub foreign: BTreeMap<NodeName, &'static str>,
    partitioners: BTreeMap<NodeName, Partitioner>,
}

impl Hands {
    /// Reads pools and agreements; `foreign` are all nodes with another owner, in a pool or not.
    pub fn of(
        fleet: &Fleet,
        members: &BTreeMap<NodeName, Vec<PoolName>>,
        mut foreign: BTreeMap<NodeName, &'static str>,
    ) -> Self {
        let partitioner = |node: &NodeName, now: Partitioner| match members.get(node).map(Vec::as_slice) {
            _ if foreign.contains_key(node) => Partitioner::None,
            Some([pool]) => {
                let pool = fleet.pools.iter().find(|p| p.name_any() == pool.as_str());
                pool.map_or(now, |p| p.spec.partitioner)
            }
            // two pools, or none any more: until that is settled everything stays as it is
            _ => now,
        };
        let all = fleet.gpu_nodes.iter().map(|(name, node)| (NodeName::from(name.as_str()), node.spec.partitioner));
        let partitioners = all.map(|(name, now)| (name.clone(), partitioner(&name, now))).collect();
        foreign.retain(|node, _| members.contains_key(node));
        Self { foreign, partitioners }
    }

    /// Has this node of a pool another owner?
    pub fn is_foreign(&self, node: &NodeName) -> bool {
        self.foreign.contains_key(node)
    }

    /// Who carves on this node.
    pub fn partitioner(&self, node: &NodeName) -> Partitioner {
        self.partitioners.get(node).copied().unwrap_or_default()
    }
}
