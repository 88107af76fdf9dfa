//! Fewer evictions than the local search found, with as much served.
//!
//! A price for each profile states what a device of it costs in evictions elsewhere. With the best prices the sum of every GPU's
//! cheapest layout is a lower bound of what any layout of the fleet evicts (the Lagrangian bound). So ways through the fleet that
//! cannot evict less than the known layout are pruned early, and a part that is too large for [`super::exact`] can be searched. Where
//! even that is too much, only the most promising states are extended ([`STEPS`]).

use super::{
    candidates::{Candidate, Cost},
    objective::{Shortfall, at},
    part::{Part, Picks, number},
    walk::{Counters, Layer, Pruning, State, Walk, Way, missing},
};
use crate::fleet::ProfileId;

/// Most steps from one state to the next in one walk.
const STEPS: usize = 4_000_000;
/// Iterations of the subgradient method.
const ROUNDS: usize = 1_000;
/// Iterations without a better bound before steps are halved.
const STALE: usize = 20;

/// A layout of the fleet that serves no less than the known one and evicts fewer; `None`: none was found.
pub(super) fn fewer_evictions(part: &Part<'_>, known: &[Picks]) -> Option<Vec<Picks>> {
    let (sums, evicted) = part.totals(known);
    if evicted <= 0 {
        return None;
    }
    let short = part.shortfall(&sums);
    let usable = part.objective.usable(&sums).into_iter().enumerate();
    let need = |(profile, usable): (ProfileId, i64)| {
        if part.is_inside(profile) { usable.clamp(0, part.objective.total(profile)) } else { 0 }
    };
    let need: Vec<i64> = usable.map(need).collect();
    let counters = Counters::of(part, |profile| at(&need, profile))?;
    let choices: Vec<Vec<usize>> = part.groups.iter().map(|g| g.candidates.cheapest(part.profiles())).collect();
    let pricing = Pricing { part, choices: &choices, need: &need };
    let mut bound = pricing.bound(&counters, evicted)?;
    let lowest = bound.lowest;
    // little above the bound there are few states, so that none is pruned; further up the most promising ones may not be the best
    for fraction in [32, 16, 11, 8, 6, 5, 4, 3, 2, 1] {
        bound.evicted = (lowest + (evicted - lowest) / fraction).max(lowest + 1);
        let within = pricing.within(&bound);
        let width: usize = part.groups.iter().zip(&within).map(|(g, within)| g.count * within.len()).sum();
        bound.width = STEPS / 4 / width.max(1);
        let walk = Walk::of(part, &within, &counters, &mut bound)?;
        let key = |(state, (cost, ..)): &(&State, &Way)| -> (Shortfall, Cost, State) {
            (part.shortfall(&counters.sums(**state)), *cost, **state)
        };
        if let Some((_, end)) = walk.reached.iter().filter(|end| key(end).0 <= short).min_by_key(key) {
            return walk.picks(part, *end);
        }
    }
    None
}

/// What is needed, and the candidates that could give it.
struct Pricing<'a> {
    part: &'a Part<'a>,
    choices: &'a [Vec<usize>],
    need: &'a [i64],
}

impl<'a> Pricing<'a> {
    fn candidates(&self, group: usize) -> impl Iterator<Item = (usize, &'a Candidate)> {
        let choices = self.part.groups.get(group).zip(self.choices.get(group));
        choices.into_iter().flat_map(|(g, choices)| choices.iter().filter_map(|c| Some((*c, g.candidate(*c)?))))
    }

    /// The cheapest candidate of a group at these prices.
    fn cheapest(&self, group: usize, prices: &[i64]) -> Option<(i64, &'a Candidate)> {
        self.candidates(group).map(|(_, c)| (price(c, prices), c)).min_by_key(|(price, _)| *price)
    }

    /// The lower bound at these prices, and by profile what is missing then.
    fn evaluate(&self, prices: &[i64]) -> (i64, Vec<i64>) {
        let mut missing = missing(self.need, &self.part.others);
        let mut least: i64 = missing.iter().zip(prices).map(|(n, price)| n.max(&0) * price).sum();
        for (index, group) in self.part.groups.iter().enumerate() {
            let Some((price, candidate)) = self.cheapest(index, prices) else { continue };
            least += number(group.count) * price;
            for (slot, n) in &candidate.supply {
                if let Some(missing) = missing.get_mut(*slot) {
                    *missing -= number(group.count) * n;
                }
            }
        }
        (least, missing)
    }

