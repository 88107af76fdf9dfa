//! In whose hands the GPUs of each node are: whoever the pool says, and nobody of ours where somebody else has laid hands on them.

use std::collections::BTreeMap;

use gputenancy_crds::{Advertiser, GpuNodeSpec, Partitioner};
use gputenancy_engine::{fleet::Fleet, mig_manager};
use kube::ResourceExt as _;

use crate::plan::{NodeName, PoolName};

/// Who carves and who advertises, node by node.
#[derive(Clone, Debug, Default)]
pub struct Hands {
    /// Nodes of pools that have another owner, with its name: nothing is done there.
    pub foreign: BTreeMap<NodeName, &'static str>,
    all: BTreeMap<NodeName, (Partitioner, Advertiser)>,
}

impl Hands {
    /// Reads pools and agreements; `foreign` are all nodes with another owner, in a pool or not.
    pub fn of(
        fleet: &Fleet,
        members: &BTreeMap<NodeName, Vec<PoolName>>,
        mut foreign: BTreeMap<NodeName, &'static str>,
    ) -> Self {
        let wanted =
            |node: &NodeName, now: (Partitioner, Advertiser), asked: bool| match members.get(node).map(Vec::as_slice) {
                _ if foreign.contains_key(node) => (Partitioner::None, now.1),
                Some([pool]) if !asked => {
                    let pool = fleet.pools.iter().find(|p| p.name_any() == pool.as_str());
                    pool.map_or(now, |p| (p.spec.partitioner, p.spec.advertiser))
                }
                // two pools, or none any more, or a MIG manager that has yet to answer: until that is settled everything stays as it is
                _ => now,
            };
        let all = fleet.gpu_nodes.iter().map(|(name, node)| {
            let name = NodeName::from(name.as_str());
            let now = (node.spec.partitioner, node.spec.advertiser);
            let labels = fleet.nodes.get(name.as_str()).map(|n| n.labels());
            let wanted = wanted(&name, now, labels.is_some_and(|labels| mig_manager::is_engaged(node, labels)));
            (name, wanted)
        });
        let all = all.collect();
        foreign.retain(|node, _| members.contains_key(node));
        Self { foreign, all }
    }

    /// Has this node of a pool another owner?
    pub fn is_foreign(&self, node: &NodeName) -> bool {
        self.foreign.contains_key(node)
    }

    /// Who carves and who advertises on this node.
    pub fn of_node(&self, node: &NodeName) -> (Partitioner, Advertiser) {
        self.all.get(node).copied().unwrap_or_default()
    }

    /// Does the agreement say so already?
    pub fn are_told(&self, node: &NodeName, spec: &GpuNodeSpec) -> bool {
        (spec.partitioner, spec.advertiser) == self.of_node(node)
    }
}
