//! The planner: which instances each GPU shall carry, decided without any I/O, clock or randomness.
//!
//! [`Snapshot::read`] turns the cluster's objects into a validated picture ([`model`]); [`plan`] answers with a target layout
//! for every GPU, what each tenant gets of its guarantees, and problems that name their remedy.
//!
//! It works on placements, not on counts: which memory slices of which board an instance covers ([`board`]). What matters, in
//! this order: no guaranteed pod loses its place; guarantees are met; few pods are evicted; few GPUs are touched; few slices are
//! stranded and large blocks stay free; what is there stays. Steps:
//!
//! 1. `demand` adds up guarantees, and counts devices in use against them;
//! 2. `packing` enumerates the layouts of a board, `menu` says for one GPU what each gives and costs, and drops the beaten ones;
//! 3. `exact` chooses for every GPU of a small fleet, `search` for a large one; `spare` then applies the pools' policy for what nobody needs;
//! 4. `report` turns the choice into numbers and sentences.

pub mod board;
mod demand;
mod exact;
mod fleet;
mod foreign;
mod menu;
pub mod model;
mod name;
mod outcome;
mod packing;
mod problem;
mod report;
mod search;
mod snapshot;
mod spare;

use demand::Demand;
pub use foreign::Foreign;
use menu::Candidate;
pub use model::Snapshot;
pub use name::{GpuKey, GpuUuid, NodeName, PodName, PoolName, ProfileName, TenantName};
pub use outcome::{Evicted, GpuPlan, Plan, Served, Supply};
pub use problem::Problem;
use search::Search;
pub use snapshot::{Cluster, NodeFacts, membership, plain, resource_name, seen, trust_needed};

/// Plans the whole fleet.
pub fn plan(snapshot: &Snapshot) -> Plan {
    let mut problems = Vec::new();
    let mut demand = Demand::of(snapshot, &mut problems);
    let places = fleet::places(snapshot, &mut demand);
    let mut slots = fleet::slots(&places, &demand, &mut problems);
    let before = slots.iter().filter_map(search::Slot::candidate).fold(demand.sums(), |mut sums, candidate| {
        candidate.supply.iter().for_each(|(place, n)| demand::add(&mut sums, *place, *n));
        sums
    });
    demand.keep(&before);
    let exact = exact::solve(&demand, &slots);
    for (slot, chosen) in slots.iter_mut().zip(exact.iter().flatten()) {
        slot.chosen = *chosen;
    }
    let mut search = Search::new(&demand, slots);
    if exact.is_none() {
        search.run();
    }
    let mut supply = search.supply.clone();
    let mut chosen: Vec<Candidate> = search.slots.iter().filter_map(|s| s.candidate().cloned()).collect();
    for (place, candidate) in places.iter().zip(&mut chosen).rev() {
        if let Some(next) = spare::spare(place, candidate, &demand, &mut supply) {
            *candidate = next;
        }
    }
    report::report(snapshot, &demand, &places, &before, &chosen, problems)
}

/// One sentence for every decision and every refusal, in the order of the fleet.
pub fn explain(plan: &Plan) -> Vec<String> {
    let decisions = plan.gpus.values().flat_map(|gpu| gpu.reasons.iter().cloned());
    decisions.chain(plan.problems.iter().map(ToString::to_string)).collect()
}
