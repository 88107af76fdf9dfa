//! Fixed layouts: placed so that they evict the fewest pods, and refused where they do not fit or would remove the last GPU of a profile
//! in use.

use std::collections::BTreeMap;

use gputenancy_crds::CONTEXT_MIB;

use super::{
    builder::{Instances, Layouts},
    candidates::Candidate,
    decision::FleetDecision,
};
use crate::{
    board::MigProfile,
    fleet::{BoardOptions, ClassId, Fleet, GpuClass, Rule, count},
    problem::Problem,
    snapshot::{Fixed, Mode},
};
use gputenancy_crds::ids::ProfileName;

/// Decides for all classes with a fixed layout.
pub(super) fn decide(layouts: &mut Layouts<'_>, decision: &mut FleetDecision) {
    let fleet = layouts.fleet;
    let mut found: Vec<(ClassId, Candidate, Candidate)> = Vec::new();
    for (id, class, options) in fleet.classes() {
        let (Rule::Fixed(index), Mode::Fixed(list)) = (class.rule, &class.pool_rules.mode) else { continue };
        let (Some(fixed), Some(builder)) = (list.get(index), layouts.builder(id)) else { continue };
        let best = instances(fleet, options, fixed).and_then(|wanted| match wanted.iter().next() {
            Some(((None, resource), 1)) if wanted.len() == 1 => builder.whole(resource.as_ref()),
            _ => builder.with_instances(&wanted),
        });
        let best = match shares(fleet, options, fixed) {
            None => best,
            Some(wanted) => builder.with_shares(&wanted),
        };
        match best {
            None => decision.problems.extend(misfits(fleet, class, options, fixed)),
            Some(best) if best.supply != class.supply || best.cost.touch > 0 => {
                let present = builder.present();
                decision.exchange(&present, &best, class.members.len());
                found.push((id, present, best));
            }
            Some(_) => {}
        }
    }
    let demands = decision.objective.profiles.iter().zip(&decision.after).enumerate();
    let removed =
        demands.filter(|(_, (demand, devices))| demand.protected && **devices <= 0).map(|(profile, _)| profile);
    for profile in removed.collect::<Vec<_>>() {
        found.retain(|(id, present, best)| {
            let Some(class) = fleet.classes.get(*id) else { return false };
            let ends = count(&class.supply, profile) > 0 && class.in_use.contains(&profile);
            if ends {
                decision.exchange(best, present, class.members.len());
                decision.problems.extend(outages(fleet, class, &fleet.profiles.name(profile)));
            }
            !ends
        });
    }
    for (id, _, best) in found {
        let gpus = fleet.classes.get(id).map_or(0, |class| class.members.len());
        decision.set(id, vec![(best, gpus)]);
    }
}

/// Devices of a fixed layout: how many of each MIG profile, or of the whole GPU, and resource. `None`: the pool does not offer all.
fn instances(fleet: &Fleet<'_>, options: &BoardOptions<'_>, fixed: &Fixed) -> Option<Instances> {
    let mut wanted = BTreeMap::new();
    for (name, n) in &fixed.counts {
        let offer = options.offer(fleet.profiles.find(name)?)?;
        *wanted.entry((offer.mig, offer.resource.clone())).or_default() += n;
    }
    Some(wanted)
}

/// Shares of a fixed layout, by resource; `None`: it has something else.
fn shares(fleet: &Fleet<'_>, options: &BoardOptions<'_>, fixed: &Fixed) -> Option<BTreeMap<String, u32>> {
    let share = |(name, n): (&ProfileName, &u32)| {
        let offer = options.offer(fleet.profiles.find(name)?)?;
        offer.shares.and(offer.resource.clone()).map(|resource| (resource, *n))
    };
    fixed.counts.iter().map(share).collect()
}

