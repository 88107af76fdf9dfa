//! After the guarantees: what a pool does with GPUs and slices that nobody needs.

use std::sync::Arc;

use super::{
    decide::{Decision, Share, number},
    fleet::Core,
    forms::Rule,
    menu::{Candidate, Source},
    model::Spare,
    packing::Packing,
    terms::{add, of},
};

/// Applies the pools' policies: kinds from the end of the fleet first.
pub(super) fn spare(core: &mut Core, decision: &mut Decision) {
    let follows = |core: &Core, kind: usize| {
        let (of, form, rig) = core.forms.of(kind)?;
        let acts = form.rule == Rule::Demand && !of.members.is_empty() && rig.pool.spare != Spare::Keep;
        acts.then(|| rig.pool.spare.clone())
    };
    let kinds = (0..core.forms.kinds.len()).filter_map(|k| Some((k, follows(core, k)?)));
    let mut kinds: Vec<(usize, Spare)> = kinds.collect();
    kinds.sort_by_cached_key(|(kind, _)| {
        let members = core.forms.kinds.get(*kind).map(|k| k.members.as_slice()).unwrap_or_default();
        std::cmp::Reverse(members.iter().map(|id| core.place(*id)).max())
    });
    for (kind, spare) in kinds {
        let Some(of_kind) = core.forms.kinds.get(kind) else { continue };
        let as_it_is = || {
            let candidate = Candidate {
                source: Source::Present,
                supply: of_kind.supply.clone(),
                cost: super::menu::Cost::default(),
            };
            vec![(candidate, of_kind.members.len())]
        };
        let shares = decision.shares.get(&kind).cloned().unwrap_or_else(as_it_is);
        let mut made: Vec<Share> = Vec::new();
        for (chosen, count) in shares {
            let mut left = count;
            if let Some(next) = next(core, kind, &spare, &chosen) {
                while left > 0 && allowed(core, decision, kind, &spare, &chosen) {
                    for (candidate, sign) in [(&chosen, -1), (&next, 1)] {
                        candidate.supply.iter().for_each(|(place, n)| add(&mut decision.after, *place, sign * n));
                    }
                    left -= 1;
                }
                put(&mut made, next, count - left);
            }
            put(&mut made, chosen, left);
        }
        if made.iter().any(|(c, _)| c.source != Source::Present) {
            decision.shares.insert(kind, made);
        } else {
            decision.shares.remove(&kind);
        }
    }
}

fn put(shares: &mut Vec<Share>, candidate: Candidate, count: usize) {
    match shares.iter_mut().find(|(c, _)| c.source == candidate.source) {
        Some((_, n)) => *n += count,
        None if count > 0 => shares.push((candidate, count)),
        None => {}
    }
}

fn is_mig(core: &Core, kind: usize, candidate: &Candidate) -> bool {
    match candidate.source {
        Source::Carved(_) => true,
        Source::Whole(_) => false,
        Source::Present => core.forms.of(kind).is_some_and(|(_, f, _)| f.base.as_ref().is_some_and(|l| l.mig)),
    }
}

/// A whole GPU may be carved, and a carved one merged, when nothing runs on it and every guarantee is met without it.
fn allowed(core: &Core, decision: &Decision, kind: usize, spare: &Spare, chosen: &Candidate) -> bool {
    if matches!(spare, Spare::Fill(_)) && is_mig(core, kind, chosen) {
        return true;
    }
    let beyond = decision.terms.beyond(&decision.after);
    let met = |(line, n): &(usize, i64)| {
        let Some(terms) = decision.terms.lines.get(*line) else { return false };
        let rest = of(&decision.after, *line) - n;
        rest - of(&beyond, *line) >= terms.total() && !(terms.protected && rest <= 0)
    };
    core.forms.of(kind).is_some_and(|(_, f, _)| f.gpu.used.is_empty()) && chosen.supply.iter().all(met)
}

/// What the policy would make of a GPU.
fn next(core: &mut Core, kind: usize, spare: &Spare, chosen: &Candidate) -> Option<Candidate> {
    let mig = is_mig(core, kind, chosen);
    let lines = core.lines.clone();
    match spare {
        Spare::Keep => None,
        Spare::Whole if !mig => None,
        // One whole device again, where the pool offers whole devices.
        Spare::Whole => {
            core.forms.kitchen(kind, &lines, |kitchen| kitchen.wholes().into_iter().next())?.or_else(|| {
                // what was whole before this plan
                let menu = core.forms.menu(kind, &lines)?;
                let present = menu.candidates.first()?.clone();
                (!is_mig(core, kind, &present)).then_some(present)
            })
        }
        // As many devices of the profile as fit beside what is there.
        Spare::Fill(profile) => {
            let line = lines.find(profile)?;
            core.forms.kitchen(kind, &lines, |kitchen| {
                let present: Packing = match chosen.source {
                    Source::Carved(packing) => packing,
                    Source::Present if mig => kitchen.present_bits(),
                    _ => 0,
                };
                let book = Arc::clone(&kitchen.book);
                let keeps = book.ways.iter().filter(|w| w.packing & present == present);
                let key = |w: &&super::rig::Way| {
                    let count = book.count(w.packing, line);
                    let all = w.packing.count_ones() as usize;
                    (std::cmp::Reverse(count), all - count.min(all), kitchen.cost(w), w.packing)
                };
                let best = keeps.min_by_key(key)?;
                let now = chosen.supply.iter().find(|(l, _)| *l == line).map_or(0, |(_, n)| *n);
                let more = number(book.count(best.packing, line)) > now;
                more.then(|| kitchen.carved(best, kitchen.cost(best)))
            })?
        }
    }
}
