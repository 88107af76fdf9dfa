//! The best layout of a small fleet, exactly: GPU after GPU, the cheapest way to every number of devices that can be reached.
//!
//! The numbers stop counting at what is wanted, so a fleet with small demands has few of them whatever its size. When there are
//! too many to go through in some milliseconds ([`BUDGET`]), there is no answer and the search has to do.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    demand::{Demand, Line},
    menu::Cost,
    search::Slot,
};

/// Most steps from one number to the next.
const BUDGET: usize = 300_000;

/// Numbers of devices, eight bits each.
type State = u128;

/// The cheapest way to a state: its cost, the state before, and the candidate of this GPU.
type Way = (Sum, State, usize);

/// Costs of a fleet, in the order of [`Cost`].
type Sum = [u32; 5];

/// The candidate of every slot, or `None` when the fleet is too large.
pub(super) fn solve(demand: &Demand, slots: &[Slot]) -> Option<Vec<usize>> {
    let counters = Counters::of(demand)?;
    let mut layers: Vec<BTreeMap<State, Way>> = Vec::with_capacity(slots.len());
    let mut reached: BTreeMap<State, Way> = [(0, ([0; 5], 0, 0))].into();
    let mut steps = 0_usize;
    // From the last GPU to the first: among equals the first GPUs are given devices.
    for slot in slots.iter().rev() {
        let candidates = &slot.menu.candidates;
        steps += reached.len() * candidates.len();
        if steps > BUDGET {
            return None;
        }
        let mut next: BTreeMap<State, Way> = BTreeMap::new();
        for (state, (sum, ..)) in &reached {
            for (index, candidate) in candidates.iter().enumerate() {
                let way = (plus(*sum, candidate.cost), *state, index);
                match next.entry(counters.after(*state, &candidate.supply)) {
                    Entry::Vacant(entry) => drop(entry.insert(way)),
                    Entry::Occupied(mut entry) if way < *entry.get() => drop(entry.insert(way)),
                    Entry::Occupied(_) => {}
                }
            }
        }
        layers.push(std::mem::replace(&mut reached, next));
    }
    let best = reached.iter().min_by_key(|(state, (sum, ..))| (demand.shortfall(&counters.sums(**state)), *sum));
    let mut way = best.map(|(_, way)| *way)?;
    let mut chosen = Vec::with_capacity(slots.len());
    for layer in layers.iter().rev() {
        let (_, before, candidate) = way;
        chosen.push(candidate);
        way = *layer.get(&before)?;
    }
    Some(chosen)
}

fn plus(sum: Sum, cost: Cost) -> Sum {
    let [evict, touch, strand, split, steps] = sum;
    [evict + cost.evict, touch + cost.touch, strand + cost.strand, split + cost.split, steps + cost.steps]
}

/// Where in a state each number is, and at what it stops.
struct Counters {
    /// By place in the sums: how far to shift, and the most it counts.
    places: Vec<Option<(u32, u128)>>,
}

impl Counters {
    fn of(demand: &Demand) -> Option<Self> {
        let mut shift = 0;
        let mut places = Vec::new();
        for most in demand.most_that_matters() {
            let most = u128::from(u8::try_from(most).ok()?);
            if most == 0 {
                places.push(None);
            } else if shift >= State::BITS {
                return None;
            } else {
                places.push(Some((shift, most)));
                shift += 8;
            }
        }
        Some(Self { places })
    }

    fn after(&self, state: State, supply: &[(Line, i64)]) -> State {
        supply.iter().fold(state, |state, (place, n)| {
            let Some((shift, most)) = self.places.get(*place).copied().flatten() else { return state };
            let before = (state >> shift) & 0xff;
            let after = before.saturating_add(u128::try_from(*n).unwrap_or(0)).min(most);
            (state & !(0xff << shift)) | (after << shift)
        })
    }

    fn sums(&self, state: State) -> Vec<i64> {
        let number = |place: &Option<(u32, u128)>| place.map_or(0, |(shift, _)| (state >> shift) & 0xff);
        self.places.iter().map(|place| i64::try_from(number(place)).unwrap_or(0)).collect()
    }
}
