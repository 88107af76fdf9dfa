//! Compares two worlds, without and with the manifests, by the plans that the operator makes for them. Pure.

mod capacity;
mod change;
mod diff;
mod estimate;
mod eviction;
mod manifest;
mod model;
mod order;
mod planned;
mod problem;
mod window;

pub use manifest::{Proposal, ProposeError, propose};
pub use model::*;
use planned::PlannedWorld;

use crate::world::World;

/// Compares the plans of both worlds. `ignore_known`: problems that exist without the manifests too do not affect the outcome.
pub fn preview(before: &World, proposal: &Proposal, ignore_known: bool) -> PlanPreview {
    let (old, new) = (PlannedWorld::of(before), PlannedWorld::of(&proposal.after));
    let mut changes = change::changes(&new);
    let evictions = eviction::evictions(&new, &changes);
    estimate::fill(&new, &mut changes, &evictions);
    let problems = problem::findings(&old, &new, &proposal.refused);
    let unmet = problems.iter().any(|p| !(ignore_known && p.known));
    let outcome = match (unmet, evictions.is_empty(), changes.is_empty()) {
        (true, ..) => Outcome::Unmet,
        (false, false, _) => Outcome::Evictions,
        (false, true, false) => Outcome::Changes,
        (false, true, true) => Outcome::NothingToDo,
    };
    PlanPreview {
        api_version: "gputenancy.io/v1alpha1".into(),
        kind: "PlanPreview".into(),
        taken_at: before.taken_at.map(|t| t.to_string()),
        outcome,
        exit_code: outcome.code(),
        manifests: proposal.manifests.clone(),
        profiles: capacity::profiles(&old, &new),
        tenants: capacity::tenants(&old, &new),
        pools: capacity::pools(&old, &new),
        estimate: estimate::estimate(&new, &changes, &evictions),
        notes: problem::notes(&new, &changes, &proposal.notes),
        changes,
        evictions,
        problems,
    }
}
