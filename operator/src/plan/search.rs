//! The search: a layout for every GPU such that as much as possible is guaranteed at the least cost.
//!
//! All GPUs start as they are. The best single change is made until none improves the score; then changes that are worse at
//! first are tried, each followed by the single changes that repair it (empty one GPU, give its devices a place elsewhere); where
//! pods would still be evicted, other first changes are tried.
//! GPUs that are alike are tried once. One round of single changes costs `kinds of GPU × layouts × profiles`; at most
//! [`TRIES`] repairs are tried between two improvements. Ties are broken by the order of the fleet, so that the same snapshot
//! always gives the same answer.

use std::{cmp::Reverse, collections::BTreeSet, rc::Rc};

use super::{
    demand::{Demand, Line, Shortfall, add},
    menu::{Candidate, Cost, Menu},
};

/// Repairs tried between two improvements.
const TRIES: usize = 200;

/// One GPU in the search: what it may be, and what it is to be.
#[derive(Clone)]
pub(super) struct Slot {
    /// GPUs with the same number have the same menu.
    pub kind: usize,
    pub menu: Rc<Menu>,
    pub chosen: usize,
}

impl Slot {
    pub fn candidate(&self) -> Option<&Candidate> {
        self.menu.candidates.get(self.chosen)
    }
}

/// How good a layout of the fleet is: smaller is better, the first difference decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    short: Shortfall,
    evict: i64,
    touch: i64,
    strand: i64,
    split: i64,
    steps: i64,
}

/// A change of one GPU: its place in the fleet, and its new candidate.
type Move = (usize, usize);

#[derive(Clone)]
pub(super) struct Search<'a> {
    demand: &'a Demand,
    pub slots: Vec<Slot>,
    pub supply: Vec<i64>,
    score: Score,
}

impl<'a> Search<'a> {
    pub fn new(demand: &'a Demand, slots: Vec<Slot>) -> Self {
        let mut search = Self { demand, slots: Vec::new(), supply: demand.sums(), score: Score::default() };
        for line in 0..demand.names.len() {
            search.count(line, 1);
        }
        for slot in slots {
            if let Some(candidate) = slot.candidate() {
                let (supply, cost) = (candidate.supply.clone(), candidate.cost);
                search.shift(&supply, 1);
                search.charge(cost, 1);
            }
            search.slots.push(slot);
        }
        search
    }

    pub fn run(&mut self) {
        let start = self.clone();
        self.improve(None);
        while self.repair() {}
        if self.costly() {
            self.begin_otherwise(&start);
            while self.repair() {}
        }
    }

    /// Something is missing, or somebody is evicted: worth a longer look.
    fn costly(&self) -> bool {
        self.score.short.lost != 0 || self.score.short.missing != 0 || self.score.evict != 0
    }

    /// The best single change at first need not be the best first change: tries others.
    fn begin_otherwise(&mut self, start: &Self) {
        let mut origin = start.clone();
        for step in origin.starts() {
            let mut trial = start.clone();
            trial.make(step);
            trial.improve(Some(step.0));
            trial.improve(None);
            if trial.score < self.score {
                *self = trial;
            }
        }
    }

    /// Makes the best single change until none improves the score. A locked GPU stays.
    fn improve(&mut self, locked: Option<usize>) {
        while let Some(step) = self.best_move(locked) {
            self.make(step);
        }
    }

    /// The change that improves the score and evicts least; among those the one that serves most, at the least cost.
    fn best_move(&mut self, locked: Option<usize>) -> Option<Move> {
        let before = self.score;
        let mut best = None;
        for step in self.moves(locked) {
            let after = self.after(step);
            if after < before {
                let key = (after.short.lost, after.evict - before.evict, after, step);
                best = Some(best.map_or(key, |known: (i64, i64, Score, Move)| known.min(key)));
            }
        }
        best.map(|(.., step)| step)
    }

