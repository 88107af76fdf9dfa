//! The best layout of a small fleet, exactly: GPU after GPU, the cheapest way to every number of devices that can be reached.
//!
//! The numbers stop counting at what is wanted, so a fleet with small demands has few of them whatever its size. When there are
//! too many to go through in some milliseconds ([`BUDGET`]), there is no answer and the search has to do.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use super::{
    lines::Line,
    menu::Cost,
    search::{Group, Picks},
    terms::Terms,
};

/// Most steps from one number to the next.
const BUDGET: usize = 150_000;
/// Most GPUs: more would come to the budget's end, in vain.
const GPUS: usize = 128;

/// Numbers of devices, eight bits each.
type State = u128;

/// The cheapest way to a state: its cost, the state before, and the candidate of this GPU.
type Way = (Cost, State, usize);

type Layer = HashMap<State, Way, foldhash::fast::FixedState>;

/// How many GPUs of each group are given which candidate, or `None` when the fleet is too large.
pub(super) fn solve(terms: &Terms, groups: &[Group], inside: &[bool], others: &[i64]) -> Option<Vec<Picks>> {
    if groups.iter().map(|g| g.count).sum::<usize>() > GPUS {
        return None;
    }
    let counters = Counters::of(terms, inside)?;
    let mut layers: Vec<Layer> = Vec::new();
    let others: Vec<(usize, i64)> = others.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
    let mut reached: Layer = [(counters.after(0, &others), (Cost::default(), 0, 0))].into_iter().collect();
    let mut steps = 0_usize;
    // From the last GPU to the first: among equals the first GPUs are given devices.
    for group in groups.iter().rev() {
        let candidates = &group.menu.candidates;
        let worthy = if candidates.len() > 1 { group.menu.worthy(terms.lines.len()) } else { vec![0] };
        for _ in 0..group.count {
            steps += reached.len() * worthy.len();
            if steps > BUDGET {
                return None;
            }
            let mut next = Layer::default();
            for (state, (sum, ..)) in &reached {
                for (index, candidate) in worthy.iter().filter_map(|i| Some((*i, candidates.get(*i)?))) {
                    let mut sum = *sum;
                    sum.add(&candidate.cost, 1);
                    let way = (sum, *state, index);
                    match next.entry(counters.after(*state, &candidate.supply)) {
                        Entry::Vacant(entry) => drop(entry.insert(way)),
                        Entry::Occupied(mut entry) if way < *entry.get() => drop(entry.insert(way)),
                        Entry::Occupied(_) => {}
                    }
                }
            }
            layers.push(std::mem::replace(&mut reached, next));
        }
    }
    let counts = |line: Line| inside.get(line).copied().unwrap_or(false);
    let key = |(state, (sum, ..)): &(&State, &Way)| (terms.shortfall(&counters.sums(**state), counts), *sum, **state);
    let mut way = reached.iter().min_by_key(key).map(|(_, way)| *way)?;
    let mut chosen = Vec::with_capacity(groups.len());
    let mut layers = layers.iter().rev();
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

/// Where in a state each number is, and at what it stops.
struct Counters {
    /// By place in the sums: how far to shift, and the most it counts.
    places: Vec<Option<(u32, u128)>>,
}

impl Counters {
    /// More than what is wanted, and held beside, makes no difference; of what is protected one is enough.
    fn of(terms: &Terms, inside: &[bool]) -> Option<Self> {
        let mut most = terms.sums();
        let inside = |line: Line| inside.get(line).copied().unwrap_or(false);
        for (line, of) in terms.lines.iter().enumerate().filter(|(line, _)| inside(*line)) {
            let beside: i64 = terms.excess.iter().filter(|e| e.line == line).map(|e| e.held).sum();
            let wanted = if of.total() > 0 { of.total() + beside } else { 0 };
            super::terms::add(&mut most, line, wanted.max(i64::from(of.protected)));
        }
        for e in terms.excess.iter().filter(|e| inside(e.line)) {
            let wanted = terms.lines.get(e.line).is_some_and(|l| l.total() > 0);
            super::terms::add(&mut most, e.place, if wanted { e.held } else { 0 });
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

    fn sums(&self, state: State) -> Vec<i64> {
        let number = |place: &Option<(u32, u128)>| place.map_or(0, |(shift, _)| (state >> shift) & 0xff);
        self.places.iter().map(|place| i64::try_from(number(place)).unwrap_or(0)).collect()
    }
}
