//! After the guarantees: the pools' policies for spare GPUs and slices.

use std::cmp::Reverse;

use super::{
    builder::{CandidateBuilder, Layouts},
    candidates::{Candidate, Source},
    decision::{FleetDecision, Share},
    objective::at,
    shares::Extent,
    table::Row,
};
use crate::{
    fleet::{GpuClass, ProfileId, Rule, count},
    snapshot::Spare,
};

/// Applies the policies, to classes at the end of the fleet first.
pub(super) fn decide(layouts: &mut Layouts<'_>, decision: &mut FleetDecision) {
    let fleet = layouts.fleet;
    let follows = |class: &GpuClass<'_>| class.rule == Rule::Demand && class.pool_rules.spare != Spare::Keep;
    let mut classes: Vec<_> = fleet.classes().filter(|(_, class, _)| follows(class)).collect();
    classes.sort_by_key(|(_, class, _)| Reverse(class.members.last()));
    for (id, class, _) in classes {
        let Some(builder) = layouts.builder(id) else { continue };
        let shares = decision.shares.get(&id).cloned();
        let mut made: Vec<Share> = Vec::new();
        for (chosen, count) in shares.unwrap_or_else(|| vec![(builder.present(), class.members.len())]) {
            let mut left = count;
            if let Some(next) = next(&builder, &chosen) {
                while left > 0 && is_allowed(decision, class, (&chosen, &next)) {
                    decision.exchange(&chosen, &next, 1);
                    left -= 1;
                }
                put(&mut made, next, count - left);
            }
            put(&mut made, chosen, left);
        }
        decision.set(id, made);
    }
}

fn put(shares: &mut Vec<Share>, candidate: Candidate, count: usize) {
    match shares.iter_mut().find(|(c, _)| c.source == candidate.source) {
        Some((_, n)) => *n += count,
        None if count > 0 => shares.push((candidate, count)),
        None => {}
    }
}

fn has_mig(class: &GpuClass<'_>, candidate: &Candidate) -> bool {
    match candidate.source {
        Source::Instances(_) => true,
        Source::Whole(_) | Source::Shares(_) => false,
        Source::Present => class.has_mig(),
    }
}

fn is_shared(class: &GpuClass<'_>, candidate: &Candidate) -> bool {
    match candidate.source {
        Source::Shares(_) => true,
        Source::Present => class.base.as_ref().is_some_and(|l| l.sharing.is_some()),
        Source::Instances(_) | Source::Whole(_) => false,
    }
}

/// Whether a layout has every device of another one, and evicts no more.
fn covers(next: &Candidate, chosen: &Candidate) -> bool {
    next.cost.evict <= chosen.cost.evict && chosen.supply.iter().all(|(slot, n)| count(&next.supply, *slot) >= *n)
}

/// As many shares of the profile as fit: on a shared GPU with the others, of which none is lost; elsewhere alone.
fn more_shares(builder: &CandidateBuilder<'_>, chosen: &Candidate, profile: ProfileId) -> Option<Candidate> {
    let shared = is_shared(builder.class, chosen);
    let more = |c: &Candidate| count(&c.supply, profile) > count(&chosen.supply, profile);
    let total = |c: &Candidate| c.supply.iter().map(|(_, n)| n).sum::<i64>();
    let candidates = builder.shares(Extent::Spare).filter(|c| more(c) && (!shared || covers(c, chosen)));
    candidates.min_by_key(|c| (Reverse(count(&c.supply, profile)), total(c), c.cost, c.source))
}

/// Whether the policy may change a GPU: it only adds devices, or no device is in use and every guarantee is met without it.
fn is_allowed(decision: &FleetDecision, class: &GpuClass<'_>, (chosen, next): (&Candidate, &Candidate)) -> bool {
    if matches!(class.pool_rules.spare, Spare::Fill(_) | Spare::Only(_)) && covers(next, chosen) {
        return true;
    }
    let usable = decision.objective.usable(&decision.after);
    let met = |(slot, n): &(usize, i64)| {
        let Some(demand) = decision.objective.profiles.get(*slot) else { return false };
        at(&usable, *slot) - n >= demand.total() && !(demand.protected && at(&decision.after, *slot) <= *n)
    };
    class.gpu.used.is_empty() && chosen.supply.iter().all(met)
}

/// What the policy makes of a GPU.
fn next(builder: &CandidateBuilder<'_>, chosen: &Candidate) -> Option<Candidate> {
    let mig = has_mig(builder.class, chosen);
    match &builder.class.pool_rules.spare {
        Spare::Keep => None,
        // one whole device, where the pool offers whole devices or the GPU was whole before this plan
        Spare::Whole => {
            let present = || {
                let whole =
                    |present: &Candidate| !has_mig(builder.class, present) && !is_shared(builder.class, present);
                Some(builder.present()).filter(whole)
            };
            builder.wholes().next().or_else(present).filter(|_| mig || is_shared(builder.class, chosen))
        }
        // as many devices of the profile as fit beside those that exist
        Spare::Fill(profile) | Spare::Only(profile) => {
            let profile = builder.fleet.profiles.find(profile)?;
            if builder.is_share(profile) || is_shared(builder.class, chosen) {
                return more_shares(builder, chosen, profile);
            }
            let replaces =
                matches!(builder.class.pool_rules.spare, Spare::Only(_)) && builder.class.gpu.used.is_empty();
            let kept = match chosen.source {
                _ if replaces => 0,
                Source::Instances(packing) => packing,
                Source::Present if mig => builder.present,
                _ => 0,
            };
            let devices = |row: &Row| builder.table.count(row.packing, profile);
            let instances = |row: &Row| builder.table.instances(row.packing, profile);
            let rows = builder.table.rows.iter().filter(|row| row.packing & kept == kept);
            let best = rows.min_by_key(|row| {
                let others = row.packing.count_ones() as usize - instances(row);
                (Reverse(devices(row)), others, builder.cost(row), row.packing)
            })?;
            let more = devices(best) > count(&chosen.supply, profile);
            more.then(|| builder.candidate(best, builder.cost(best)))
        }
    }
}
