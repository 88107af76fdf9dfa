//! Shares that nodes of a pool cannot limit as the pool demands.

use std::collections::BTreeMap;

use gputenancy_crds::Isolation;

use crate::{
    board::Shape,
    problem::Problem,
    snapshot::{Node, Pool, SLICES, Snapshot},
};
use gputenancy_crds::ids::{NodeName, PoolName, ProfileName};

/// The nodes of a pool that do not offer the shares of a profile, because they cannot limit them; `None`: there are none.
pub(super) fn too_weak(
    snapshot: &Snapshot,
    (name, pool): (&PoolName, &Pool),
    profile: &ProfileName,
) -> Option<Problem> {
    let shape = &snapshot.profiles.get(profile)?.shape;
    let mode = shape.sharing_mode()?;
    let slices = matches!(shape, Shape::Slice { .. }) && !SLICES.is_at_least(pool.minimum);
    let weak = |(node, facts): (&NodeName, &Node)| {
        let means = facts.unlimited.modes.get(&mode).copied().or(slices.then_some(SLICES))?;
        // a limit that is too weak is none that fails
        let why = if means == Isolation::None { facts.unlimited.why.clone() } else { String::new() };
        Some((node.clone(), (means, why)))
    };
    let here = snapshot.nodes.iter().filter(|(_, node)| node.pool == *name);
    let nodes: BTreeMap<NodeName, (Isolation, String)> = here.filter_map(weak).collect();
    (!nodes.is_empty()).then(|| Problem::EnforcementTooWeak {
        profile: profile.clone(),
        pool: name.clone(),
        minimum: pool.minimum,
        nodes,
    })
}
