//! Demand that is not served, and profiles that a pool lists and cannot offer.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    names,
    words::{are, counted},
};

use super::{
    enforcement,
    remedy::{self, Remedy},
};
use crate::{
    board::Shape,
    fleet::{BoardOptions, Fleet, GpuClass, ProfileId},
    plugin_shares,
    problem::Problem,
    search::{FleetDecision, at},
    snapshot::{Availability, Pool},
    strategy,
};
use gputenancy_crds::ids::{PoolName, ProfileName};

/// Most reasons why GPUs cannot be used that a message names.
const MOST_NAMED: usize = 8;

pub(crate) fn problems(fleet: &Fleet<'_>, decision: &FleetDecision) -> Vec<Problem> {
    let mut problems = shortages(fleet, decision);
    for (name, pool) in &fleet.snapshot.pools {
        let here: Vec<_> =
            fleet.classes().map(|(_, c, options)| (c, options)).filter(|(c, _)| c.pool == name).collect();
        for profile in &pool.profiles {
            problems.extend(not_offered(fleet, (name, pool), profile, &here));
            problems.extend(enforcement::too_weak(fleet.snapshot, (name, pool), profile));
            if pool.by_plugin {
                problems.extend(not_by_plugin(fleet, name, profile, &here));
            }
        }
    }
    problems
}

/// Classes of a pool with their board options.
type Classes<'f, 'a> = [(&'f GpuClass<'a>, &'f BoardOptions<'a>)];

/// Guarantees that are not met, each with what would help.
fn shortages(fleet: &Fleet<'_>, decision: &FleetDecision) -> Vec<Problem> {
    let mut problems = Vec::new();
    let usable = decision.objective.usable(&decision.after);
    for id in decision.objective.scarce(&decision.after) {
        let profile = fleet.profiles.name(id);
        let listing = |(_, pool): &(&PoolName, &Pool)| pool.profiles.contains(&profile);
        let pools: Vec<PoolName> = fleet.snapshot.pools.iter().filter(listing).map(|(name, _)| name.clone()).collect();
        let (why, help) = why(fleet, decision, (id, &profile), &pools, at(&usable, id));
        for (tenant, served) in fleet.demand.split(id, at(&usable, id)).filter(|(_, served)| served.missing() > 0) {
            problems.push(Problem::Shortage {
                tenant: tenant.clone(),
                profile: profile.clone(),
                wanted: served.guaranteed,
                got: served.satisfied,
                pools: pools.clone(),
                why: why.clone(),
                help: help.clone(),
            });
        }
    }
    problems
}

/// Why there is too little of a profile, and what would help: the second text names pods.
fn why(
    fleet: &Fleet<'_>,
    decision: &FleetDecision,
    (id, profile): (ProfileId, &ProfileName),
    pools: &[PoolName],
    usable: i64,
) -> (String, String) {
    let alone = |why| (why, String::new());
    if pools.is_empty() {
        return alone(format!("no pool offers it: add {profile} to spec.profiles of a GpuPool"));
    }
    let refused = pools.iter().find_map(|name| {
        let (pool, found) = (fleet.snapshot.pools.get(name)?, fleet.snapshot.profiles.get(profile)?);
        Some(format!("pool {name} does not offer it: {}", strategy::refusal(pool, found)?))
    });
    if let Some(refused) = refused.filter(|_| pools.len() == 1) {
        return alone(refused);
    }
    let names = titled(pools);
    let weak = pools
        .iter()
        .filter_map(|name| enforcement::too_weak(fleet.snapshot, (name, fleet.snapshot.pools.get(name)?), profile));
    let weak: Vec<String> = weak.map(|problem| problem.to_string()).collect();
    let unavailable = fleet.gpus.iter().filter(|g| pools.contains(g.pool)).filter_map(|g| match &g.gpu.availability {
        Availability::Unavailable(why) => Some(format!("a GPU of node {}: {why}", g.key.node)),
        Availability::Marked(why) => Some(format!("node {}: {why}", g.key.node)),
        _ => None,
    });
    let unavailable: Vec<String> = unavailable.collect();
    let mut why: Vec<&str> = unavailable.iter().map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect();
    let others = why.len().saturating_sub(MOST_NAMED);
    why.truncate(MOST_NAMED);
    let others = if others > 0 { format!("; and {others} more reasons") } else { String::new() };
    let away = match unavailable.len() {
        0 => String::new(),
        n => format!(" ({n} more cannot be used: {}{others})", why.join("; ")),
    };
    let able = fleet.classes().filter(|(_, class, options)| options.offer(id).is_some() && !class.likeness.marked);
    let able: usize = able.map(|(_, class, _)| class.members.len()).sum();
    if able == 0 && !weak.is_empty() {
        return alone(weak.join("; "));
    }
    let overlap = overlap(fleet, pools);
    let narrow = if overlap.is_empty() { "" } else { "narrow spec.nodeSelector of one pool, or " };
    let back = if unavailable.is_empty() { "" } else { "bring back what cannot be used, or " };
    if able == 0 {
        let have = if pools.len() == 1 { "has" } else { "have" };
        return alone(format!(
            "{names} {have} no GPU that can be partitioned into it{away}{overlap}: {narrow}{back}add nodes with such boards"
        ));
    }
    let wanted = decision.objective.total(id);
    let Remedy { moves, field } = remedy::remedy(fleet, decision, id);
    let or = |remedy: Option<String>| remedy.map(|remedy| format!(", or {remedy}")).unwrap_or_default();
    let (help, field) = (or(moves), or(field));
    let why = format!(
        "{} of {names} can carry it{away}{overlap}, with room for {usable} in addition to the other guarantees, and the guarantees of all are {wanted}: \
         {narrow}{back}add GPUs, or lower a guarantee{field}",
        counted(able, "GPU")
    );
    (why, help)
}

