//! Local search: a layout for every GPU such that as much as possible is served at the least cost.
//!
//! All GPUs start as they are. The best single move is made, for as many GPUs as it is the best, until none improves the score. Then
//! moves that are worse at first are tried, each followed by single moves that repair it; while pods would still be evicted, other
//! first moves are tried. A step costs `groups × candidates that help`, whatever the number of GPUs. [`Limits`] bound the number of
//! steps. Ties are broken by the order of the fleet, so that the same snapshot always has the same plan.

use std::cmp::Reverse;

use super::{
    candidates::{Candidate, Cost, difference},
    objective::{ProfileDemand, Shortfall, add_all, at},
    part::{Part, Picks, number},
};
use crate::fleet::{ProfileId, count};

/// With more groups than this only candidates with more of a scarce profile are weighed, as long as one is scarce.
const MANY: usize = 64;

/// How long the search continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Repairs tried between two improvements.
    pub tries: usize,
    /// Moves weighed in all repairs together.
    pub weighed: usize,
}

/// How good a layout of the fleet is: smaller is better, the first difference decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    short: Shortfall,
    cost: Cost,
}

/// A change of one GPU of a group, from one candidate to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Move {
    group: usize,
    from: usize,
    to: usize,
}

#[derive(Clone)]
struct Search<'a> {
    part: &'a Part<'a>,
    limits: Limits,
    picks: Vec<Picks>,
    /// Devices by slot.
    sums: Vec<i64>,
    /// By profile: devices held beyond guarantees.
    beyond: Vec<i64>,
    score: Score,
    /// Moves that may still be weighed.
    left: usize,
    shortfalls: Shortfalls,
}

/// By number of a difference in devices: the shortfall after it, in the round that computed it.
#[derive(Clone, Default)]
struct Shortfalls {
    round: u32,
    known: Vec<(u32, Shortfall)>,
}

/// The picks that the search ends with. `differences` is how many differences in devices have a number.
pub(super) fn search(part: &Part<'_>, limits: Limits, differences: usize) -> Vec<Picks> {
    let mut search = Search::new(part, limits, differences);
    let start = search.clone();
    search.improve(None);
    while search.repair() {}
    if search.may_improve() {
        search.start_otherwise(&start);
        while search.repair() {}
    }
    search.picks
}

impl<'a> Search<'a> {
    fn new(part: &'a Part<'a>, limits: Limits, differences: usize) -> Self {
        let picks: Vec<Picks> = part.groups.iter().map(|g| vec![(0, g.count)]).collect();
        let sums = part.totals(&picks).0;
        let mut score = Score { short: part.shortfall(&sums), cost: Cost::default() };
        for group in &part.groups {
            group.candidate(0).into_iter().for_each(|c| score.cost.add(&c.cost, number(group.count)));
        }
        let shortfalls = Shortfalls { round: 1, known: vec![(0, Shortfall::default()); differences] };
        let beyond = part.objective.beyond(&sums);
        Self { part, limits, picks, sums, beyond, score, left: limits.weighed, shortfalls }
    }

    /// Whether a device is missing or a pod evicted, so that a longer search may pay.
    fn may_improve(&self) -> bool {
        self.left > 0 && (self.score.short.lost != 0 || self.score.short.missing != 0 || self.score.cost.evict != 0)
    }

    /// The best single move at first need not be the best first move: tries others.
    fn start_otherwise(&mut self, start: &Self) {
        for step in start.starts() {
            if self.left == 0 {
                return;
            }
            let trial = self.tried(start, step);
            if trial.score < self.score {
                *self = trial;
            }
        }
    }

    /// One move that does not help by itself, followed by single moves; kept when the whole is better.
    fn repair(&mut self) -> bool {
        if !self.may_improve() {
            return false;
        }
        for step in self.starts() {
            if self.left == 0 {
                return false;
            }
            let before = self.clone();
            let trial = self.tried(&before, step);
            if trial.score < self.score {
                *self = trial;
                return true;
            }
        }
        false
    }

    fn tried(&mut self, from: &Self, step: Move) -> Self {
        let mut trial = from.clone();
        trial.left = self.left;
        trial.make(step, 1);
        trial.improve(Some(step));
        trial.improve(None);
        self.left = trial.left;
        trial
    }

    /// Makes the best single move until none improves the score. The GPU of a locked move stays.
    fn improve(&mut self, locked: Option<Move>) {
        while let Some(step) = self.best_move(locked) {
            let times = self.times(step, locked);
            self.make(step, times);
        }
    }

