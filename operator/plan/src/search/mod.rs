//! The search: a layout for every class of GPUs, such that guarantees are served with the fewest evictions and changes.
//!
//! `fixed` places fixed layouts. `decide` takes the rest of the fleet apart into independent parts; `exact` decides small parts,
//! `local` and `bound` large ones, among the candidates that `builder` makes from layout tables (`table`) and sets of shares (`shares`). `objective` and the cost of
//! candidates define what is best. `spare` applies the pools' policies to what is left.

mod bound;
mod builder;
mod candidates;
mod decision;
mod exact;
mod fixed;
mod local;
mod objective;
mod part;
mod shares;
mod spare;
mod table;
mod walk;

use std::collections::BTreeMap;

pub(crate) use self::{
    builder::Layouts,
    candidates::Source,
    decision::{FleetDecision, Share},
    objective::{ProfileDemand, at},
};
use self::{
    local::Limits,
    objective::add_all,
    part::{Group, Part, Picks},
};
use crate::fleet::{ClassId, Fleet, ProfileId, Rule};

/// Parts with so many GPUs are searched longer than larger ones.
const SMALL: usize = 256;
const LONG: Limits = Limits { tries: 200, weighed: 2_000_000 };
const SHORT: Limits = Limits { tries: 24, weighed: 20_000 };
/// How often the result of the search is improved for small parts.
const IMPROVED: usize = 2;

/// Decides for the whole fleet.
pub(crate) fn decide(layouts: &mut Layouts<'_>) -> FleetDecision {
    let mut decision = FleetDecision::unchanged(layouts.fleet);
    fixed::decide(layouts, &mut decision);
    for (inside, classes) in parts_with_work(layouts.fleet, &decision) {
        solve(layouts, &mut decision, inside, classes);
    }
    spare::decide(layouts, &mut decision);
    decision
}

/// Sets of profiles and of classes that depend on each other, where a profile is scarce or a pod is evicted. In most plans there
/// are none, and every GPU keeps its layout.
fn parts_with_work(fleet: &Fleet<'_>, decision: &FleetDecision) -> Vec<(Vec<bool>, Vec<ClassId>)> {
    let mut urgent = decision.objective.scarce(&decision.after);
    let evicting = fleet.classes.iter().filter(|c| c.evict > 0);
    urgent.extend(evicting.clone().flat_map(|c| c.supply.iter().map(|(slot, _)| *slot)));
    if urgent.is_empty() && evicting.count() == 0 {
        return Vec::new();
    }
    let profiles = fleet.profiles.len();
    // union-find: each profile points to a smaller one of its set
    let mut sets: Vec<ProfileId> = (0..profiles).collect();
    let find = |sets: &[ProfileId], mut profile: ProfileId| {
        while let Some(up) = sets.get(profile).filter(|up| **up != profile) {
            profile = *up;
        }
        profile
    };
    let mut classes: Vec<(ClassId, Option<ProfileId>)> = Vec::new();
    for (id, class, options) in fleet.classes() {
        let follows = class.rule == Rule::Demand;
        let offered = options.offers.iter().map(|o| o.profile).filter(|_| follows);
        let mut all = offered.chain(class.supply.iter().map(|(slot, _)| *slot).filter(|slot| *slot < profiles));
        let first = all.next();
        for (first, other) in first.into_iter().cycle().zip(all) {
            let (a, b) = (find(&sets, first), find(&sets, other));
            if let Some(set) = sets.get_mut(a.max(b)) {
                *set = a.min(b);
            }
        }
        if follows {
            classes.push((id, first));
        }
    }
    let mut parts: BTreeMap<Option<ProfileId>, (Vec<bool>, Vec<ClassId>)> = BTreeMap::new();
    let empty = || (vec![false; profiles], Vec::new());
    for profile in 0..profiles {
        let part = parts.entry(Some(find(&sets, profile))).or_insert_with(empty);
        part.0.get_mut(profile).into_iter().for_each(|inside| *inside = true);
    }
    for (class, profile) in classes {
        parts.entry(profile.map(|p| find(&sets, p))).or_insert_with(empty).1.push(class);
    }
    let evicts = |class: &ClassId| fleet.classes.get(*class).is_some_and(|c| c.evict > 0);
    let has_work = |(inside, classes): &(Vec<bool>, Vec<ClassId>)| {
        urgent.iter().any(|p| inside.get(*p) == Some(&true)) || classes.iter().any(evicts)
    };
    parts.into_values().filter(has_work).collect()
}

/// Decides for the classes of one part.
fn solve(layouts: &mut Layouts<'_>, decision: &mut FleetDecision, inside: Vec<bool>, classes: Vec<ClassId>) {
    let fleet = layouts.fleet;
    let mut others = decision.after.clone();
    let mut groups = Vec::with_capacity(classes.len());
    for id in &classes {
        let (Some(class), Some(candidates)) = (fleet.classes.get(*id), layouts.candidates(*id)) else { continue };
        add_all(&mut others, &class.supply, -part::number(class.members.len()));
        groups.push(Group { candidates, count: class.members.len() });
    }
    let part = Part { objective: &decision.objective, groups, inside, others };
    let solved = exact::solve(&part);
    let searched = solved.is_none();
    let picks = solved.unwrap_or_else(|| search(&part, layouts.differences.len()));
    let after = part.totals(&picks).0;
    let Part { groups, .. } = part;
    decision.after = after;
    decision.searched |= searched;
    for ((class, group), picks) in classes.into_iter().zip(groups).zip(picks) {
        let share = |(index, count): (usize, usize)| Some((group.candidate(index)?.clone(), count));
        decision.set(class, picks.into_iter().filter_map(share).collect());
    }
}

fn search(part: &Part<'_>, differences: usize) -> Vec<Picks> {
    if part.count() > SMALL {
        return local::search(part, SHORT, differences);
    }
    let mut picks = local::search(part, LONG, differences);
    for _ in 0..IMPROVED {
        let Some(better) = bound::fewer_evictions(part, &picks) else { break };
        picks = better;
    }
    picks
}
