//! From the index to a plan: what is short, what is done about it, and who gets what.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    exact, fewer,
    fixed::Written,
    fleet::Core,
    forms::{GpuId, Rule},
    lines::Line,
    menu::{Candidate, Source, give},
    model::Snapshot,
    outcome::Supply,
    problem::Problem,
    search::{Group, Limits, Search},
    sentence, spare,
    terms::{LineTerms, Terms, of},
};

/// What GPUs of a kind are given: a candidate, and how many of them.
pub(super) type Share = (Candidate, usize);

/// Everything that is decided in one plan.
pub(super) struct Decision {
    pub terms: Terms,
    /// Devices by place, as it is.
    pub before: Vec<i64>,
    /// Devices by place, after the plan.
    pub after: Vec<i64>,
    /// By kind: what its GPUs are given where not all stay as they are.
    pub shares: BTreeMap<usize, Vec<Share>>,
    pub problems: Vec<Problem>,
}

/// Kinds of so many GPUs in all are searched longer than larger ones.
const SMALL: usize = 256;
const LONG: Limits = Limits { tries: 200, weighed: 2_000_000 };
/// What the search has found for them is bettered so often.
const BETTERED: usize = 2;
const SHORT: Limits = Limits { tries: 24, weighed: 20_000 };

impl Core {
    /// Decides anew, and brings the plan up to date where it differs.
    pub fn decide(&mut self, snapshot: &Snapshot) {
        let mut decision = self.decision();
        self.plan.searched = false;
        self.choose(&mut decision);
        spare::spare(self, &mut decision);
        self.show(snapshot, &decision);
        self.sum(&decision);
        let mut problems: Vec<Problem> = self.ledger.problems().cloned().collect();
        problems.append(&mut decision.problems);
        problems.extend(sentence::shortages(self, snapshot, &decision));
        problems.extend(sentence::boards_that_cannot(self, snapshot));
        problems.extend(sentence::plugin_cannot(self, snapshot));
        problems.sort();
        problems.dedup();
        self.plan.problems = problems;
    }

    /// How things stand.
    fn decision(&mut self) -> Decision {
        let places = self.lines.len() + self.ledger.holders().count();
        let mut before = vec![0; places];
        let mut in_use = vec![false; self.lines.len()];
        for kind in self.forms.kinds.iter().filter(|k| !k.members.is_empty()) {
            give(&mut before, &kind.supply, number(kind.members.len()));
            let Some(form) = self.forms.list.get(kind.form).filter(|f| !f.in_use.is_empty()) else { continue };
            if self.forms.rigs.get(form.rig).is_some_and(|r| !r.pool.allow_outage) {
                form.in_use.iter().for_each(|line| set(&mut in_use, *line));
            }
        }
        let mut weights = vec![0; self.lines.len()];
        for offer in self.forms.rigs.iter().filter(|r| r.live > 0).flat_map(|r| &r.offers) {
            if let Some(weight) = weights.get_mut(offer.line) {
                *weight = offer.share.max(*weight);
            }
        }
        let excess = self.ledger.excess();
        let mut lines = Vec::with_capacity(self.lines.len());
        for (line, weight) in weights.into_iter().enumerate() {
            let protected = in_use.get(line) == Some(&true) && of(&before, line) > 0;
            let (wanted, held) = (self.ledger.wanted(line), self.ledger.served(line));
            lines.push(LineTerms { wanted, held, there: wanted, weight, protected });
        }
        let mut terms = Terms::new(lines, self.ledger.holders(), excess);
        let beyond = terms.beyond(&before);
        for (line, terms) in terms.lines.iter_mut().enumerate() {
            terms.there = terms.serve(of(&before, line) - of(&beyond, line));
        }
        Decision { terms, after: before.clone(), before, shares: BTreeMap::new(), problems: Vec::new() }
    }

    fn choose(&mut self, decision: &mut Decision) {
        let written = Written::of(self, decision);
        let sums = written.sums;
        // with nothing short and nobody in the way everything stays: a look at every kind is all it takes
        let beyond = decision.terms.beyond(&sums);
        let lines = decision.terms.lines.iter().enumerate();
        let lacks = |line: Line, t: &LineTerms| of(&sums, line) - of(&beyond, line) < t.total();
        let mut urgent: Vec<bool> = lines.map(|(line, terms)| lacks(line, terms)).collect();
        let mut troubled = Vec::new();
        for (index, kind) in self.forms.kinds.iter().enumerate().filter(|(_, k)| k.evict > 0 && !k.members.is_empty()) {
            troubled.push(index);
            for (line, _) in &kind.supply {
                set(&mut urgent, *line);
            }
        }
        decision.after = sums;
        if troubled.is_empty() && !urgent.contains(&true) {
            return;
        }
        for (inside, kinds) in self.problems_apart(&urgent, &troubled) {
            self.solve(decision, &inside, kinds);
        }
    }

