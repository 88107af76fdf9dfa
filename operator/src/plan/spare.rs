//! After the guarantees: what a pool does with GPUs and slices that nobody needs.

use super::{
    demand::{Demand, add},
    fleet::Place,
    menu::Candidate,
    model::{Mode, Spare},
};

/// Another layout for a GPU, where its pool's policy asks for one. `supply` is the fleet's and is kept up to date.
pub(super) fn spare(place: &Place<'_>, chosen: &Candidate, demand: &Demand, supply: &mut [i64]) -> Option<Candidate> {
    if !place.free() || place.pool.mode != Mode::Demand {
        return None;
    }
    let next = match &place.pool.spare {
        Spare::Keep => None,
        Spare::Whole => merge(place, chosen, demand, supply),
        Spare::Fill(profile) => fill(place, chosen, demand, supply, demand.line(profile)?),
    }?;
    for (candidate, sign) in [(chosen, -1), (&next, 1)] {
        candidate.supply.iter().for_each(|(line, n)| add(supply, *line, sign * n));
    }
    Some(next)
}

/// Nothing runs on the GPU, and every guarantee is met without it.
fn idle(place: &Place<'_>, chosen: &Candidate, demand: &Demand, supply: &[i64]) -> bool {
    let met =
        |(line, n): &(usize, i64)| demand.wanted.get(*line).is_some_and(|w| demand.supply(supply, *line) - n >= *w);
    place.gpu.used.is_empty() && chosen.supply.iter().all(met)
}

fn is_mig(candidate: &Candidate) -> bool {
    candidate.layout.as_ref().is_some_and(|l| l.mig)
}

/// One whole device again, where the pool offers whole devices.
fn merge(place: &Place<'_>, chosen: &Candidate, demand: &Demand, supply: &[i64]) -> Option<Candidate> {
    if !is_mig(chosen) || !idle(place, chosen, demand, supply) {
        return None;
    }
    place.kitchen(demand).all().into_iter().find(|c| c.layout.is_some() && !is_mig(c))
}

/// As many devices of the profile as fit beside what is there.
fn fill(place: &Place<'_>, chosen: &Candidate, demand: &Demand, supply: &[i64], line: usize) -> Option<Candidate> {
    if !is_mig(chosen) && !idle(place, chosen, demand, supply) {
        return None;
    }
    let layout = chosen.layout.as_ref().filter(|l| l.mig);
    let present = layout.map(|l| l.instances.clone()).unwrap_or_default();
    let count = |c: &Candidate| c.supply.iter().find(|(l, _)| *l == line).map_or(0, |(_, n)| *n);
    let others = |c: &Candidate| c.supply.iter().filter(|(l, _)| *l != line).map(|(_, n)| *n).sum::<i64>();
    let keeps = |c: &Candidate| {
        let layout = c.layout.as_ref().filter(|l| l.mig);
        layout.is_some_and(|l| present.iter().all(|i| l.instances.contains(i)))
    };
    let all = place.kitchen(demand).all().into_iter().filter(keeps);
    let best =
        all.min_by(|a, b| (-count(a), others(a), a.cost, &a.layout).cmp(&(-count(b), others(b), b.cost, &b.layout)))?;
    (count(&best) > count(chosen)).then_some(best)
}