    /// The move that improves the score and evicts least; among those the one that serves most, at the least cost.
    fn best_move(&mut self, locked: Option<Move>) -> Option<Move> {
        let before = self.score;
        let nothing_to_win_back = before.short.lost == 0 && before.short.outage == 0;
        let mut best: Option<((i64, i64, i64, Score), Move)> = None;
        let mut weighed = 0;
        let mut shortfalls = std::mem::take(&mut self.shortfalls);
        self.each_move(locked, |step| {
            let Some(evict) = self.evicts(step) else { return };
            if let Some(((outage, lost, least, _), _)) = &best
                && nothing_to_win_back
                && (*outage, *lost) == (0, 0)
                && evict > *least
            {
                return;
            }
            weighed += 1;
            let Some(short) = self.short_after(step, &mut shortfalls).filter(|short| *short <= before.short) else {
                return;
            };
            let first = (short.outage, short.lost, evict);
            if best.as_ref().is_some_and(|((outage, lost, least, _), _)| first > (*outage, *lost, *least)) {
                return;
            }
            let after = Score { short, cost: self.cost_after(step) };
            let key = ((after.short.outage, after.short.lost, evict, after), step);
            if after < before && best.as_ref().is_none_or(|known| key < *known) {
                best = Some(key);
            }
        });
        self.shortfalls = shortfalls;
        self.left = self.left.saturating_sub(weighed);
        best.map(|(_, step)| step)
    }

    /// The shortfall after a move of one GPU. Moves from the present layout with equal differences have it in common.
    fn short_after(&self, step: Move, shortfalls: &mut Shortfalls) -> Option<Shortfall> {
        let numbers = &self.part.groups.get(step.group)?.candidates.differences;
        let slot = numbers.get(step.to).filter(|_| step.from == 0);
        let Some(slot) = slot.and_then(|slot| shortfalls.known.get_mut(*slot)) else {
            return Some(self.after(step).short);
        };
        if slot.0 != shortfalls.round {
            *slot = (shortfalls.round, self.after(step).short);
        }
        Some(slot.1)
    }

    fn cost_after(&self, step: Move) -> Cost {
        let mut cost = self.score.cost;
        if let Some((old, new)) = self.pair(step) {
            cost.add(&old.cost, -1);
            cost.add(&new.cost, 1);
        }
        cost
    }

    fn evicts(&self, step: Move) -> Option<i64> {
        let (old, new) = self.pair(step)?;
        Some(new.cost.evict - old.cost.evict)
    }

    /// For how many GPUs a move is as good as for the first: as long as all devices that it gives are missing, and all that it
    /// takes are left over.
    fn times(&self, step: Move, locked: Option<Move>) -> usize {
        let Some((old, new)) = self.pair(step) else { return 1 };
        let own = usize::from(locked.is_some_and(|l| l.group == step.group && l.to == step.from));
        let picks = self.picks.get(step.group).map(Vec::as_slice).unwrap_or_default();
        let there = picks.iter().find(|(c, _)| *c == step.from).map_or(0, |(_, n)| *n);
        let mut times = number(there.saturating_sub(own));
        for (slot, change) in difference(&old.supply, &new.supply) {
            let (profile, holder) = self.part.objective.slot(slot);
            let spare = at(&self.sums, profile) - at(&self.beyond, profile) - self.part.objective.total(profile);
            let fits = match change {
                _ if holder.is_some() => 1,
                // a rank that is served on the way makes the next GPU less useful, but not useless
                1.. if spare < 0 => -spare / change,
                1.. => continue,
                _ if spare > 0 => spare / -change,
                _ => 1,
            };
            times = times.min(fits);
        }
        usize::try_from(times.max(1)).unwrap_or(1)
    }

    /// Moves that give more of a scarce profile or evict less, whatever else they cost: those that evict least first.
    fn starts(&self) -> Vec<Move> {
        let mut starts = Vec::new();
        let scarce = self.scarce();
        self.each_move(None, |step| {
            let gained = self.gain(step, &scarce);
            let evict = self.evicts(step).unwrap_or(0);
            if gained > 0 || evict < 0 {
                starts.push((evict, Reverse(gained), step));
            }
        });
        starts.sort_unstable();
        starts.truncate(self.limits.tries * 4);
        let mut weighed: Vec<_> = starts.into_iter().map(|(e, g, step)| (e, g, self.after(step), step)).collect();
        weighed.sort_unstable();
        weighed.into_iter().take(self.limits.tries).map(|(.., step)| step).collect()
    }

