//! Who partitions and who advertises the GPUs of each node: as the pool states, and no component of ours where there is a conflicting
//! owner.

use std::collections::BTreeMap;

use gputenancy_crds::{Advertiser, AllocationPolicy, GpuNode, GpuNodeSpec, GpuPool, Partitioner, ShareMinimum};
use kube::ResourceExt as _;

use crate::plan::{Cluster, Cursor, NodeName, PoolName, membership};
use gputenancy_engine::{fleet::Fleet, mig_manager};

/// The owners of the GPUs of each node.
#[derive(Clone, Debug, Default)]
pub struct Ownership {
    /// Nodes of pools that have a conflicting owner, with its name: nothing is done there.
    pub conflicting: BTreeMap<NodeName, &'static str>,
    /// Pools that select each node.
    pub members: BTreeMap<NodeName, Vec<PoolName>>,
    /// What is assigned to nodes whose `GpuNode` states something else.
    reassigned: BTreeMap<NodeName, Assigned>,
}

/// Owners of a node's GPUs, and what its pool passes on to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Who partitions.
    pub partitioner: Partitioner,
    /// Who advertises.
    pub advertiser: Advertiser,
    /// Which GPU a pod gets devices of.
    pub allocation: AllocationPolicy,
    /// What is demanded of the limits of shares.
    pub enforcement: ShareMinimum,
}

impl From<&GpuNodeSpec> for Assigned {
    fn from(spec: &GpuNodeSpec) -> Self {
        let GpuNodeSpec { partitioner, advertiser, allocation, enforcement, .. } = spec;
        Self { partitioner: *partitioner, advertiser: *advertiser, allocation: *allocation, enforcement: *enforcement }
    }
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
        let conflicting = cluster.nodes.iter().filter_map(|n| Some((n.name, n.foreign.as_ref()?.by)));
        let mut conflicting: BTreeMap<NodeName, _> = conflicting.map(|(name, by)| (name.into(), by)).collect();
        let pools: BTreeMap<&str, &GpuPool> =
            cluster.pools.iter().filter_map(|pool| Some((pool.metadata.name.as_deref()?, *pool))).collect();
        let (mut pools_of, mut nodes) = (Cursor::of(&members), Cursor::of(&fleet.nodes));
        let mut assign = |name: &str, node: &GpuNode| {
            let mut assigned = Assigned::from(&node.spec);
            // two pools, or none any more, or a MIG manager that has yet to answer: until that is settled everything stays as it is
            let pool = match pools_of.get(name).map(Vec::as_slice) {
                Some([pool]) => pools.get(pool.as_str()),
                _ => None,
            };
            let mut engaged = || nodes.get(name).is_some_and(|n| mig_manager::is_engaged(node, n.labels()));
            if conflicting.contains_key(name) {
                assigned.partitioner = Partitioner::None;
            } else if let Some(pool) = pool.filter(|_| !engaged()) {
                (assigned.partitioner, assigned.advertiser) = (pool.spec.partitioner, pool.spec.advertiser);
            }
            if let Some(pool) = pool {
                assigned.allocation = pool.spec.allocation.unwrap_or_default();
                assigned.enforcement = minimum(pool, node);
            }
            assigned
        };
        let assigned = fleet.gpu_nodes.iter().map(|(name, node)| (name, node, assign(name, node)));
        let differing = assigned.filter(|(_, node, assigned)| Assigned::from(&node.spec) != *assigned);
        let reassigned = differing.map(|(name, _, assigned)| (name.as_str().into(), assigned)).collect();
        conflicting.retain(|node, _| members.contains_key(node));
        Self { conflicting, members, reassigned }
    }

    /// Pools that select this node.
    pub fn pools_of(&self, node: &str) -> &[PoolName] {
        self.members.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Does any pool select this node?
    pub fn is_pooled(&self, node: &str) -> bool {
        self.members.contains_key(node)
    }

    /// Has this node of a pool a conflicting owner?
    pub fn is_conflicting(&self, node: &str) -> bool {
        self.conflicting.contains_key(node)
    }

    /// What is assigned to this node, whose `GpuNode` has this spec.
    pub fn assigned(&self, node: &str, spec: &GpuNodeSpec) -> Assigned {
        self.reassigned.get(node).copied().unwrap_or_else(|| Assigned::from(spec))
    }

    /// Does the `GpuNode` of this node state the assigned owners?
    pub fn has_assigned_owners(&self, node: &str, spec: &GpuNodeSpec) -> bool {
        let Assigned { partitioner, advertiser, .. } = self.assigned(node, spec);
        (partitioner, advertiser) == (spec.partitioner, spec.advertiser)
    }

    /// Does the `GpuNode` of this node state all that is assigned?
    pub fn has_assigned(&self, node: &str) -> bool {
        !self.reassigned.contains_key(node)
    }
}
