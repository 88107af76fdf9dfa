//! What is said about GPUs and about demand that is not served, in sentences.

use std::{collections::BTreeSet, sync::Arc};

use gputenancy_crds::{InstanceSpec, Layout};

use super::{
    decide::Decision,
    fleet::Core,
    forms::{Form, GpuId},
    help,
    menu::{Candidate, goes, resources},
    model::{Gpu, Mode, Node, Shape, Snapshot, Standing},
    name::{GpuKey, PoolName, ProfileName},
    outcome::{Evicted, GpuPlan},
    problem::Problem,
    rig::Rig,
    terms::of,
};

/// A GPU that is no supply keeps what its spec says.
pub(super) fn left_alone(key: &GpuKey, node: &Node, gpu: &Gpu) -> GpuPlan {
    let why = match gpu.standing {
        Standing::Away(why) => format!("{} GPU {}: left alone, {why}", key.node, gpu.index),
        _ => format!("{} GPU {}: left alone, its pool or its board is not known", key.node, gpu.index),
    };
    GpuPlan { pool: node.pool.clone(), index: gpu.index, reasons: vec![why], ..GpuPlan::default() }
}

/// The rank of a GPU that stays as it is, is listed, and has no pod that must go: there is nothing to say about it.
pub(super) fn quiet(gpu: &Gpu, base: Option<&Layout>) -> Option<u8> {
    let said = base.is_some() != gpu.base.is_some() || goes(gpu, base).next().is_some();
    (!said).then(|| rank(gpu, base, &[]))
}

/// A GPU that stays as it is. One that is not listed yet is taken over.
pub(super) fn kept(key: &GpuKey, form: &Form, rig: &Rig, gpu: &Gpu) -> GpuPlan {
    if let Some(rank) = form.quiet {
        let (pool, target) = (rig.pool_name.clone(), form.base.clone());
        return GpuPlan { pool, index: gpu.index, target, rank, ..GpuPlan::default() };
    }
    let evicts = evicts(gpu, form.base.as_deref());
    let changed = form.base.is_some() != gpu.base.is_some();
    let reasons = if changed { vec![sentence(key, rig, gpu, form.base.as_deref(), None, &evicts)] } else { Vec::new() };
    GpuPlan {
        pool: rig.pool_name.clone(),
        index: gpu.index,
        target: form.base.clone(),
        changed,
        rank: rank(gpu, form.base.as_deref(), &evicts),
        evicts,
        reasons,
    }
}

/// A GPU that is given another layout.
pub(super) fn changed(
    core: &Core,
    snapshot: &Snapshot,
    decision: &Decision,
    (kind, id): (usize, GpuId),
    (candidate, layout): (&Candidate, &Arc<Layout>),
) -> Option<(GpuKey, GpuPlan)> {
    let entry = core.gpus.get(id as usize)?;
    let key = GpuKey { node: core.nodes.get(entry.node)?.name.clone(), uuid: entry.uuid.clone() };
    let gpu = snapshot.nodes.get(&key.node)?.gpus.get(&key.uuid)?;
    let (_, _, rig) = core.forms.of(kind)?;
    let evicts = evicts(gpu, Some(layout));
    let needs = needs(core, decision, candidate);
    let plan = GpuPlan {
        pool: rig.pool_name.clone(),
        index: gpu.index,
        target: Some(Arc::clone(layout)),
        changed: gpu.base.as_ref() != Some(&**layout),
        rank: rank(gpu, Some(layout), &evicts),
        reasons: vec![sentence(&key, rig, gpu, Some(layout), needs.as_deref(), &evicts)],
        evicts,
    };
    Some((key, plan))
}

fn evicts(gpu: &Gpu, target: Option<&Layout>) -> Vec<Evicted> {
    goes(gpu, target).filter_map(|(start, used)| used.evicted(start)).collect()
}

/// Changes that move nobody come first; one that was tried and failed comes last, so that it holds up no other.
fn rank(gpu: &Gpu, target: Option<&Layout>, evicts: &[Evicted]) -> u8 {
    match (&gpu.standing, target) {
        (Standing::Failed(failed), Some(layout)) if failed == layout => 2,
        _ => u8::from(!evicts.is_empty()),
    }
}

/// The guarantees that a change serves.
fn needs(core: &Core, decision: &Decision, candidate: &Candidate) -> Option<String> {
    let beyond = decision.terms.beyond(&decision.before);
    let short = |(line, terms): (usize, &super::terms::LineTerms)| {
        let there = of(&decision.before, line) - of(&beyond, line);
        let here = candidate.supply.iter().any(|(l, n)| *l == line && *n > 0);
        let wanted = terms.total();
        (here && there < wanted)
            .then(|| format!("{wanted} of {} are guaranteed and {there} exist", core.lines.name(line)))
    };
    let needs: Vec<String> = decision.terms.lines.iter().enumerate().filter_map(short).collect();
    (!needs.is_empty()).then(|| needs.join(" and "))
}

/// What is done to a GPU, for whom, and who has to move.
fn sentence(
    key: &GpuKey,
    rig: &Rig,
    gpu: &Gpu,
    target: Option<&Layout>,
    needs: Option<&str>,
    evicts: &[Evicted],
) -> String {
    let base = gpu.base.as_ref();
    let instances = |l: Option<&Layout>| l.map(|l| l.instances.clone()).unwrap_or_default();
    let (old, new) = (instances(base), instances(target));
    let created: Vec<String> = new.iter().filter(|i| !old.contains(i)).map(at).collect();
    let removed: Vec<String> = old.iter().filter(|i| !new.contains(i)).map(at).collect();
    let mut deeds = Vec::new();
    match (base.is_some_and(|l| l.mig), target.is_some_and(|l| l.mig)) {
        (false, true) => deeds.push("turn MIG on".to_owned()),
        (true, false) => deeds.push("make it one whole device".to_owned()),
        (false, false) => deeds.extend(target.map(|l| format!("offer it whole as {}", resources(l).concat()))),
        (true, true) => {}
    }
    if !removed.is_empty() {
        deeds.push(format!("remove {}", removed.join(", ")));
    }
    if !created.is_empty() {
        deeds.push(format!("create {}", created.join(", ")));
    }
    let because = match needs {
        Some(needs) => format!(", because {needs}"),
        None if matches!(rig.pool.mode, Mode::Fixed(_)) => {
            format!(", as pool {} has it in spec.layout.fixed", rig.pool_name)
        }
        None if base.is_none() => format!(", as a spare of pool {}", rig.pool_name),
        None => String::new(),
    };
    format!("{} GPU {}: {}{because}{}", key.node, gpu.index, deeds.join(", "), moves(evicts))
}

/// The end of a GPU's sentence: who has to move, by name.
pub fn moves(evicts: &[Evicted]) -> String {
    if evicts.is_empty() {
        return "; nobody is evicted".to_owned();
    }
    let pods: Vec<String> = evicts.iter().map(|e| format!("{} (has {} at {})", e.pod, e.device, e.start)).collect();
    format!("; must move: {}", pods.join(", "))
}

fn at(instance: &InstanceSpec) -> String {
    format!("{} at {}", instance.profile, instance.start)
}

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
