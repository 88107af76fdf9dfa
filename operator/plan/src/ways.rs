//! Ways through a fleet, GPU after GPU: every number of devices that can be reached, and the cheapest way to it.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use super::{
    lines::Line,
    menu::Cost,
    search::{Group, Picks},
    terms::Terms,
};

/// Numbers of devices, eight bits each.
pub(super) type State = u128;

/// The cheapest way to a state: its cost, the state before, and the candidate of this GPU.
pub(super) type Way = (Cost, State, usize);

pub(super) type Layer = HashMap<State, Way, foldhash::fast::FixedState>;

/// What is gone through, and what not.
pub(super) trait Guide {
    /// May all these states be tried with all these candidates? If not, the whole is given up.
    fn affords(&mut self, states: usize, candidates: usize) -> bool;
    /// Is a state worth going on from, with so many GPUs to come?
    fn admits(&self, left: usize, state: State, cost: &Cost) -> bool;
    /// Last word on a layer.
    fn thin(&self, left: usize, layer: &mut Layer);
}

/// Where the last GPU leads to, and the layers before it.
pub(super) struct Ways {
    layers: Vec<Layer>,
    pub reached: Layer,
}

/// All ways that the guide lets through. From the last GPU to the first: among equals the first GPUs are given devices.
pub(super) fn walk(
    groups: &[Group],
    worthy: &[Vec<usize>],
    counters: &Counters,
    others: &[i64],
    guide: &mut impl Guide,
) -> Option<Ways> {
    let mut layers: Vec<Layer> = Vec::new();
    let others: Vec<(usize, i64)> = others.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
    let mut reached: Layer = [(counters.after(0, &others), (Cost::default(), 0, 0))].into_iter().collect();
    let mut left: usize = groups.iter().map(|g| g.count).sum();
    for (group, worthy) in groups.iter().zip(worthy).rev() {
        let candidates = &group.menu.candidates;
        for _ in 0..group.count {
            if !guide.affords(reached.len(), worthy.len()) {
                return None;
            }
            left = left.saturating_sub(1);
            let mut next = Layer::default();
            for (state, (sum, ..)) in &reached {
                for (index, candidate) in worthy.iter().filter_map(|i| Some((*i, candidates.get(*i)?))) {
                    let mut sum = *sum;
                    sum.add(&candidate.cost, 1);
                    let after = counters.after(*state, &candidate.supply);
                    if !guide.admits(left, after, &sum) {
                        continue;
                    }
                    let way = (sum, *state, index);
                    match next.entry(after) {
                        Entry::Vacant(entry) => drop(entry.insert(way)),
                        Entry::Occupied(mut entry) if way < *entry.get() => drop(entry.insert(way)),
                        Entry::Occupied(_) => {}
                    }
                }
            }
            guide.thin(left, &mut next);
            layers.push(std::mem::replace(&mut reached, next));
        }
    }
    Some(Ways { layers, reached })
}

impl Ways {
    /// The way back from an end: how many GPUs of each group are given which candidate.
    pub fn back(&self, groups: &[Group], end: Way) -> Option<Vec<Picks>> {
        let mut way = end;
        let mut chosen = Vec::with_capacity(groups.len());
        let mut layers = self.layers.iter().rev();
        for group in groups {
            let mut picks: BTreeMap<usize, usize> = BTreeMap::new();
            for layer in layers.by_ref().take(group.count) {
                let (_, before, candidate) = way;
                *picks.entry(candidate).or_default() += 1;
                way = *layer.get(&before)?;
            }
            chosen.push(picks.into_iter().collect());
        }
        Some(chosen)
    }
}

/// By group: candidates worth trying.
pub(super) fn worthy(groups: &[Group], lines: usize) -> Vec<Vec<usize>> {
    let of = |g: &Group| if g.menu.candidates.len() > 1 { g.menu.worthy(lines) } else { vec![0] };
    groups.iter().map(of).collect()
}

/// Where in a state each number is, and at what it stops.
pub(super) struct Counters {
    /// By place in the sums: how far to shift, and the most it counts.
    places: Vec<Option<(u32, u128)>>,
}

impl Counters {
    /// More than what is `needed` of a profile, and held beside, makes no difference; of what is protected one is enough.
    pub fn of(terms: &Terms, inside: &[bool], needed: impl Fn(Line) -> i64) -> Option<Self> {
        let mut most = terms.sums();
        let inside = |line: Line| inside.get(line).copied().unwrap_or(false);
        for (line, of) in terms.lines.iter().enumerate().filter(|(line, _)| inside(*line)) {
            let beside: i64 = terms.excess.iter().filter(|e| e.line == line).map(|e| e.held).sum();
            let wanted = if needed(line) > 0 { needed(line) + beside } else { 0 };
            super::terms::add(&mut most, line, wanted.max(i64::from(of.protected)));
        }
        for e in terms.excess.iter().filter(|e| inside(e.line)) {
            super::terms::add(&mut most, e.place, if needed(e.line) > 0 { e.held } else { 0 });
        }
        let mut places = vec![None; most.len()];
        let mut shift = 0;
        // by name, lines first: the numbers of places depend on what came when
        let order = (0..terms.lines.len()).chain(terms.excess.iter().map(|e| e.place));
        for place in order {
            let most = u128::from(u8::try_from(super::terms::of(&most, place)).ok()?);
            if most > 0 {
                if shift >= State::BITS {
                    return None;
                }
                if let Some(counter) = places.get_mut(place) {
                    *counter = Some((shift, most));
                }
                shift += 8;
            }
        }
        Some(Self { places })
    }

    fn after(&self, state: State, supply: &[(usize, i64)]) -> State {
        supply.iter().fold(state, |state, (place, n)| {
            let Some((shift, most)) = self.places.get(*place).copied().flatten() else { return state };
            let before = (state >> shift) & 0xff;
            let after = before.saturating_add(u128::try_from(*n).unwrap_or(0)).min(most);
            (state & !(0xff << shift)) | (after << shift)
        })
    }

    pub fn sums(&self, state: State) -> Vec<i64> {
        (0..self.places.len()).map(|place| self.number(state, place)).collect()
    }

    /// What a state counts at a place; nothing where it is not counted.
    pub fn number(&self, state: State, place: usize) -> i64 {
        let counter = self.places.get(place).copied().flatten();
        counter.map_or(0, |(shift, _)| i64::try_from((state >> shift) & 0xff).unwrap_or(0))
    }

    pub fn counts(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(Option::is_some)
    }
}