    /// One change that does not help by itself, followed by single changes; kept when the whole is better.
    fn repair(&mut self) -> bool {
        if !self.costly() {
            return false;
        }
        for step in self.starts() {
            let mut trial = self.clone();
            trial.make(step);
            trial.improve(Some(step.0));
            trial.improve(None);
            if trial.score < self.score {
                *self = trial;
                return true;
            }
        }
        false
    }

    /// Changes that give more of what is missing, or evict less, whatever they spoil: those that evict least first.
    fn starts(&mut self) -> Vec<Move> {
        let before = self.score;
        let short = |(line, wanted): (usize, &i64)| self.demand.supply(&self.supply, line) < *wanted;
        let short: Vec<bool> = self.demand.wanted.iter().enumerate().map(short).collect();
        let mut starts = Vec::new();
        for step in self.moves(None) {
            let after = self.after(step);
            let gained = self.gain(step, &short);
            if gained > 0 || after.evict < before.evict {
                starts.push(((after.evict, Reverse(gained), after), step));
            }
        }
        starts.sort_unstable();
        starts.into_iter().take(TRIES).map(|(_, step)| step).collect()
    }

    /// How much more of what is missing a change gives, in 840ths of a GPU.
    fn gain(&self, (slot, candidate): Move, short: &[bool]) -> i64 {
        let Some((old, new)) = self.pair((slot, candidate)) else { return 0 };
        let sum = |c: &Candidate| -> i64 {
            let lines = c.supply.iter().filter(|(line, _)| short.get(*line).copied().unwrap_or(false));
            lines.map(|(line, n)| n * self.demand.weight.get(*line).copied().unwrap_or(1)).sum()
        };
        sum(new) - sum(old)
    }

    /// Every change, GPUs that are alike once.
    fn moves(&self, locked: Option<usize>) -> Vec<Move> {
        let mut seen = BTreeSet::new();
        let mut moves = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            if Some(index) != locked && slot.menu.candidates.len() > 1 && seen.insert((slot.kind, slot.chosen)) {
                let others = (0..slot.menu.candidates.len()).filter(|c| *c != slot.chosen);
                moves.extend(others.map(|c| (index, c)));
            }
        }
        moves
    }

    fn pair(&self, (slot, candidate): Move) -> Option<(&'_ Candidate, &'_ Candidate)> {
        let slot = self.slots.get(slot)?;
        Some((slot.candidate()?, slot.menu.candidates.get(candidate)?))
    }

    /// The score after a change; everything is as before when it returns.
    fn after(&mut self, step: Move) -> Score {
        let before = self.score;
        let chosen = self.slots.get(step.0).map_or(0, |s| s.chosen);
        self.make(step);
        let after = self.score;
        self.make((step.0, chosen));
        self.score = before;
        after
    }

    fn make(&mut self, (index, candidate): Move) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let menu = Rc::clone(&slot.menu);
        let old = slot.chosen;
        slot.chosen = candidate;
        if let (Some(old), Some(new)) = (menu.candidates.get(old), menu.candidates.get(candidate)) {
            self.shift(&old.supply, -1);
            self.charge(old.cost, -1);
            self.shift(&new.supply, 1);
            self.charge(new.cost, 1);
        }
    }

    fn shift(&mut self, supply: &[(Line, i64)], sign: i64) {
        for (place, n) in supply {
            let line = self.demand.line_of(*place);
            self.count(line, -1);
            add(&mut self.supply, *place, sign * n);
            self.count(line, 1);
        }
    }

    /// Adds or takes back what a profile contributes to the score.
    fn count(&mut self, line: Line, sign: i64) {
        let Shortfall { lost, unmet, missing } = self.demand.shortfall_of(&self.supply, line);
        self.score.short.lost += sign * lost;
        self.score.short.unmet += sign * unmet;
        self.score.short.missing += sign * missing;
    }

    fn charge(&mut self, cost: Cost, sign: i64) {
        self.score.evict += sign * i64::from(cost.evict);
        self.score.touch += sign * i64::from(cost.touch);
        self.score.strand += sign * i64::from(cost.strand);
        self.score.split += sign * i64::from(cost.split);
        self.score.steps += sign * i64::from(cost.steps);
    }
}
