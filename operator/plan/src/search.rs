//! The search: a layout for every GPU such that as much as possible is guaranteed at the least cost.
//!
//! All GPUs start as they are. The best single change is made, for as many GPUs as it is the best, until none improves the
//! score; then changes that are worse at first are tried, each followed by the single changes that repair it (empty one GPU, give
//! its devices a place elsewhere); where pods would still be evicted, other first changes are tried. GPUs that are alike are one
//! group, so that a step costs `groups × layouts that help`, whatever the number of GPUs. The number of steps is limited
//! ([`Limits`]). Ties are broken by the order of the fleet, so that the same snapshot always gives the same answer.

use std::{cmp::Reverse, sync::Arc};

use smallvec::SmallVec;

use super::{
    lines::Line,
    menu::{Candidate, Cost, Menu},
    terms::{Shortfall, Terms, add, of},
};

/// GPUs that are alike.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub menu: Arc<Menu>,
    pub count: usize,
}

/// With more groups than this only what serves something missing is weighed, as long as something is.
const MANY: usize = 64;

/// Candidates and for how many GPUs each, by candidate.
pub(super) type Picks = Vec<(usize, usize)>;

/// How long the search looks for something better.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Repairs tried between two improvements.
    pub tries: usize,
    /// Changes weighed in all repairs together.
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
pub(super) struct Search<'a> {
    terms: &'a Terms,
    groups: &'a [Group],
    inside: &'a [bool],
    pub picks: Vec<Picks>,
    supply: Vec<i64>,
    /// By profile: devices held beyond guarantees.
    beyond: Vec<i64>,
    score: Score,
    left: usize,
    known: Known,
}

/// By number of a difference in what is given: what is lacking after it, while nothing else changes.
#[derive(Clone, Default)]
struct Known {
    round: u32,
    after: Vec<(u32, Shortfall)>,
}

impl<'a> Search<'a> {
    /// All GPUs as they are; `others` is what those give that are not to be chosen for; `deltas` is how many differences the menus
    /// number.
    pub fn new(
        terms: &'a Terms,
        groups: &'a [Group],
        inside: &'a [bool],
        others: &[i64],
        (limits, deltas): (Limits, usize),
    ) -> Self {
        let mut supply = others.to_vec();
        let mut score = Score::default();
        for group in groups {
            let times = i64::try_from(group.count).unwrap_or(i64::MAX);
            if let Some(present) = group.menu.candidates.first() {
                present.supply.iter().for_each(|(place, n)| add(&mut supply, *place, times * n));
                score.cost.add(&present.cost, times);
            }
        }
        score.short = terms.shortfall(&supply, |line| inside.get(line).copied().unwrap_or(false));
        let beyond = terms.beyond(&supply);
        let picks = groups.iter().map(|g| vec![(0, g.count)]).collect();
        let known = Known { round: 1, after: vec![(0, Shortfall::default()); deltas + 1] };
        Self { terms, groups, inside, picks, supply, beyond, score, left: limits.weighed, known }
    }

    pub fn run(&mut self, limits: Limits) {
        let start = self.clone();
        self.improve(None);
        while self.repair(limits) {}
        if self.costly() {
            self.begin_otherwise(&start, limits);
            while self.repair(limits) {}
        }
    }

    /// Something is missing, or somebody is evicted: worth a longer look.
    fn costly(&self) -> bool {
        self.left > 0 && (self.score.short.lost != 0 || self.score.short.missing != 0 || self.score.cost.evict != 0)
    }