    /// By group: candidates with which the fleet may still evict less than the bound's limit.
    fn within(&self, bound: &Bound<'_>) -> Vec<Vec<usize>> {
        let slack = bound.evicted - bound.lowest;
        let of_group = |group: usize| {
            let least = self.cheapest(group, &bound.prices).map_or(0, |(price, _)| price);
            let within = self.candidates(group).filter(|(_, c)| price(c, &bound.prices) - least < slack);
            within.map(|(index, _)| index).collect()
        };
        (0..self.part.groups.len()).map(of_group).collect()
    }

    /// The best bound: prices rise where devices are missing and fall where there are too many (the subgradient method, with
    /// Polyak's steps). `None`: the known layout is optimal.
    fn bound<'b>(&self, counters: &'b Counters, evicted: i64) -> Option<Bound<'b>> {
        let mut prices = vec![0_i64; self.need.len()];
        let mut best = (i64::MIN, prices.clone());
        let (mut halved, mut since) = (0_u32, 0);
        for _ in 0..ROUNDS {
            let (least, mut missing) = self.evaluate(&prices);
            // prices do not fall below zero
            for (missing, _) in missing.iter_mut().zip(&prices).filter(|(_, price)| **price == 0) {
                *missing = (*missing).max(0);
            }
            if least > best.0 {
                (best, since) = ((least, prices.clone()), 0);
            } else {
                since += 1;
            }
            if since >= STALE {
                (halved, since) = (halved + 1, 0);
            }
            // devices of different size are made comparable by their share of a GPU
            let weights = self.part.objective.profiles.iter().map(|p| i128::from(p.weight.max(1)));
            let shares = || missing.iter().zip(weights.clone());
            let norm: i128 = shares().map(|(m, weight)| (i128::from(*m) * weight).pow(2)).sum();
            if least >= evicted {
                return None;
            }
            let whole = 2 * i128::from(evicted - least);
            let mut moved = false;
            for (price, (missing, weight)) in prices.iter_mut().zip(shares()) {
                let step = whole * i128::from(*missing) * weight * weight;
                let step = step.checked_div(norm << halved.min(60)).unwrap_or(0);
                let after = price.saturating_add(i64::try_from(step).unwrap_or(0)).max(0);
                moved |= after != *price;
                *price = after;
            }
            if !moved {
                break;
            }
        }
        let (lowest, prices) = best;
        let mut rest = vec![0];
        for (index, group) in self.part.groups.iter().enumerate() {
            let price = self.cheapest(index, &prices).map_or(0, |(price, _)| price);
            for _ in 0..group.count {
                rest.push(rest.last().copied().unwrap_or(0) + price);
            }
        }
        let counted = prices.iter().enumerate().filter(|(profile, price)| **price > 0 && counters.counts(*profile));
        let counted = counted.map(|(profile, price)| (profile, *price, at(self.need, profile))).collect();
        Some(Bound { counters, prices, counted, rest, lowest, evicted, width: 0, steps: 0 })
    }
}

/// Weight of the pods that a candidate evicts, less the price of its devices.
fn price(candidate: &Candidate, prices: &[i64]) -> i64 {
    candidate.cost.evict - candidate.supply.iter().map(|(slot, n)| n * at(prices, *slot)).sum::<i64>()
}

/// Prunes states that cannot lead to fewer evictions.
struct Bound<'a> {
    counters: &'a Counters,
    /// By profile.
    prices: Vec<i64>,
    /// Profile, price and need, of those that states count.
    counted: Vec<(ProfileId, i64, i64)>,
    /// By number of GPUs to come: the sum of their cheapest prices.
    rest: Vec<i64>,
    /// The lower bound of all layouts.
    lowest: i64,
    /// The limit: evictions must stay below.
    evicted: i64,
    /// Most states that are extended, after each GPU.
    width: usize,
    steps: usize,
}

impl Bound<'_> {
    /// The lower bound of all layouts by way of this state.
    fn least(&self, left: usize, state: State, cost: &Cost) -> i64 {
        let lacks =
            |(slot, price, need): &(ProfileId, i64, i64)| (need - self.counters.number(state, *slot)).max(0) * price;
        cost.evict + at(&self.rest, left) + self.counted.iter().map(lacks).sum::<i64>()
    }
}

impl Pruning for Bound<'_> {
    fn affords(&mut self, states: usize, candidates: usize) -> bool {
        self.steps += states * candidates;
        self.steps <= STEPS
    }

    fn admits(&self, left: usize, state: State, cost: &Cost) -> bool {
        self.least(left, state, cost) < self.evicted
    }

    fn thin(&self, left: usize, layer: &mut Layer) {
        if layer.len() > self.width {
            let mut all: Vec<(i64, State)> = layer.iter().map(|(s, (c, ..))| (self.least(left, *s, c), *s)).collect();
            all.sort_unstable();
            for (_, state) in all.iter().skip(self.width) {
                layer.remove(state);
            }
        }
    }
}
