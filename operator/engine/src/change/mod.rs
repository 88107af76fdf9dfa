//! The change machine: one GPU from one layout to another under running work, without I/O, clock or own state.
//!
//! It derives everything from `GpuNode.spec` (the journal), `GpuNode.status` and the pods. A change drains devices ([`drain`]), waits for
//! the new layout ([`partition`]), verifies it with canary pods ([`canary`]) and ends, or returns to the old layout ([`rollback`]).
//! GPUs without a change in progress, and failed changes, are handled in [`settled`].

mod admission;
mod canary;
mod context;
mod draft;
mod drain;
mod failure;
mod partition;
mod policy;
mod rollback;
mod settled;
mod types;
mod window;

use gputenancy_crds::ChangePhase;

pub use admission::{ChangeCandidate, admit, admit_node};
use context::ChangeContext;
pub use policy::Policy;
pub use types::{
    CanaryOutcome, CanaryPod, CanaryRequest, ChangeDecision, ChangeObservation, ChangeProgress, Eviction,
    EvictionNotice, MigManagerContext, PodController, PodFacts, Refusal,
};
pub use window::{Window, WindowError, Windows};

/// Decides what to do now for one GPU.
pub fn step(observation: &ChangeObservation<'_>) -> ChangeDecision {
    let Some(ctx) = ChangeContext::of(observation) else { return ChangeDecision::default() };
    let Some(change) = ctx.change() else { return settled::steady(&ctx) };
    match change.phase {
        ChangePhase::Noticed | ChangePhase::Held | ChangePhase::Evicting | ChangePhase::Idle => {
            drain::step(&ctx, change)
        }
        ChangePhase::Partitioning => partition::partitioning(&ctx, change),
        ChangePhase::Canary => canary::step(&ctx, change),
        ChangePhase::Verifying => partition::verifying(&ctx, change),
        ChangePhase::RollingBack => rollback::rolling_back(&ctx, change),
        ChangePhase::RolledBack => settled::rolled_back(&ctx, change),
        ChangePhase::Stuck => settled::stuck(&ctx, change),
    }
}
