//! Who partitions and who advertises the GPUs of each node: as the pool states, and no component of ours where there is a conflicting
//! owner.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use gputenancy_crds::{
    Advertiser, AllocationPolicy, GpuNode, GpuNodeSpec, GpuPool, Partitioner, ShareMinimum,
    ids::{NodeName, PoolName},
};
use gputenancy_plan::membership;
use kube::ResourceExt as _;

use super::node_states::NodeStates;
use crate::{fleet::Fleet, partitioner, pool::read::dirty_nodes::DirtyNodes};

/// The owners of the GPUs of each node.
#[derive(Debug, Default)]
pub struct Ownership {
    /// Nodes of pools that have a conflicting owner, with its name: nothing is done there.
    pub conflicting: BTreeMap<NodeName, &'static str>,
    /// Pools that select each node.
    pub members: BTreeMap<NodeName, Vec<PoolName>>,
    /// Nodes that one pool alone selects, by pool.
    nodes: BTreeMap<PoolName, BTreeSet<NodeName>>,
    /// Nodes of pools that have no `GpuNode`.
    pub without_gpu_node: BTreeSet<NodeName>,
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

/// What a node is assigned that has this only pool.
fn assigned(node: &GpuNode, pool: Option<&GpuPool>, is_foreign: bool, engaged: impl Fn() -> bool) -> Assigned {
    let mut assigned = Assigned::from(&node.spec);
    if is_foreign {
        assigned.partitioner = Partitioner::None;
    } else if let Some(pool) = pool.filter(|_| !engaged()) {
        (assigned.partitioner, assigned.advertiser) = (pool.spec.partitioner, pool.spec.advertiser);
    }
    if let Some(pool) = pool {
        assigned.allocation = pool.spec.allocation.unwrap_or_default();
        assigned.enforcement = minimum(pool, node);
    }
    assigned
}

impl Ownership {
    /// Brings the owners of these nodes up to date with the fleet.
    pub fn update(&mut self, fleet: &Fleet, states: &NodeStates, visited: &DirtyNodes) {
        let pools: Vec<&GpuPool> = fleet.active_pools().collect();
        let labels = visited.iter().filter_map(|name| Some((name.as_str(), fleet.nodes.get(name)?.labels())));
        let mut members = membership(&pools, labels);
        let pools: BTreeMap<&str, &GpuPool> =
            pools.into_iter().filter_map(|pool| Some((pool.metadata.name.as_deref()?, pool))).collect();
        for name in visited.iter() {
            self.forget(name);
            let (gpu_node, selecting) = (fleet.gpu_nodes.get(name), members.remove(name.as_str()));
            let foreign = states.foreign(name).map(|foreign| foreign.by);
            if let Some(gpu_node) = gpu_node {
                // two pools, or none any more, or a request that has no answer yet: until that is settled everything stays as it is
                let pool = match selecting.as_deref() {
                    Some([pool]) => pools.get(pool.as_str()).copied(),
                    _ => None,
                };
                let engaged = || fleet.nodes.get(name).is_some_and(|n| partitioner::is_engaged(gpu_node, n.labels()));
                let assigned = assigned(gpu_node, pool, foreign.is_some(), engaged);
                if assigned != Assigned::from(&gpu_node.spec) {
                    self.reassigned.insert(name.as_str().into(), assigned);
                }
            }
            if let Some(pools) = selecting {
                self.enter(name, pools, foreign, gpu_node.is_some());
            }
        }
    }

    fn enter(&mut self, node: &str, pools: Vec<PoolName>, foreign: Option<&'static str>, has_gpu_node: bool) {
        if let Some(by) = foreign {
            self.conflicting.insert(node.into(), by);
        }
        if let [pool] = pools.as_slice() {
            self.nodes.entry(pool.clone()).or_default().insert(node.into());
        }
        if !has_gpu_node {
            self.without_gpu_node.insert(node.into());
        }
        self.members.insert(node.into(), pools);
    }

    fn forget(&mut self, node: &str) {
        self.conflicting.remove(node);
        self.reassigned.remove(node);
        self.without_gpu_node.remove(node);
        let Some(pools) = self.members.remove(node) else { return };
        if let [pool] = pools.as_slice()
            && let Entry::Occupied(mut nodes) = self.nodes.entry(pool.clone())
        {
            nodes.get_mut().remove(node);
            if nodes.get().is_empty() {
                nodes.remove();
            }
        }
    }

    /// Nodes that this pool, and no other, selects.
    pub fn nodes_of(&self, pool: &str) -> Option<&BTreeSet<NodeName>> {
        self.nodes.get(pool)
    }

    /// The only pool that selects this node.
    pub fn pool_of(&self, node: &str) -> Option<&PoolName> {
        if let [pool] = self.pools_of(node) { Some(pool) } else { None }
    }

    /// Pools that select this node.
    pub fn pools_of(&self, node: &str) -> &[PoolName] {
        self.members.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Do several pools select this node? Then none of them acts on it.
    pub fn overlaps(&self, node: &str) -> bool {
        self.pools_of(node).len() > 1
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