/// Pools with their word: `pool a`, or `pools a and b`.
fn titled(pools: &[PoolName]) -> String {
    let names: Vec<&str> = pools.iter().map(PoolName::as_str).collect();
    match names.as_slice() {
        [] => "no pool".to_owned(),
        [one] => format!("pool {one}"),
        [first @ .., last] => format!("pools {} and {last}", first.join(", ")),
    }
}

/// Nodes that one of these pools has not because another one selects them as well, as a clause; empty: there are none.
fn overlap(fleet: &Fleet<'_>, pools: &[PoolName]) -> String {
    let mut nodes: BTreeMap<&[PoolName], Vec<&str>> = BTreeMap::new();
    for (node, selecting) in &fleet.snapshot.overlaps {
        if selecting.iter().any(|pool| pools.contains(pool)) {
            nodes.entry(selecting.as_slice()).or_default().push(node.as_str());
        }
    }
    let selected = |(selecting, nodes): (&[PoolName], Vec<&str>)| {
        let named = nodes.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
        let more = nodes.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let word = if nodes.len() == 1 { "node" } else { "nodes" };
        format!(", and {word} {named}{more} {} selected by {}", are(&nodes.len()), titled(selecting))
    };
    nodes.into_iter().map(selected).collect::<Vec<_>>().concat()
}

/// A profile that does not exist, or that no board of the pool has.
fn not_offered(
    fleet: &Fleet<'_>,
    (pool, rules): (&PoolName, &Pool),
    profile: &ProfileName,
    here: &Classes<'_, '_>,
) -> Option<Problem> {
    let Some(found) = fleet.snapshot.profiles.get(profile) else {
        // a refused profile has a problem of its own
        let missing = !fleet.snapshot.refused.contains(profile);
        return missing.then(|| Problem::PoolProfileNotFound { pool: pool.clone(), profile: profile.clone() });
    };
    let id = fleet.profiles.find(profile)?;
    if let Some(why) = strategy::refusal(rules, found) {
        return Some(Problem::StrategyMismatch { profile: profile.clone(), pool: pool.clone(), why });
    }
    if let Some(why) = plugin_shares::refusal(fleet.snapshot, rules, profile) {
        return Some(Problem::ShareNotServed { profile: profile.clone(), pool: pool.clone(), why });
    }
    // nodes that cannot limit a share have a problem of their own
    let closed = |o: &BoardOptions<'_>| found.shape.sharing_mode().is_some_and(|mode| o.closed.contains(&mode));
    let here: Vec<_> = here.iter().filter(|(_, o)| !closed(o)).collect();
    let mut lacking = here.iter().filter(|(_, o)| o.offer(id).is_none()).peekable();
    // where all devices are alike, no board may lack the profile
    if lacking.peek().is_none() || !rules.single && lacking.count() < here.len() {
        return None;
    }
    let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    let boards = || here.iter().map(|(_, options)| options.board);
    if matches!(found.shape, Shape::Share(_)) {
        let largest = boards().map(|board| board.usable_memory()).max().unwrap_or(0);
        let (profile, pool, products) =
            (profile.clone(), pool.clone(), list(boards().map(|b| b.product.as_str()).collect()));
        return Some(Problem::ShareNotSupported { profile, pool, products, largest });
    }
    let known = list(boards().flat_map(|b| &b.profiles).map(|p| p.name.as_str()).collect());
    Some(Problem::ProfileNotSupported {
        profile: profile.clone(),
        pool: pool.clone(),
        products: list(boards().map(|b| b.product.as_str()).collect()),
        offers: if known.is_empty() { " (whole GPUs only)".to_owned() } else { format!(" ({known})") },
    })
}

/// A profile that NVIDIA's device plugin advertises under another resource than the profile's.
fn not_by_plugin(fleet: &Fleet<'_>, pool: &PoolName, profile: &ProfileName, here: &Classes<'_, '_>) -> Vec<Problem> {
    let Some(found) = fleet.snapshot.profiles.get(profile) else { return Vec::new() };
    let resolved = |(_, options): &(&GpuClass<'_>, &BoardOptions<'_>)| {
        let mig = options.offer(fleet.profiles.find(profile)?)?.mig?;
        Some(names::mig_resource(&options.board.profiles.get(mig)?.name))
    };
    let advertised: BTreeSet<String> = match &found.shape {
        Shape::Whole => [names::WHOLE_GPU_RESOURCE.to_owned()].into(),
        Shape::Named(mig) => [names::mig_resource(mig)].into(),
        Shape::AtLeast { .. } => here.iter().filter_map(resolved).collect(),
        Shape::Share(_) | Shape::Slice { .. } => BTreeSet::new(),
    };
    let others = advertised.into_iter().filter(|offers| *offers != found.resource);
    let problem = |offers| {
        let (profile, pool, resource) = (profile.clone(), pool.clone(), found.resource.clone());
        Problem::ResourceNameNotSupported { profile, pool, resource, offers }
    };
    others.map(problem).collect()
}