    fn scarce(&self) -> Vec<ProfileId> {
        let mut scarce = self.part.objective.scarce(&self.sums);
        scarce.retain(|profile| self.part.is_inside(*profile));
        scarce
    }

    /// How much more of scarce profiles a move gives, in 840ths of a GPU.
    fn gain(&self, step: Move, scarce: &[ProfileId]) -> i64 {
        let Some((old, new)) = self.pair(step) else { return 0 };
        let weight = |profile: &ProfileId| self.part.objective.profiles.get(*profile).map_or(1, |p| p.weight);
        let more = |p: &ProfileId| (count(&new.supply, *p) - count(&old.supply, *p)) * weight(p);
        scarce.iter().map(more).sum()
    }

    /// Every move that can help: from the present layout only to what gives more of a scarce profile, or evicts less.
    fn each_move(&self, locked: Option<Move>, mut f: impl FnMut(Move)) {
        let scarce = self.scarce();
        let mut useful = Vec::new();
        for (index, (group, picks)) in self.part.groups.iter().zip(&self.picks).enumerate() {
            for (from, count) in picks {
                let own = locked.is_some_and(|l| l.group == index && l.to == *from);
                if *count <= usize::from(own) {
                    continue;
                }
                useful.clear();
                let costs = group.candidate(0).is_some_and(|c| c.cost.evict > 0 || c.cost.touch > 0);
                let only_scarce = *from == 0 && !costs || !scarce.is_empty() && self.part.groups.len() > MANY;
                if only_scarce && self.score.short.outage == 0 {
                    useful.extend(scarce.iter().filter_map(|p| group.candidates.giving.get(*p)).flatten());
                    useful.push(0);
                    useful.sort_unstable();
                    useful.dedup();
                } else {
                    useful.extend(0..group.candidates.list.len());
                }
                for to in useful.iter().filter(|to| *to != from) {
                    f(Move { group: index, from: *from, to: *to });
                }
            }
        }
    }

    fn pair(&self, step: Move) -> Option<(&'a Candidate, &'a Candidate)> {
        let group = self.part.groups.get(step.group)?;
        Some((group.candidate(step.from)?, group.candidate(step.to)?))
    }

    /// The score after a move of one GPU.
    fn after(&self, step: Move) -> Score {
        let Some((old, new)) = self.pair(step) else { return self.score };
        let mut score = Score { short: self.score.short, cost: self.cost_after(step) };
        // by profile: more devices, and more of them beyond a guarantee
        let mut changes: Vec<(ProfileId, i64, i64)> = Vec::new();
        for (slot, more) in difference(&old.supply, &new.supply) {
            let (profile, guaranteed) = self.part.objective.slot(slot);
            let now = at(&self.sums, slot);
            let (devices, beyond) = match guaranteed {
                Some(g) => (0, (now + more - g).max(0) - (now - g).max(0)),
                None => (more, 0),
            };
            match changes.iter_mut().find(|(p, ..)| *p == profile) {
                Some((_, d, b)) => (*d, *b) = (*d + devices, *b + beyond),
                None => changes.push((profile, devices, beyond)),
            }
        }
        for (profile, more, less) in changes.into_iter().filter(|(profile, ..)| self.part.is_inside(*profile)) {
            let Some(demand) = self.part.objective.profiles.get(profile) else { continue };
            let (devices, beyond) = (at(&self.sums, profile), at(&self.beyond, profile));
            let short = |demand: &ProfileDemand, devices: i64, beyond: i64| demand.shortfall(devices - beyond, devices);
            score.short.add(&short(demand, devices, beyond), -1);
            score.short.add(&short(demand, devices + more, beyond + less), 1);
        }
        score
    }

    fn make(&mut self, step: Move, times: usize) {
        let Some((old, new)) = self.pair(step) else { return };
        self.shortfalls.round += 1;
        for (candidate, n) in [(old, -number(times)), (new, number(times))] {
            add_all(&mut self.sums, &candidate.supply, n);
            self.score.cost.add(&candidate.cost, n);
        }
        self.beyond = self.part.objective.beyond(&self.sums);
        self.score.short = self.part.shortfall(&self.sums);
        let Some(picks) = self.picks.get_mut(step.group) else { return };
        let mut counts: std::collections::BTreeMap<usize, usize> = picks.iter().copied().collect();
        counts.entry(step.from).and_modify(|n| *n = n.saturating_sub(times));
        *counts.entry(step.to).or_default() += times;
        *picks = counts.into_iter().filter(|(_, n)| *n > 0).collect();
    }
}
