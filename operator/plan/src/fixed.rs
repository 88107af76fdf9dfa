//! Layouts written by hand: placed so that they move the fewest pods, and refused where they do not fit or would end a profile.

use std::collections::BTreeMap;

use super::{
    decide::{Decision, Share, number},
    fleet::Core,
    forms::Rule,
    menu::Candidate,
    model::Fixed,
    name::{GpuKey, ProfileName},
    problem::Problem,
    rig::Rig,
    terms::of,
};

/// What follows from the layouts written by hand.
pub(super) struct Written {
    /// Devices by place, when they are carried out.
    pub sums: Vec<i64>,
}

impl Written {
    /// Decides for all kinds whose layout is written by hand.
    pub fn of(core: &mut Core, decision: &mut Decision) -> Self {
        let mut sums = decision.before.clone();
        let kinds: Vec<usize> = (0..core.forms.kinds.len()).filter(|k| written(core, *k).is_some()).collect();
        let mut found: Vec<(usize, Candidate)> = Vec::new();
        for kind in kinds {
            match best(core, kind) {
                Some(candidate) => found.push((kind, candidate)),
                None => decision.problems.extend(misfits(core, kind)),
            }
        }
        found.retain(|(kind, candidate)| {
            core.forms.kinds.get(*kind).is_some_and(|k| k.supply != candidate.supply || candidate.cost.touch > 0)
        });
        for (kind, candidate) in &found {
            shift(core, &mut sums, *kind, candidate, 1);
        }
        let gone: Vec<usize> = decision
            .terms
            .lines
            .iter()
            .enumerate()
            .filter(|(l, t)| t.protected && of(&sums, *l) <= 0)
            .map(|(l, _)| l)
            .collect();
        for line in gone {
            let has = |core: &Core, kind: usize| {
                let kind = core.forms.kinds.get(kind);
                kind.is_some_and(|k| {
                    k.supply.iter().any(|(l, _)| *l == line)
                        && core.forms.list.get(k.form).is_some_and(|f| f.in_use.contains(&line))
                })
            };
            let (refused, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|(kind, _)| has(core, *kind));
            found = rest;
            for (kind, candidate) in refused {
                shift(core, &mut sums, kind, &candidate, -1);
                let profile = core.lines.name(line);
                decision.problems.extend(outages(core, kind, &profile));
            }
        }
        for (kind, candidate) in found {
            let count = core.forms.kinds.get(kind).map_or(0, |k| k.members.len());
            let share: Share = (candidate, count);
            decision.shares.insert(kind, vec![share]);
        }
        Self { sums }
    }
}

fn shift(core: &Core, sums: &mut [i64], kind: usize, candidate: &Candidate, sign: i64) {
    let Some(kind) = core.forms.kinds.get(kind) else { return };
    let times = sign * number(kind.members.len());
    let change = candidate.supply.iter().map(|(p, n)| (*p, *n)).chain(kind.supply.iter().map(|(p, n)| (*p, -*n)));
    change.for_each(|(place, n)| super::terms::add(sums, place, times * n));
}

fn written(core: &Core, kind: usize) -> Option<Fixed> {
    let (kind, form, rig) = core.forms.of(kind)?;
    match (&form.rule, &rig.pool.mode) {
        (Rule::Fixed(which), super::model::Mode::Fixed(list)) if !kind.members.is_empty() => list.get(*which).cloned(),
        _ => None,
    }
}

/// The layout with these devices that costs least; `None`: there is none.
fn best(core: &mut Core, kind: usize) -> Option<Candidate> {
    let fixed = written(core, kind)?;
    let (_, form, rig) = core.forms.of(kind)?;
    let lines = core.lines.clone();
    let mut wanted: BTreeMap<(Option<usize>, Option<String>), u32> = BTreeMap::new();
    for (name, n) in &fixed.counts {
        let offer = rig.offers.iter().find(|o| lines.find(name) == Some(o.line))?;
        *wanted.entry((offer.mig, offer.resource.clone())).or_default() += n;
    }
    let present = form.base.clone();
    let whole: Option<Option<String>> = match wanted.iter().next() {
        Some(((None, resource), 1)) if wanted.len() == 1 => Some(resource.clone()),
        _ => None,
    };
    core.forms.kitchen(kind, &lines, |kitchen| {
        if let Some(resource) = &whole {
            let is = present.as_ref().is_some_and(|l| !l.mig && l.resource == *resource);
            return if is {
                kitchen.as_it_is().candidates.into_iter().next()
            } else {
                kitchen.wholes().into_iter().find(|c| kitchen.is_whole(c, resource.as_deref()))
            };
        }
        let counts = |packing| {
            let mut counts: BTreeMap<(Option<usize>, Option<String>), u32> = BTreeMap::new();
            for item in super::rig::chosen(packing, &kitchen.book.items) {
                *counts.entry((Some(item.mig), item.resource.clone())).or_default() += 1;
            }
            counts
        };
        kitchen.cheapest(|packing| counts(packing) == wanted)
    })?
}

