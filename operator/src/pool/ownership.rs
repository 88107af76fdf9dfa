//! Who partitions and who advertises the GPUs of each node: as the pool states, and no component of ours where there is a conflicting
//! owner.

use std::collections::BTreeMap;

use gputenancy_crds::{Advertiser, AllocationPolicy, GpuNode, GpuNodeSpec, GpuPool, Partitioner, ShareMinimum};
use kube::ResourceExt as _;

use crate::plan::{Cluster, NodeName, PoolName, membership};
use gputenancy_engine::{fleet::Fleet, mig_manager};

/// The owners of the GPUs of each node.
#[derive(Clone, Debug, Default)]
pub struct Ownership {
    /// Nodes of pools that have a conflicting owner, with its name: nothing is done there.
    pub conflicting: BTreeMap<NodeName, &'static str>,
    /// Pools that select each node.
    pub members: BTreeMap<NodeName, Vec<PoolName>>,
    assigned: BTreeMap<NodeName, (Partitioner, Advertiser)>,
    /// What the pool passes on to the node, where it is not the default.
    passed_on: BTreeMap<NodeName, (AllocationPolicy, ShareMinimum)>,
}

/// What the pool demands, for an agent that reports what it can give: those of releases before read no specification with these fields.
fn minimum(pool: &GpuPool, node: &GpuNode) -> ShareMinimum {
    let status = node.status.as_ref();
    let (wanted, default) = (&pool.spec.enforcement, ShareMinimum::default());
    let limits = status.is_some_and(|status| status.enforcement.is_some());
    let scrub = status.is_some_and(|status| status.memory_scrub.is_some());
    ShareMinimum {
        minimum: if limits { wanted.minimum } else { default.minimum },
        unscrubbed_memory: if scrub { wanted.unscrubbed_memory } else { default.unscrubbed_memory },
    }
}

impl Ownership {
    /// Reads nodes, pools and `GpuNode`s.
    pub fn of(fleet: &Fleet, cluster: &Cluster<'_>) -> Self {
        let members = membership(&cluster.pools, cluster.nodes.iter().map(|n| (n.name, n.labels)));
        let conflicting = cluster.nodes.iter().filter_map(|n| Some((NodeName::from(n.name), n.foreign.as_ref()?.by)));
        let mut conflicting: BTreeMap<_, _> = conflicting.collect();
        let assign =
            |node: &NodeName, now: (Partitioner, Advertiser), engaged: bool| match members.get(node).map(Vec::as_slice)
            {
                _ if conflicting.contains_key(node) => (Partitioner::None, now.1),
                Some([pool]) if !engaged => {
                    let pool = fleet.pools.iter().find(|p| p.name_any() == pool.as_str());
                    pool.map_or(now, |p| (p.spec.partitioner, p.spec.advertiser))
                }
                // two pools, or none any more, or a MIG manager that has yet to answer: until that is settled everything stays as it is
                _ => now,
            };
        let assigned = fleet.gpu_nodes.iter().map(|(name, node)| {
            let now = (node.spec.partitioner, node.spec.advertiser);
            let engaged = fleet.nodes.get(name).is_some_and(|n| mig_manager::is_engaged(node, n.labels()));
            let name = NodeName::from(name.as_str());
            let owners = assign(&name, now, engaged);
            (name, owners)
        });
        let assigned = assigned.collect();
        let passed_on = fleet.gpu_nodes.iter().map(|(name, node)| {
            let name = NodeName::from(name.as_str());
            let passed_on = match members.get(&name).map(Vec::as_slice) {
                Some([pool]) => {
                    let pool = fleet.pools.iter().find(|p| p.name_any() == pool.as_str());
                    let spec = pool.map(|p| (p.spec.allocation.unwrap_or_default(), minimum(p, node)));
                    spec.unwrap_or_default()
                }
                // until an overlap of pools is settled everything stays as it is
                _ => (node.spec.allocation, node.spec.enforcement),
            };
            (name, passed_on)
        });
        let passed_on = passed_on.filter(|(_, passed_on)| *passed_on != Default::default()).collect();
        conflicting.retain(|node, _| members.contains_key(node));
        Self { conflicting, members, assigned, passed_on }
    }

    /// Pools that select this node.
    pub fn pools_of(&self, node: &NodeName) -> &[PoolName] {
        self.members.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Does any pool select this node?
    pub fn is_pooled(&self, node: &NodeName) -> bool {
        self.members.contains_key(node)
    }

    /// Has this node of a pool a conflicting owner?
    pub fn is_conflicting(&self, node: &NodeName) -> bool {
        self.conflicting.contains_key(node)
    }

    /// Who partitions and who advertises on this node.
    pub fn assigned(&self, node: &NodeName) -> (Partitioner, Advertiser) {
        self.assigned.get(node).copied().unwrap_or_default()
    }

    /// Which GPU of this node a pod gets devices of.
    pub fn allocation(&self, node: &NodeName) -> AllocationPolicy {
        self.passed_on.get(node).map(|(allocation, _)| *allocation).unwrap_or_default()
    }

    /// What is demanded of the limits of this node's shares.
    pub fn enforcement(&self, node: &NodeName) -> ShareMinimum {
        self.passed_on.get(node).map(|(_, enforcement)| *enforcement).unwrap_or_default()
    }

    /// Does the `GpuNode` state the assigned owners?
    pub fn is_assigned(&self, node: &NodeName, spec: &GpuNodeSpec) -> bool {
        (spec.partitioner, spec.advertiser) == self.assigned(node)
    }
}
