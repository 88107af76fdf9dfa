//! The best layout of a small fleet, exactly: GPU after GPU, the cheapest way to every number of devices that can be reached.
//!
//! The numbers stop counting at what is wanted, so a fleet with small demands has few of them whatever its size. When there are
//! too many to go through in some milliseconds ([`BUDGET`]), there is no answer and the search has to do.

use super::{
    lines::Line,
    menu::Cost,
    search::{Group, Picks},
    terms::Terms,
    ways::{Counters, Guide, Layer, State, Way, walk, worthy},
};

/// Most steps from one number to the next.
const BUDGET: usize = 150_000;
/// Most GPUs: more would come to the budget's end, in vain.
const GPUS: usize = 128;

/// How many GPUs of each group are given which candidate, or `None` when the fleet is too large.
pub(super) fn solve(terms: &Terms, groups: &[Group], inside: &[bool], others: &[i64]) -> Option<Vec<Picks>> {
    if groups.iter().map(|g| g.count).sum::<usize>() > GPUS {
        return None;
    }
    let counters = Counters::of(terms, inside, |line| terms.lines.get(line).map_or(0, super::terms::LineTerms::total))?;
    let worthy = worthy(groups, terms.lines.len());
    let ways = walk(groups, &worthy, &counters, others, &mut Everything { steps: 0 })?;
    let counts = |line: Line| inside.get(line).copied().unwrap_or(false);
    let key = |(state, (sum, ..)): &(&State, &Way)| (terms.shortfall(&counters.sums(**state), counts), *sum, **state);
    let end = ways.reached.iter().min_by_key(key).map(|(_, way)| *way)?;
    ways.back(groups, end)
}

/// Leaves nothing out, as long as there is not too much.
struct Everything {
    steps: usize,
}

impl Guide for Everything {
    fn affords(&mut self, states: usize, candidates: usize) -> bool {
        self.steps += states * candidates;
        self.steps <= BUDGET
    }

    fn admits(&self, _: usize, _: State, _: &Cost) -> bool {
        true
    }

    fn thin(&self, _: usize, _: &mut Layer) {}
}
