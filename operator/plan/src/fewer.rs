//! Fewer evictions for what a search has found: as much of everything, for less.
//!
//! A price for each profile tells what a device of it costs in evictions elsewhere; with the best prices the sum of every GPU's
//! cheapest layout is less than any layout of the fleet evicts (Lagrange's bound). So the ways through the fleet that cannot evict
//! less than what was found are known early, and what is left can be gone through although the fleet is too large for
//! [`super::exact`]. Where even that is too much only the most promising ways are followed ([`STEPS`]).

use super::{
    lines::Line,
    menu::{Candidate, Cost, give},
    search::{Group, Picks},
    terms::{Shortfall, Terms, of},
    ways::{Counters, Guide, Layer, State, Way, walk},
};

/// Most steps from one state to the next, on all ways together.
const STEPS: usize = 4_000_000;
/// So often prices are bettered.
const ROUNDS: usize = 1_000;
/// After so many rounds without a better bound steps are halved.
const STALE: usize = 20;

/// The layouts of a fleet with which nothing more is lacking and fewer evicted than with those found; `None`: none is known.
pub(super) fn fewer(
    terms: &Terms,
    groups: &[Group],
    inside: &[bool],
    others: &[i64],
    found: &[Picks],
) -> Option<Vec<Picks>> {
    let counts = |line: Line| inside.get(line).copied().unwrap_or(false);
    let (sums, evicted) = totals(groups, others, found);
    if evicted <= 0 {
        return None;
    }
    let short = terms.shortfall(&sums, counts);
    let beyond = terms.beyond(&sums);
    let need = |(line, t): (Line, &super::terms::LineTerms)| {
        let usable = of(&sums, line) - of(&beyond, line);
        if counts(line) { usable.clamp(0, t.total()) } else { 0 }
    };
    let need: Vec<i64> = terms.lines.iter().enumerate().map(need).collect();
    let counters = Counters::of(terms, inside, |line| of(&need, line))?;
    let worthy: Vec<Vec<usize>> = groups.iter().map(|g| g.menu.leading(terms.lines.len())).collect();
    let market = Market { terms, groups, worthy: &worthy, need: &need, others };
    let mut bound = market.bound(&counters, evicted)?;
    let lowest = bound.lowest;
    // little above the bound there are few ways, so that none is left out; further up the most promising ones may not be the best
    for part in [32, 16, 11, 8, 6, 5, 4, 3, 2, 1] {
        bound.evicted = (lowest + (evicted - lowest) / part).max(lowest + 1);
        let within = market.within(&bound);
        let wide: usize = groups.iter().zip(&within).map(|(g, within)| g.count * within.len()).sum();
        bound.width = STEPS / 4 / wide.max(1);
        let ways = walk(groups, &within, &counters, others, &mut bound)?;
        let key = |(state, (sum, ..)): &(&State, &Way)| -> (Shortfall, Cost, State) {
            (terms.shortfall(&counters.sums(**state), counts), *sum, **state)
        };
        if let Some((_, end)) = ways.reached.iter().filter(|end| key(end).0 <= short).min_by_key(key) {
            return ways.back(groups, *end);
        }
    }
    None
}

/// What the fleet gives with these layouts, and what they evict.
fn totals(groups: &[Group], others: &[i64], found: &[Picks]) -> (Vec<i64>, i64) {
    let (mut sums, mut evicted) = (others.to_vec(), 0);
    for (group, picks) in groups.iter().zip(found) {
        for (candidate, count) in picks.iter().filter_map(|(c, n)| Some((group.menu.candidates.get(*c)?, *n))) {
            let times = super::decide::number(count);
            give(&mut sums, &candidate.supply, times);
            evicted += times * candidate.cost.evict;
        }
    }
    (sums, evicted)
}

/// What is needed, and who could give it.
struct Market<'a> {
    terms: &'a Terms,
    groups: &'a [Group],
    worthy: &'a [Vec<usize>],
    need: &'a [i64],
    others: &'a [i64],
}

impl<'a> Market<'a> {
    /// The cheapest candidate of a group: what it evicts less what its devices are worth.
    fn cheapest(&self, group: usize, prices: &[i64]) -> Option<(i64, &'a Candidate)> {
        let candidates = &self.groups.get(group)?.menu.candidates;
        let worthy = self.worthy.get(group)?.iter().filter_map(|c| candidates.get(*c));
        worthy.map(|c| (price(c, prices), c)).min_by_key(|(cost, _)| *cost)
    }

