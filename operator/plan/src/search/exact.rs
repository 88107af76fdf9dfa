//! The best layout of a small fleet: GPU after GPU, the cheapest way to every number of devices that can be reached.
//!
//! Numbers stop counting at what is guaranteed, so a fleet with small guarantees has few states whatever its size. With more states
//! than [`BUDGET`] allows there is no result, and the local search decides.

use super::{
    candidates::Cost,
    part::{Part, Picks},
    walk::{Counters, Layer, Pruning, State, Walk, Way},
};

/// Most steps from one state to the next: some milliseconds.
const BUDGET: usize = 150_000;
/// Most GPUs: more would exceed the budget anyway.
const GPUS: usize = 128;

/// Picks by group; `None`: the part is too large.
pub(super) fn solve(part: &Part<'_>) -> Option<Vec<Picks>> {
    if part.count() > GPUS {
        return None;
    }
    let counters = Counters::of(part, |profile| part.objective.total(profile))?;
    let choices: Vec<_> = part.groups.iter().map(|g| g.candidates.undominated(part.profiles())).collect();
    let walk = Walk::of(part, &choices, &counters, &mut Budget { steps: 0 })?;
    let key = |(state, (cost, ..)): &(&State, &Way)| (part.shortfall(&counters.sums(**state)), *cost, **state);
    let end = walk.reached.iter().min_by_key(key).map(|(_, way)| *way)?;
    walk.picks(part, end)
}

/// Prunes nothing within the budget.
struct Budget {
    steps: usize,
}

impl Pruning for Budget {
    fn affords(&mut self, states: usize, candidates: usize) -> bool {
        self.steps += states * candidates;
        self.steps <= BUDGET
    }

    fn admits(&self, _: usize, _: State, _: &Cost) -> bool {
        true
    }

    fn thin(&self, _: usize, _: &mut Layer) {}
}