fn keys(core: &Core, kind: usize) -> Vec<(GpuKey, i32)> {
    let members = core.forms.kinds.get(kind).map(|k| k.members.as_slice()).unwrap_or_default();
    let of = |id: &u32| {
        let entry = core.gpus.get(*id as usize)?;
        let node = core.nodes.get(entry.node)?.name.clone();
        let index = core.plan.gpus.get(&GpuKey { node: node.clone(), uuid: entry.uuid.clone() })?.index;
        Some((GpuKey { node, uuid: entry.uuid.clone() }, index))
    };
    members.iter().filter_map(of).collect()
}

fn misfits(core: &Core, kind: usize) -> Vec<Problem> {
    let (Some(fixed), Some((_, _, rig))) = (written(core, kind), core.forms.of(kind)) else { return Vec::new() };
    let why = why(core, rig, &fixed);
    let text = fixed.counts.iter().map(|(name, n)| format!("{n} × {name}")).collect::<Vec<_>>().join(" + ");
    let of = |(key, index): (GpuKey, i32)| Problem::FixedDoesNotFit {
        pool: rig.pool_name.clone(),
        gpus: fixed.text.clone(),
        layout: text.clone(),
        node: key.node,
        index,
        product: rig.board.product.clone(),
        why: why.clone(),
    };
    keys(core, kind).into_iter().map(of).collect()
}

fn why(core: &Core, rig: &Rig, fixed: &Fixed) -> String {
    let offered = |name: &ProfileName| rig.offers.iter().find(|o| core.lines.find(name) == Some(o.line));
    let foreign: Vec<&str> = fixed.counts.keys().filter(|p| offered(p).is_none()).map(ProfileName::as_str).collect();
    if !foreign.is_empty() {
        let foreign = foreign.join(", ");
        return format!("the board or the pool does not offer {foreign}; list it in spec.profiles, or write another");
    }
    let remedy = "these instances do not fit together on this board; write fewer or smaller ones";
    let sum = |of: fn(&super::board::MigProfile) -> i32| -> i32 {
        let one = |(name, n): (&ProfileName, &u32)| {
            let profile = rig.board.profiles.get(offered(name)?.mig?)?;
            Some(of(profile) * i32::try_from(*n).ok()?)
        };
        fixed.counts.iter().filter_map(one).sum()
    };
    let (slices, memory) = (sum(|p| p.slices), sum(|p| p.size));
    let mut over = Vec::new();
    if slices > rig.board.slices {
        over.push(format!("{slices} of {} compute slices", rig.board.slices));
    }
    if memory > rig.board.memory_slices {
        over.push(format!("{memory} of {} memory slices", rig.board.memory_slices));
    }
    if !over.is_empty() {
        return format!("it takes {}; {remedy}", over.join(" and "));
    }
    // enough slices, and yet no room: somebody may start only at few places
    let places = fixed.counts.keys().filter_map(|name| {
        let profile = rig.board.profiles.get(offered(name)?.mig?)?;
        let starts: Vec<String> = profile.starts.iter().map(ToString::to_string).collect();
        Some(format!("{} starts at {} only, {} at most", profile.name, starts.join(", "), profile.max))
    });
    format!("{} ({})", remedy, places.collect::<Vec<_>>().join("; "))
}

fn outages(core: &Core, kind: usize, profile: &ProfileName) -> Vec<Problem> {
    let Some((_, _, rig)) = core.forms.of(kind) else { return Vec::new() };
    let of = |(key, index): (GpuKey, i32)| Problem::Outage {
        pool: rig.pool_name.clone(),
        profile: profile.clone(),
        node: key.node,
        index,
    };
    keys(core, kind).into_iter().map(of).collect()
}