    /// What at least is evicted, at these prices; and of which profile so much is missing then.
    fn at(&self, prices: &[i64]) -> (i64, Vec<i64>) {
        let mut missing: Vec<i64> = self.need.iter().enumerate().map(|(line, n)| n - of(self.others, line)).collect();
        let mut least: i64 = missing.iter().zip(prices).map(|(n, price)| n.max(&0) * price).sum();
        for (group, of_kind) in self.groups.iter().enumerate() {
            let Some((cost, candidate)) = self.cheapest(group, prices) else { continue };
            let times = super::decide::number(of_kind.count);
            least += times * cost;
            for (place, n) in &candidate.supply {
                if let Some(missing) = missing.get_mut(*place) {
                    *missing -= times * n;
                }
            }
        }
        (least, missing)
    }

    /// By group: candidates with which the fleet may still come to less than what the bound says.
    fn within(&self, bound: &Bound<'_>) -> Vec<Vec<usize>> {
        let slack = bound.evicted - bound.lowest;
        let of_group = |group: usize| {
            let least = self.cheapest(group, &bound.all).map_or(0, |(cost, _)| cost);
            let candidates = self.groups.get(group).map(|g| g.menu.candidates.as_slice()).unwrap_or_default();
            let worthy = self.worthy.get(group).map(Vec::as_slice).unwrap_or_default();
            let dear = |c: &usize| candidates.get(*c).is_none_or(|c| price(c, &bound.all) - least >= slack);
            worthy.iter().copied().filter(|c| !dear(c)).collect()
        };
        (0..self.groups.len()).map(of_group).collect()
    }

    /// Prices that prove as much as possible of what was found to be necessary: raised where something is missing, lowered where
    /// there is too much (the subgradient method, with Polyak's steps). `None`: all of it is necessary.
    fn bound<'b>(&self, counters: &'b Counters, evicted: i64) -> Option<Bound<'b>> {
        let mut prices = vec![0_i64; self.need.len()];
        let mut best = (i64::MIN, prices.clone());
        let (mut halved, mut since) = (0_u32, 0);
        for _ in 0..ROUNDS {
            let (least, mut missing) = self.at(&prices);
            // what costs nothing already does not get any cheaper
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
            let shares = || missing.iter().zip(self.terms.lines.iter().map(|l| i128::from(l.weight.max(1))));
            let norm: i128 = shares().map(|(m, weight)| (i128::from(*m) * weight).pow(2)).sum();
            if least >= evicted {
                return None;
            }
            let whole = 2 * i128::from(evicted - least);
            let mut moved = false;
            for (price, (missing, weight)) in prices.iter_mut().zip(shares()) {
                let step =
                    (whole * i128::from(*missing) * weight * weight).checked_div(norm << halved.min(60)).unwrap_or(0);
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
        for (group, of_kind) in self.groups.iter().enumerate() {
            let cost = self.cheapest(group, &prices).map_or(0, |(cost, _)| cost);
            for _ in 0..of_kind.count {
                rest.push(rest.last().copied().unwrap_or(0) + cost);
            }
        }
        let all = prices.clone();
        let prices = prices.into_iter().enumerate().filter(|(line, price)| *price > 0 && counters.counts(*line));
        let prices = prices.map(|(line, price)| (line, price, of(self.need, line))).collect();
        Some(Bound { counters, all, prices, rest, lowest, evicted, width: 0, steps: 0 })
    }
}

/// What a candidate evicts, less what its devices are worth.
fn price(candidate: &Candidate, prices: &[i64]) -> i64 {
    candidate.cost.evict - candidate.supply.iter().map(|(place, n)| n * of(prices, *place)).sum::<i64>()
}

/// Leaves out what cannot evict less than this.
struct Bound<'a> {
    counters: &'a Counters,
    /// Prices by profile.
    all: Vec<i64>,
    /// Profile, price of a device, and how many are needed.
    prices: Vec<(Line, i64, i64)>,
    /// By number of GPUs to come: what they evict at least, less what their devices are worth.
    rest: Vec<i64>,
    /// What any layout of the fleet evicts at least.
    lowest: i64,
    /// What it must not come to.
    evicted: i64,
    /// Most states that are gone on from, after each GPU.
    width: usize,
    steps: usize,
}

impl Bound<'_> {
    /// What at least is evicted in the end.
    fn least(&self, left: usize, state: State, cost: &Cost) -> i64 {
        let lacks = |(line, price, need): &(Line, i64, i64)| (need - self.counters.number(state, *line)).max(0) * price;
        cost.evict + of(&self.rest, left) + self.prices.iter().map(lacks).sum::<i64>()
    }
}

impl Guide for Bound<'_> {
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
