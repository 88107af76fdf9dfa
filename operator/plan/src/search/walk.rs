//! Dynamic programming over GPUs: every sum of devices that can be reached, and the cheapest way to it.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use super::{
    candidates::Cost,
    objective::{add, at},
    part::{Part, Picks},
};
use crate::fleet::ProfileId;

/// Numbers of devices, eight bits each.
pub(super) type State = u128;

/// The cheapest way to a state: its cost, the state before, and the candidate of this GPU.
pub(super) type Way = (Cost, State, usize);

pub(super) type Layer = HashMap<State, Way>;

/// Prunes states.
pub(super) trait Pruning {
    /// Whether all these states may be extended by all these candidates. If not, the walk ends without a result.
    fn affords(&mut self, states: usize, candidates: usize) -> bool;
    /// Whether a state with so many GPUs to come may be part of the result.
    fn admits(&self, left: usize, state: State, cost: &Cost) -> bool;
    /// Removes the least promising states.
    fn thin(&self, left: usize, layer: &mut Layer);
}

/// The states after the last GPU, and all layers before.
pub(super) struct Walk {
    layers: Vec<Layer>,
    pub reached: Layer,
}

impl Walk {
    /// From the last GPU to the first: among equals the first GPUs are given devices. `choices` are candidates by group.
    pub fn of(
        part: &Part<'_>,
        choices: &[Vec<usize>],
        counters: &Counters,
        pruning: &mut impl Pruning,
    ) -> Option<Self> {
        let mut layers: Vec<Layer> = Vec::new();
        let others: Vec<(usize, i64)> = part.others.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        let mut reached: Layer = [(counters.after(0, &others), (Cost::default(), 0, 0))].into();
        let mut left = part.count();
        for (group, choices) in part.groups.iter().zip(choices).rev() {
            for _ in 0..group.count {
                if !pruning.affords(reached.len(), choices.len()) {
                    return None;
                }
                left = left.saturating_sub(1);
                let mut next = Layer::new();
                for (state, (cost, ..)) in &reached {
                    for (index, candidate) in choices.iter().filter_map(|i| Some((*i, group.candidate(*i)?))) {
                        let mut cost = *cost;
                        cost.add(&candidate.cost, 1);
                        let after = counters.after(*state, &candidate.supply);
                        if !pruning.admits(left, after, &cost) {
                            continue;
                        }
                        let way = (cost, *state, index);
                        match next.entry(after) {
                            Entry::Vacant(entry) => drop(entry.insert(way)),
                            Entry::Occupied(mut entry) if way < *entry.get() => drop(entry.insert(way)),
                            Entry::Occupied(_) => {}
                        }
                    }
                }
                pruning.thin(left, &mut next);
                layers.push(std::mem::replace(&mut reached, next));
            }
        }
        Some(Self { layers, reached })
    }

    /// The picks of a way to its end.
    pub fn picks(&self, part: &Part<'_>, end: Way) -> Option<Vec<Picks>> {
        let mut way = end;
        let mut chosen = Vec::with_capacity(part.groups.len());
        let mut layers = self.layers.iter().rev();
        for group in &part.groups {
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

/// How a state encodes numbers of devices.
pub(super) struct Counters {
    /// By slot: the shift of its number, and the most that it counts.
    slots: Vec<Option<(u32, u128)>>,
}

impl Counters {
    /// More than is `needed` of a profile, and held beyond guarantees, makes no difference; of a protected profile one is enough.
    pub fn of(part: &Part<'_>, needed: impl Fn(ProfileId) -> i64) -> Option<Self> {
        let objective = part.objective;
        let mut most = vec![0; objective.slots()];
        for (profile, demand) in objective.profiles.iter().enumerate().filter(|(profile, _)| part.is_inside(*profile)) {
            let needed = needed(profile);
            add(&mut most, profile, needed.max(i64::from(demand.protected)));
            for (slot, e) in
                (part.profiles()..).zip(&objective.excess).filter(|(_, e)| e.profile == profile && needed > 0)
            {
                add(&mut most, profile, e.held);
                add(&mut most, slot, e.held);
            }
        }
        let mut shift = 0;
        let mut slots = Vec::with_capacity(most.len());
        for most in most {
            let most = u128::from(u8::try_from(most).ok()?);
            if most > 0 && shift >= State::BITS {
                return None;
            }
            slots.push((most > 0).then_some((shift, most)));
            shift += if most > 0 { 8 } else { 0 };
        }
        Some(Self { slots })
    }

    fn after(&self, state: State, supply: &[(usize, i64)]) -> State {
        supply.iter().fold(state, |state, (slot, n)| {
            let Some((shift, most)) = self.slots.get(*slot).copied().flatten() else { return state };
            let before = (state >> shift) & 0xff;
            let after = before.saturating_add(u128::try_from(*n).unwrap_or(0)).min(most);
            (state & !(0xff << shift)) | (after << shift)
        })
    }

    pub fn sums(&self, state: State) -> Vec<i64> {
        (0..self.slots.len()).map(|slot| self.number(state, slot)).collect()
    }

    /// The number in a slot; 0 where it is not counted.
    pub fn number(&self, state: State, slot: usize) -> i64 {
        let counter = self.slots.get(slot).copied().flatten();
        counter.map_or(0, |(shift, _)| i64::try_from((state >> shift) & 0xff).unwrap_or(0))
    }

    pub fn counts(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(Option::is_some)
    }
}

/// The sums of `needed` less those in `sums`, by profile.
pub(super) fn missing(needed: &[i64], sums: &[i64]) -> Vec<i64> {
    needed.iter().enumerate().map(|(profile, n)| n - at(sums, profile)).collect()
}