    /// Profiles and kinds that have to do with each other, where something has to be done.
    fn problems_apart(&self, urgent: &[bool], troubled: &[usize]) -> Vec<(Vec<bool>, Vec<usize>)> {
        let lines = self.lines.len();
        let mut sets: Vec<usize> = (0..lines).collect();
        let find = |sets: &[usize], mut line: usize| {
            while let Some(up) = sets.get(line).filter(|up| **up != line) {
                line = *up;
            }
            line
        };
        let mut of_kinds: Vec<(usize, Option<Line>)> = Vec::new();
        for (index, kind) in self.forms.kinds.iter().enumerate().filter(|(_, k)| !k.members.is_empty()) {
            let Some((_, form, rig)) = self.forms.of(index) else { continue };
            let offered = rig.offers.iter().map(|o| o.line).filter(|_| form.rule == Rule::Demand);
            let mut all = offered.chain(kind.supply.iter().map(|(line, _)| *line).filter(|l| *l < lines));
            let first = all.next();
            if let Some(first) = first {
                for other in all {
                    let (a, b) = (find(&sets, first), find(&sets, other));
                    if let Some(set) = sets.get_mut(a.max(b)) {
                        *set = a.min(b);
                    }
                }
            }
            if form.rule == Rule::Demand {
                of_kinds.push((index, first));
            }
        }
        let mut parts: BTreeMap<usize, (Vec<bool>, Vec<usize>)> = BTreeMap::new();
        for line in 0..lines {
            let part = parts.entry(find(&sets, line)).or_insert_with(|| (vec![false; lines], Vec::new()));
            if let Some(inside) = part.0.get_mut(line) {
                *inside = true;
            }
        }
        for (kind, line) in of_kinds {
            // one that no profile touches is for itself
            let part = line.map_or(usize::MAX, |line| find(&sets, line));
            parts.entry(part).or_insert_with(|| (vec![false; lines], Vec::new())).1.push(kind);
        }
        let matters = |(inside, kinds): &(Vec<bool>, Vec<usize>)| {
            inside.iter().zip(urgent).any(|(i, u)| *i && *u) || troubled.iter().any(|t| kinds.contains(t))
        };
        parts.into_values().filter(matters).collect()
    }

    /// Chooses for the kinds of one part of the fleet.
    fn solve(&mut self, decision: &mut Decision, inside: &[bool], mut kinds: Vec<usize>) {
        // in the order of the fleet: the numbers of kinds depend on what came when
        kinds.sort_by_cached_key(|kind| self.first(*kind));
        let mut groups = Vec::with_capacity(kinds.len());
        for kind in &kinds {
            let count = self.forms.kinds.get(*kind).map_or(0, |k| k.members.len());
            let Some(menu) = self.forms.menu(*kind, &self.lines) else { continue };
            groups.push(Group { menu, count });
        }
        // what the others give counts too, and is not to be chosen here
        let mut others = decision.after.clone();
        for (kind, group) in kinds.iter().zip(&groups) {
            let present = self.forms.kinds.get(*kind).map(|k| k.supply.as_slice()).unwrap_or_default();
            give(&mut others, present, -number(group.count));
        }
        let all: usize = groups.iter().map(|g| g.count).sum();
        let limits = if all <= SMALL { LONG } else { SHORT };
        let solved = exact::solve(&decision.terms, &groups, inside, &others);
        self.plan.searched |= solved.is_none();
        let picks = solved.unwrap_or_else(|| {
            let mut search = Search::new(&decision.terms, &groups, inside, &others, (limits, self.forms.deltas()));
            search.run(limits);
            let mut picks = search.picks;
            for _ in 0..if all <= SMALL { BETTERED } else { 0 } {
                let Some(better) = fewer::fewer(&decision.terms, &groups, inside, &others, &picks) else { break };
                picks = better;
            }
            picks
        });
        decision.after = others;
        for ((kind, group), picks) in kinds.iter().zip(&groups).zip(picks) {
            let mut shares: Vec<Share> = Vec::new();
            for (index, count) in picks {
                let Some(candidate) = group.menu.candidates.get(index) else { continue };
                give(&mut decision.after, &candidate.supply, number(count));
                shares.push((candidate.clone(), count));
            }
            if shares.len() > 1 || shares.first().is_some_and(|(c, _)| c.source != Source::Present) {
                decision.shares.insert(*kind, shares);
            }
        }
    }

