//! What is said about demand that is not served, in sentences.

use std::collections::BTreeSet;

use gputenancy_crds::names;

use super::{
    decide::Decision,
    fleet::Core,
    help,
    model::{Shape, Snapshot, Standing},
    name::{PoolName, ProfileName},
    problem::Problem,
    rig::Rig,
    terms::of,
};

/// Guarantees that are not met, each with what would help.
pub(super) fn shortages(core: &Core, snapshot: &Snapshot, decision: &Decision) -> Vec<Problem> {
    let mut problems = Vec::new();
    for line in &core.scarce {
        let profile = core.lines.name(*line);
        let why = why(core, snapshot, decision, (*line, &profile));
        let pools: Vec<PoolName> = pools_with(snapshot, &profile);
        let beyond = decision.terms.beyond(&decision.after);
        for (tenant, served) in core.ledger.share(*line, of(&decision.after, *line) - of(&beyond, *line)) {
            if served.missing() > 0 {
                problems.push(Problem::Shortage {
                    tenant,
                    profile: profile.clone(),
                    wanted: served.guaranteed,
                    got: served.satisfied,
                    pools: pools.clone(),
                    why: why.clone(),
                });
            }
        }
    }
    problems
}

/// Pools that list a profile.
fn pools_with(snapshot: &Snapshot, profile: &ProfileName) -> Vec<PoolName> {
    let pools = snapshot.pools.iter().filter(|(_, p)| p.profiles.contains(profile));
    pools.map(|(name, _)| name.clone()).collect()
}

/// Why there is too little of a profile, and what would help.
fn why(core: &Core, snapshot: &Snapshot, decision: &Decision, (line, profile): (usize, &ProfileName)) -> String {
    let pools = pools_with(snapshot, profile);
    if pools.is_empty() {
        return format!("no pool offers it: add {profile} to spec.profiles of a GpuPool");
    }
    let names = pools.iter().map(PoolName::as_str).collect::<Vec<_>>().join(", ");
    let away = snapshot
        .nodes
        .values()
        .filter(|n| pools.contains(&n.pool))
        .flat_map(|n| n.gpus.values())
        .filter(|g| matches!(g.standing, Standing::Away(_)))
        .count();
    let away = if away > 0 {
        format!(" ({away} more are lost, unhealthy, in other hands or on a node that is not ready)")
    } else {
        String::new()
    };
    let offers = |r: &&Rig| r.offers.iter().any(|o| o.line == line);
    let able: usize = core.forms.rigs.iter().filter(offers).map(|r| r.live).sum();
    if able == 0 {
        return format!("pool {names} has no GPU that can be carved into it{away}: add nodes with such boards");
    }
    let beyond = decision.terms.beyond(&decision.after);
    let room = of(&decision.after, line) - of(&beyond, line);
    let wanted = decision.terms.lines.get(line).map_or(0, super::terms::LineTerms::total);
    let help = help::what_would_help(core, snapshot, decision, line).map(|h| format!(", or {h}")).unwrap_or_default();
    format!(
        "the {able} GPUs of pool {names} that can carry it{away} have room for {room} beside the other guarantees, {wanted} are guaranteed in all: \
         add GPUs, or lower a guarantee{help}"
    )
}

/// Profiles that NVIDIA's device plugin would offer under another resource than they ask for.
pub(super) fn plugin_cannot(core: &Core, snapshot: &Snapshot) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, pool) in snapshot.pools.iter().filter(|(_, p)| p.by_plugin) {
        for profile in &pool.profiles {
            let Some(found) = snapshot.profiles.get(profile) else { continue };
            let offers: BTreeSet<String> = match &found.shape {
                Shape::Whole => [names::WHOLE_GPU_RESOURCE.to_owned()].into(),
                Shape::Named(mig) => [names::mig_resource(mig)].into(),
                Shape::AtLeast { .. } => resolved(core, name, profile).collect(),
                Shape::Shared(_) => continue,
            };
            for offers in offers.into_iter().filter(|offers| *offers != found.resource) {
                let (profile, pool, resource) = (profile.clone(), name.clone(), found.resource.clone());
                problems.push(Problem::PluginCannot { profile, pool, resource, offers });
            }
        }
    }
    problems
}

/// NVIDIA's resources of what a profile is on the boards of a pool.
fn resolved<'a>(core: &'a Core, pool: &'a PoolName, profile: &ProfileName) -> impl Iterator<Item = String> + 'a {
    let line = core.lines.find(profile);
    core.forms.rigs.iter().filter(move |r| r.live > 0 && r.pool_name == *pool).filter_map(move |rig| {
        let mig = rig.offers.iter().find(|o| Some(o.line) == line)?.mig?;
        Some(names::mig_resource(&rig.board.profiles.get(mig)?.name))
    })
}

/// Profiles that a pool lists and that none of its boards can be carved into.
pub(super) fn boards_that_cannot(core: &Core, snapshot: &Snapshot) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, pool) in &snapshot.pools {
        let here: Vec<&Rig> = core.forms.rigs.iter().filter(|r| r.live > 0 && r.pool_name == *name).collect();
        for profile in &pool.profiles {
            let Some(found) = snapshot.profiles.get(profile) else {
                problems.push(Problem::PoolProfileNotFound { pool: name.clone(), profile: profile.clone() });
                continue;
            };
            let line = core.lines.find(profile);
            let able = here.iter().any(|r| r.offers.iter().any(|o| Some(o.line) == line));
            if here.is_empty() || able || matches!(found.shape, Shape::Shared(_)) {
                continue;
            }
            let products: BTreeSet<&str> = here.iter().map(|r| r.board.product.as_str()).collect();
            let known: BTreeSet<&str> = here.iter().flat_map(|r| &r.board.profiles).map(|p| p.name.as_str()).collect();
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            problems.push(Problem::BoardCannot {
                profile: profile.clone(),
                pool: name.clone(),
                products: products.into_iter().collect::<Vec<_>>().join(", "),
                offers: if known.is_empty() { " (whole GPUs only)".to_owned() } else { format!(" ({known})") },
            });
        }
    }
    problems
}
