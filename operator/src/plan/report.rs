//! From the search's answer to the plan: targets, numbers, and the sentences that explain them.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{InstanceSpec, Layout, Stranded};

use super::{
    demand::{Demand, pools_with},
    fleet::Place,
    menu::{Candidate, goes, resources},
    model::{Shape, Snapshot, Standing},
    name::{GpuKey, PoolName, ProfileName},
    outcome::{Evicted, GpuPlan, Plan, Supply},
    packing::{Item, Leftovers},
    problem::Problem,
};

/// Everything that the plan says, from what was chosen for each place.
pub(super) fn report(
    snapshot: &Snapshot,
    demand: &Demand,
    places: &[Place<'_>],
    before: &[i64],
    chosen: &[Candidate],
    mut problems: Vec<Problem>,
) -> Plan {
    let after = places.iter().zip(chosen).fold(demand.sums(), |mut sums, (_, c)| {
        c.supply.iter().for_each(|(line, n)| super::demand::add(&mut sums, *line, *n));
        sums
    });
    let mut gpus = left_alone(snapshot);
    for (place, candidate) in places.iter().zip(chosen) {
        gpus.insert(place.key.clone(), gpu(place, candidate, demand, before));
    }
    let count = |sums: &[i64], line: usize| u32::try_from(sums.get(line).copied().unwrap_or(0)).unwrap_or(0);
    let profiles = (0..demand.names.len()).map(|line| {
        let supply =
            Supply { guaranteed: count(&demand.wanted, line), before: count(before, line), after: count(&after, line) };
        (demand.name(line), supply)
    });
    let tenants = demand.share(&after);
    for (tenant, profiles) in &tenants {
        for (profile, served) in profiles.iter().filter(|(_, s)| s.missing() > 0) {
            problems.push(Problem::Shortage {
                tenant: tenant.clone(),
                profile: profile.clone(),
                wanted: served.guaranteed,
                got: served.satisfied,
                pools: pools_with(snapshot, profile),
                why: why(snapshot, demand, places, profile, &after),
            });
        }
    }
    problems.extend(boards_that_cannot(snapshot, demand, places));
    problems.sort();
    problems.dedup();
    Plan { gpus, profiles: profiles.collect(), tenants, stranded: stranded(places, chosen), problems }
}

/// GPUs that are no supply keep what their spec says.
fn left_alone(snapshot: &Snapshot) -> BTreeMap<GpuKey, GpuPlan> {
    let mut gpus = BTreeMap::new();
    for (name, node) in &snapshot.nodes {
        for (uuid, gpu) in &node.gpus {
            let why = match gpu.standing {
                Standing::Away(why) => format!("{name} GPU {}: left alone, {why}", gpu.index),
                _ => format!("{name} GPU {}: left alone, its pool or its board is not known", gpu.index),
            };
            let key = GpuKey { node: name.clone(), uuid: uuid.clone() };
            let pool = node.pool.clone();
            gpus.insert(key, GpuPlan { pool, index: gpu.index, reasons: vec![why], ..GpuPlan::default() });
        }
    }
    gpus
}

fn gpu(place: &Place<'_>, chosen: &Candidate, demand: &Demand, before: &[i64]) -> GpuPlan {
    let target = chosen.layout.clone();
    let evicts: Vec<Evicted> = goes(place.gpu, target.as_ref())
        .filter_map(|(start, used)| {
            let device = used.profile.clone().unwrap_or_else(|| "whole GPU".to_owned());
            Some(Evicted { pod: used.pod.clone()?, start, device })
        })
        .collect();
    let changed = target != place.gpu.base;
    GpuPlan {
        pool: place.pool_name.clone(),
        index: place.gpu.index,
        changed,
        rank: rank(place, chosen, &evicts),
        reasons: if changed { vec![sentence(place, chosen, demand, before, &evicts)] } else { Vec::new() },
        evicts,
        target,
    }
}

/// Changes that move nobody come first; one that was tried and failed comes last, so that it holds up no other.
fn rank(place: &Place<'_>, chosen: &Candidate, evicts: &[Evicted]) -> u8 {
    match (&place.gpu.standing, &chosen.layout) {
        (Standing::Failed(failed), Some(layout)) if failed == layout => 2,
        _ => u8::from(!evicts.is_empty()),
    }
}

/// What is done to a GPU, for whom, and who has to move.
fn sentence(place: &Place<'_>, chosen: &Candidate, demand: &Demand, before: &[i64], evicts: &[Evicted]) -> String {
    let title = format!("{} GPU {}", place.key.node, place.gpu.index);
    let (base, target) = (place.gpu.base.as_ref(), chosen.layout.as_ref());
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
    let short = |line: usize| {
        let (wanted, there) = (*demand.wanted.get(line)?, demand.supply(before, line));
        let here = chosen.supply.iter().any(|(l, n)| *l == line && *n > 0);
        (here && there < wanted).then(|| format!("{wanted} of {} are guaranteed and {there} exist", demand.name(line)))
    };
    let needs: Vec<String> = (0..demand.names.len()).filter_map(short).collect();
    let because = if !needs.is_empty() {
        format!(", because {}", needs.join(" and "))
    } else if matches!(place.pool.mode, super::model::Mode::Fixed(_)) {
        format!(", as pool {} has it in spec.layout.fixed", place.pool_name)
    } else if base.is_none() {
        format!(", as a spare of pool {}", place.pool_name)
    } else {
        String::new()
    };
    let moves = match evicts {
        [] => "; nobody is evicted".to_owned(),
        evicts => {
            let pods: Vec<String> =
                evicts.iter().map(|e| format!("{} (has {} at {})", e.pod, e.device, e.start)).collect();
            format!("; must move: {}", pods.join(", "))
        }
    };
    format!("{title}: {}{because}{moves}", deeds.join(", "))
}

fn at(instance: &InstanceSpec) -> String {
    format!("{} at {}", instance.profile, instance.start)
}

/// Why a guarantee cannot be met, and what would help.
fn why(snapshot: &Snapshot, demand: &Demand, places: &[Place<'_>], profile: &ProfileName, after: &[i64]) -> String {
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
    let line = demand.line(profile);
    let able = places.iter().filter(|p| p.offers.iter().any(|o| Some(o.line) == line)).count();
    if able == 0 {
        return format!("pool {names} has no GPU that can be carved into it{away}: add nodes with such boards");
    }
    let of = |sums: &[i64]| line.and_then(|l| sums.get(l)).copied().unwrap_or(0);
    let room = line.map_or(0, |l| demand.supply(after, l));
    format!(
        "the {able} GPUs of pool {names} that can carry it{away} have room for {} beside the other guarantees, {} are guaranteed in all: \
         add GPUs, or lower a guarantee",
        room,
        of(&demand.wanted)
    )
}

fn boards_that_cannot(snapshot: &Snapshot, demand: &Demand, places: &[Place<'_>]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, pool) in &snapshot.pools {
        let here: Vec<&Place<'_>> = places.iter().filter(|p| p.pool_name == name).collect();
        for profile in &pool.profiles {
            let Some(found) = snapshot.profiles.get(profile) else {
                problems.push(Problem::PoolProfileNotFound { pool: name.clone(), profile: profile.clone() });
                continue;
            };
            let line = demand.line(profile);
            let able = here.iter().any(|p| p.offers.iter().any(|o| Some(o.line) == line));
            if here.is_empty() || able || matches!(found.shape, Shape::Shared(_)) {
                continue;
            }
            let products: BTreeSet<&str> = here.iter().map(|p| p.board.product.as_str()).collect();
            let known: BTreeSet<&str> = here.iter().flat_map(|p| &p.board.profiles).map(|p| p.name.as_str()).collect();
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

fn stranded(places: &[Place<'_>], chosen: &[Candidate]) -> BTreeMap<PoolName, Stranded> {
    let mut pools: BTreeMap<PoolName, Stranded> = BTreeMap::new();
    for (place, candidate) in places.iter().zip(chosen) {
        let sum = pools.entry(place.pool_name.clone()).or_default();
        let Some(layout) = candidate.layout.as_ref().filter(|l| l.mig) else { continue };
        let mut items: Vec<Item> = Vec::new();
        for mig in place.offers.iter().filter_map(|o| o.mig) {
            let starts = place.board.profiles.get(mig).map(|p| p.starts.clone()).unwrap_or_default();
            items.extend(starts.into_iter().map(|start| Item { start, mig, resource: None }));
        }
        let placeable = items.len();
        items.extend(layout.instances.iter().filter_map(|i| {
            let mig = place.board.profiles.iter().position(|p| p.name == i.profile)?;
            Some(Item { start: i.start, mig, resource: None })
        }));
        let packing: Vec<u16> = (placeable..items.len()).filter_map(|i| u16::try_from(i).ok()).collect();
        let left = Leftovers::of(place.board, items.get(..placeable).unwrap_or_default()).after(&items, &packing);
        sum.memory += left.memory;
        sum.compute += left.compute;
    }
    pools
}