fn misfits(fleet: &Fleet<'_>, class: &GpuClass<'_>, options: &BoardOptions<'_>, fixed: &Fixed) -> Vec<Problem> {
    let layout = fixed.counts.iter().map(|(name, n)| format!("{n} × {name}")).collect::<Vec<_>>().join(" + ");
    let why = why(fleet, options, fixed);
    let gpus = class.members.iter().filter_map(|id| fleet.gpus.get(*id));
    let problems = gpus.map(|gpu| Problem::FixedDoesNotFit {
        pool: class.pool.clone(),
        gpus: fixed.text.clone(),
        layout: layout.clone(),
        node: gpu.key.node.clone(),
        index: gpu.gpu.index,
        product: options.board.product.clone(),
        why: why.clone(),
    });
    problems.collect()
}

fn why(fleet: &Fleet<'_>, options: &BoardOptions<'_>, fixed: &Fixed) -> String {
    let board = options.board;
    let offered = |name: &ProfileName| options.offer(fleet.profiles.find(name)?);
    let missing: Vec<&str> = fixed.counts.keys().filter(|p| offered(p).is_none()).map(ProfileName::as_str).collect();
    let closed = |name: &&str| {
        let profile = fleet.snapshot.profiles.get(*name);
        profile.and_then(|p| p.shape.sharing_mode()).is_some_and(|mode| options.closed.contains(&mode))
    };
    let weak: Vec<&str> = missing.iter().copied().filter(closed).collect();
    if !weak.is_empty() {
        let weak = weak.join(", ");
        return format!(
            "its node cannot limit {weak} as spec.enforcement.minimum of the pool demands; lower the minimum, or write another"
        );
    }
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return format!("the board or the pool does not offer {missing}; list it in spec.profiles, or write another");
    }
    if fixed.counts.keys().any(|name| offered(name).is_some_and(|o| o.shares.is_some())) {
        let usable = board.usable_memory();
        return format!(
            "a GPU has shares of one mode only, exactly as many of timeSlice and of equal mps shares as their replicas, and the parts \
             of others may add up to {usable} MiB, with {CONTEXT_MIB} MiB more for each share, and 100 percent of compute; write such a set"
        );
    }
    let remedy = "these instances do not fit together on this board; write fewer or smaller ones";
    let slices = |name: &ProfileName| u32::try_from(offered(name)?.replicas?).ok();
    if let Some((name, of)) =
        fixed.counts.iter().find_map(|(name, n)| Some((name, slices(name).filter(|of| n % of != 0)?)))
    {
        return format!("an instance of {name} has {of} time-slices; write a multiple of {of} as count");
    }
    let wanted = fixed
        .counts
        .iter()
        .filter_map(|(name, n)| Some((board.profiles.get(offered(name)?.mig?)?, *n / slices(name).unwrap_or(1))));
    let wanted: Vec<(&MigProfile, u32)> = wanted.collect();
    let sum = |of: fn(&MigProfile) -> i32| -> i32 {
        wanted.iter().filter_map(|(profile, n)| Some(of(profile) * i32::try_from(*n).ok()?)).sum()
    };
    let (slices, memory) = (sum(|p| p.slices), sum(|p| p.size));
    let mut over = Vec::new();
    if slices > board.slices {
        over.push(format!("{slices} of {} compute slices", board.slices));
    }
    if memory > board.memory_slices {
        over.push(format!("{memory} of {} memory slices", board.memory_slices));
    }
    if !over.is_empty() {
        return format!("it takes {}; {remedy}", over.join(" and "));
    }
    // enough slices: the starts or the most instances of a profile do not fit
    let places = wanted.iter().map(|(profile, _)| {
        let starts: Vec<String> = profile.starts.iter().map(ToString::to_string).collect();
        format!("{} starts at {} only, {} at most", profile.name, starts.join(", "), profile.max)
    });
    format!("{remedy} ({})", places.collect::<Vec<_>>().join("; "))
}

fn outages(fleet: &Fleet<'_>, class: &GpuClass<'_>, profile: &ProfileName) -> Vec<Problem> {
    let gpus = class.members.iter().filter_map(|id| fleet.gpus.get(*id));
    let problems = gpus.map(|gpu| Problem::Outage {
        pool: class.pool.clone(),
        profile: profile.clone(),
        node: gpu.key.node.clone(),
        index: gpu.gpu.index,
    });
    problems.collect()
}
