//! The part of the fleet that a report shows.

use std::collections::BTreeSet;

use gputenancy_crds::ids::PoolName;
use gputenancy_plan::membership;

use crate::world::World;

/// Nodes that a report shows.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only nodes that this pool selects.
    pub pool: Option<String>,
    /// Only this node.
    pub node: Option<String>,
}

/// Why a filter selects nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FilterError {
    /// No pool has this name.
    #[error("--pool {0}: there is no GpuPool of this name: kubectl get gpupools lists them")]
    Pool(String),
    /// No node of a pool, or with GPUs, has this name.
    #[error(
        "--node {0}: no GpuNode has this name, and no pool selects a Node of this name: kubectl get gpunodes lists them"
    )]
    Node(String),
}

/// A node of the report and the pools that select it.
pub(super) struct Member<'a> {
    pub node: &'a str,
    pub pools: Vec<PoolName>,
}

impl Filter {
    /// The nodes, in order of names: those with a `GpuNode` and those that a pool selects. Names that do not exist are errors.
    pub(super) fn members<'a>(&self, world: &'a World) -> Result<Vec<Member<'a>>, FilterError> {
        let fleet = &world.fleet;
        let cluster = fleet.cluster();
        let mut members = membership(&cluster.pools, cluster.nodes.iter().map(|n| (n.name, n.labels)));
        let selected = fleet.nodes.keys().filter(|name| members.contains_key(name.as_str()));
        let names: BTreeSet<&str> = fleet.gpu_nodes.keys().chain(selected).map(String::as_str).collect();
        if let Some(pool) = self.pool.as_ref().filter(|pool| world.pool(pool).is_none()) {
            return Err(FilterError::Pool(pool.clone()));
        }
        if let Some(node) = self.node.as_ref().filter(|node| !names.contains(node.as_str())) {
            return Err(FilterError::Node(node.clone()));
        }
        let of = |node: &'a str| Member { node, pools: members.remove(node).unwrap_or_default() };
        let shown = |member: &Member<'_>| {
            let pool = self.pool.as_ref().is_none_or(|pool| member.pools.iter().any(|p| p.as_str() == pool));
            pool && self.node.as_ref().is_none_or(|node| member.node == node)
        };
        Ok(names.into_iter().map(of).filter(shown).collect())
    }
}