    /// The best single change at first need not be the best first change: tries others.
    fn begin_otherwise(&mut self, start: &Self, limits: Limits) {
        for step in start.starts(limits) {
            if self.left == 0 {
                return;
            }
            let trial = self.tried(start, step);
            if trial.score < self.score {
                *self = trial;
            }
        }
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

    /// Makes the best single change until none improves the score. What was just given stays.
    fn improve(&mut self, locked: Option<Move>) {
        while let Some(step) = self.best_move(locked) {
            let times = self.times(step, locked);
            self.make(step, times);
        }
    }

    /// The change that improves the score and evicts least; among those the one that serves most, at the least cost.
    fn best_move(&mut self, locked: Option<Move>) -> Option<Move> {
        let before = self.score;
        let nothing_to_win_back = before.short.lost == 0 && before.short.outage == 0;
        let mut best: Option<((i64, i64, i64, Score), Move)> = None;
        let mut weighed = 0;
        let mut known = std::mem::take(&mut self.known);
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
            let Some(short) = self.short_after(step, &mut known).filter(|short| **short <= before.short) else {
                return;
            };
            let first = (short.outage, short.lost, evict);
            if best.as_ref().is_some_and(|((outage, lost, least, _), _)| first > (*outage, *lost, *least)) {
                return;
            }
            let after = Score { short: *short, cost: self.cost_after(step) };
            if after < before {
                let key = ((after.short.outage, after.short.lost, evict, after), step);
                if best.as_ref().is_none_or(|known| key < *known) {
                    best = Some(key);
                }
            }
        });
        self.known = known;
        self.left = self.left.saturating_sub(weighed);
        best.map(|(_, step)| step)
    }

    /// What is lacking after a change of one GPU; changes of GPUs as they are that give alike are looked at once.
    fn short_after<'k>(&self, step: Move, known: &'k mut Known) -> Option<&'k Shortfall> {
        let deltas = &self.groups.get(step.group)?.menu.deltas;
        let delta = deltas.get(step.to).filter(|_| step.from == 0).map_or(0, |delta| *delta as usize + 1);
        let slot = known.after.get_mut(delta)?;
        // the first slot is for all that have no number
        if delta == 0 || slot.0 != known.round {
            *slot = (known.round, self.after(step).short);
        }
        Some(&slot.1)
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

    /// For how many GPUs a change is as good as for the first: as long as all that it gives is missing, and all that it takes
    /// is left over.
    fn times(&self, step: Move, locked: Option<Move>) -> usize {
        let Some((old, new)) = self.pair(step) else { return 1 };
        let own = usize::from(locked.is_some_and(|l| l.group == step.group && l.to == step.from));
        let there = self.count(step).saturating_sub(own);
        let mut times = i64::try_from(there).unwrap_or(i64::MAX);
        let number = |c: &Candidate, place: usize| c.supply.iter().find(|(p, _)| *p == place).map_or(0, |(_, n)| *n);
        for (place, _) in old.supply.iter().chain(&new.supply) {
            let (line, holder) = self.terms.place(*place);
            let change = number(new, *place) - number(old, *place);
            let terms = self.terms.lines.get(line);
            let more =
                of(&self.supply, line) - of(&self.beyond, line) - terms.map_or(0, super::terms::LineTerms::total);
            let fits = match change {
                0 => continue,
                _ if holder.is_some() => 1,
                // A rank that ends on the way ends the likeness too, but not the use.
                1.. if more < 0 => -more / change,
                1.. => continue,
                _ if more > 0 => more / -change,
                _ => 1,
            };
            times = times.min(fits);
        }
        usize::try_from(times.max(1)).unwrap_or(1)
    }

    fn count(&self, step: Move) -> usize {
        let picks = self.picks.get(step.group);
        picks.and_then(|p| p.iter().find(|(c, _)| *c == step.from)).map_or(0, |(_, n)| *n)
    }

    /// One change that does not help by itself, followed by single changes; kept when the whole is better.
    fn repair(&mut self, limits: Limits) -> bool {
        if !self.costly() {
            return false;
        }
        for step in self.starts(limits) {
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

    /// Changes that give more of what is missing, or evict less, whatever they spoil: those that evict least first.
    fn starts(&self, limits: Limits) -> Vec<Move> {
        let mut starts = Vec::new();
        let short = self.short();
        self.each_move(None, |step| {
            let gained = self.gain(step, &short);
            let evict = self.evicts(step).unwrap_or(0);
            if gained > 0 || evict < 0 {
                starts.push((evict, Reverse(gained), step));
            }
        });
        starts.sort_unstable();
        starts.truncate(limits.tries * 4);
        let mut weighed: Vec<_> = starts.into_iter().map(|(e, g, step)| (e, g, self.after(step), step)).collect();
        weighed.sort_unstable();
        weighed.into_iter().take(limits.tries).map(|(.., step)| step).collect()
    }

    /// Profiles of which something is missing.
    fn short(&self) -> Vec<Line> {
        let lines = self.terms.lines.iter().enumerate().filter(|(l, _)| self.inside.get(*l) == Some(&true));
        let lacks = |line: Line, total: i64| of(&self.supply, line) - of(&self.beyond, line) < total;
        lines.filter(|(line, terms)| lacks(*line, terms.total())).map(|(line, _)| line).collect()
    }

    /// How much more of what is missing a change gives, in 840ths of a GPU.
    fn gain(&self, step: Move, short: &[Line]) -> i64 {
        let Some((old, new)) = self.pair(step) else { return 0 };
        let sum = |c: &Candidate| -> i64 {
            let lines = c.supply.iter().filter(|(line, _)| short.contains(line));
            lines.map(|(line, n)| n * self.terms.lines.get(*line).map_or(1, |l| l.weight)).sum()
        };
        sum(new) - sum(old)
    }

    /// Every change that can help: to GPUs as they are only what gives more of something missing, or evicts less.
    fn each_move(&self, locked: Option<Move>, mut f: impl FnMut(Move)) {
        let short = self.short();
        let mut useful = Vec::new();
        for (group, (of, picks)) in self.groups.iter().zip(&self.picks).enumerate() {
            for (from, count) in picks {
                let own = locked.is_some_and(|l| l.group == group && l.to == *from);
                if *count <= usize::from(own) {
                    continue;
                }
                useful.clear();
                let costs = of.menu.candidates.first().is_some_and(|c| c.cost.evict > 0 || c.cost.touch > 0);
                if (*from == 0 && !costs || !short.is_empty() && self.groups.len() > MANY)
                    && self.score.short.outage == 0
                {
                    useful.extend(short.iter().filter_map(|l| of.menu.giving.get(*l)).flatten().copied());
                    useful.push(0);
                    useful.retain(|to| to != from);
                    useful.sort_unstable();
                    useful.dedup();
                } else {
                    useful.extend((0..of.menu.candidates.len()).filter(|c| c != from));
                }
                for to in &useful {
                    f(Move { group, from: *from, to: *to });
                }
            }
        }
    }

    fn pair(&self, step: Move) -> Option<(&'a Candidate, &'a Candidate)> {
        let candidates = &self.groups.get(step.group)?.menu.candidates;
        Some((candidates.get(step.from)?, candidates.get(step.to)?))
    }

    /// The score after a change of one GPU.
    fn after(&self, step: Move) -> Score {
        let mut score = self.score;
        let Some((old, new)) = self.pair(step) else { return score };
        score.cost.add(&old.cost, -1);
        score.cost.add(&new.cost, 1);
        let mut changes: SmallVec<[(usize, i64); 12]> = SmallVec::new();
        let both = old.supply.iter().map(|(p, n)| (*p, -n)).chain(new.supply.iter().copied());
        for (place, more) in both {
            match changes.iter_mut().find(|(p, _)| *p == place) {
                Some((_, sum)) => *sum += more,
                None => changes.push((place, more)),
            }
        }
        // By profile: more devices, and more of them beyond a guarantee.
        let mut lines: SmallVec<[(Line, i64, i64); 12]> = SmallVec::new();
        for (place, more) in changes.iter().filter(|(_, more)| *more != 0) {
            let (line, guaranteed) = self.terms.place(*place);
            let now = of(&self.supply, *place);
            let (devices, beyond) = match guaranteed {
                Some(g) => (0, (now + more - g).max(0) - (now - g).max(0)),
                None if *place == line => (*more, 0),
                None => (0, 0),
            };
            match lines.iter_mut().find(|(l, ..)| *l == line) {
                Some((_, d, b)) => (*d, *b) = (*d + devices, *b + beyond),
                None => lines.push((line, devices, beyond)),
            }
        }
        for (line, more, less) in lines.iter().filter(|(line, ..)| self.inside.get(*line) == Some(&true)) {
            let Some(terms) = self.terms.lines.get(*line) else { continue };
            let (devices, held) = (of(&self.supply, *line), of(&self.beyond, *line));
            score.short.add(&terms.shortfall(devices - held, devices), -1);
            score.short.add(&terms.shortfall(devices + more - held - less, devices + more), 1);
        }
        score
    }

    fn make(&mut self, step: Move, times: usize) {
        let Some((old, new)) = self.pair(step) else { return };
        self.known.round += 1;
        let n = i64::try_from(times).unwrap_or(i64::MAX);
        old.supply.iter().for_each(|(place, more)| add(&mut self.supply, *place, -n * more));
        new.supply.iter().for_each(|(place, more)| add(&mut self.supply, *place, n * more));
        self.score.cost.add(&old.cost, -n);
        self.score.cost.add(&new.cost, n);
        self.beyond = self.terms.beyond(&self.supply);
        let inside = self.inside;
        self.score.short = self.terms.shortfall(&self.supply, |line| inside.get(line).copied().unwrap_or(false));
        let Some(picks) = self.picks.get_mut(step.group) else { return };
        if let Some((_, count)) = picks.iter_mut().find(|(c, _)| *c == step.from) {
            *count = count.saturating_sub(times);
        }
        match picks.iter_mut().find(|(c, _)| *c == step.to) {
            Some((_, count)) => *count += times,
            None => picks.push((step.to, times)),
        }
        picks.retain(|(_, count)| *count > 0);
        picks.sort_unstable();
    }
}