    /// The GPUs of a kind in the order in which they are given something else: what they are given is spread over nodes, those
    /// that have least of it first.
    pub fn spread(&mut self, kind: usize, shares: &[Share]) -> Vec<GpuId> {
        let lines = self.lines.len();
        let gained: BTreeSet<Line> = shares
            .iter()
            .filter(|(c, _)| c.source != Source::Present)
            .flat_map(|(c, _)| c.supply.iter().map(|(line, _)| *line))
            .filter(|l| *l < lines)
            .collect();
        let Some(of_kind) = self.forms.kinds.get(kind) else { return Vec::new() };
        let mut members: Vec<((u32, u32), GpuId)> = of_kind.members.iter().map(|id| (self.place(*id), *id)).collect();
        members.sort_unstable();
        let mut keyed = Vec::with_capacity(members.len());
        let (mut node, mut nth, mut has) = (u32::MAX, 0_i64, 0_i64);
        for ((rank, slot), id) in members {
            if rank != node {
                let devices = self.gpus.get(id as usize).and_then(|e| self.nodes.get(e.node)).map(|n| &n.devices);
                has = devices.map_or(0, |d| gained.iter().map(|line| of(d, *line)).sum());
                (node, nth) = (rank, 0);
            }
            keyed.push((nth, has, rank, slot, id));
            nth += 1;
        }
        keyed.sort_unstable();
        keyed.into_iter().map(|(.., id)| id).collect()
    }

    /// The numbers of the plan.
    fn sum(&mut self, decision: &Decision) {
        let count = |n: i64| u32::try_from(n).unwrap_or(0);
        let held = decision.terms.beyond(&decision.before);
        let supply = |(line, terms): (Line, &LineTerms)| {
            let (before, after) = (of(&decision.before, line), of(&decision.after, line));
            let guaranteed = count(terms.total());
            let usable = count(before - of(&held, line));
            (self.lines.name(line), Supply { guaranteed, before: count(before), usable, after: count(after) })
        };
        self.plan.profiles = decision.terms.lines.iter().enumerate().map(supply).collect();
        let beyond = decision.terms.beyond(&decision.after);
        let lines = decision.terms.lines.iter().enumerate();
        let free = |line: Line| of(&decision.after, line) - of(&beyond, line);
        let scarce: BTreeSet<Line> = lines.filter(|(l, t)| free(*l) < t.total()).map(|(l, _)| l).collect();
        for line in self.scarce.union(&scarce) {
            for (tenant, served) in self.ledger.share(*line, free(*line)) {
                if let Some(profiles) = self.plan.tenants.get_mut(&tenant) {
                    profiles.insert(self.lines.name(*line), served);
                }
            }
        }
        self.scarce = scarce;
        self.plan.stranded.clear();
        for (index, kind) in self.forms.kinds.iter().enumerate().filter(|(_, k)| !k.members.is_empty()) {
            let Some((_, form, rig)) = self.forms.of(index) else { continue };
            let sum = match self.plan.stranded.get_mut(&rig.pool_name) {
                Some(sum) => sum,
                None => self.plan.stranded.entry(rig.pool_name.clone()).or_default(),
            };
            let changed: usize = decision
                .shares
                .get(&index)
                .map_or(0, |shares| shares.iter().filter(|(c, _)| c.source != Source::Present).map(|(_, n)| n).sum());
            let same = i32::try_from(kind.members.len() - changed.min(kind.members.len())).unwrap_or(i32::MAX);
            sum.compute += same * form.stranded.0;
            sum.memory += same * form.stranded.1;
        }
        let mut moved = Vec::new();
        for (kind, shares) in &decision.shares {
            for (candidate, count) in shares.iter().filter(|(c, _)| c.source != Source::Present) {
                moved.push((*kind, candidate, i32::try_from(*count).unwrap_or(i32::MAX)));
            }
        }
        for (kind, candidate, count) in moved {
            let Some((_, (compute, memory))) = self.forms.layout(kind, candidate, &self.lines) else { continue };
            let Some((_, _, rig)) = self.forms.of(kind) else { continue };
            let sum = self.plan.stranded.entry(rig.pool_name.clone()).or_default();
            sum.compute += count * compute;
            sum.memory += count * memory;
        }
    }
}

pub(super) fn number(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn set(flags: &mut [bool], line: Line) {
    if let Some(flag) = flags.get_mut(line) {
        *flag = true;
    }
}
