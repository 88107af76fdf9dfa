//! The change machine: one GPU from one layout to another under running work, decided without any I/O or clock.
//!
//! Everything it knows is in `GpuNode.spec` (the journal), in `GpuNode.status` and in the pods: there is no state to lose.

mod canary;
mod carve;
mod draft;
mod drain;
mod limits;
mod model;
mod outcome;
mod rest;
mod view;
mod window;

use gputenancy_crds::ChangePhase;
use view::View;

pub use limits::{Turn, admit};
pub use model::{
    Canary, CanaryPod, Controller, Decision, Event, Eviction, Fate, Managed, Notice, Observation, PodFacts, Policy,
    Progress, Refusal,
};

pub use window::{Window, WindowError, Windows};

/// Decides what to do now for one GPU.
pub fn step(observation: &Observation<'_>) -> Decision {
    let Some(view) = View::of(observation) else { return Decision::default() };
    let Some(change) = view.change() else { return rest::steady(&view) };
    match change.phase {
        ChangePhase::Noticed | ChangePhase::Held | ChangePhase::Evicting | ChangePhase::Idle => {
            drain::step(&view, change)
        }
        ChangePhase::Partitioning => carve::partitioning(&view, change),
        ChangePhase::Trying => canary::trying(&view, change),
        ChangePhase::Verifying => carve::verifying(&view, change),
        ChangePhase::RollingBack => carve::rolling_back(&view, change),
        ChangePhase::RolledBack => rest::rolled_back(&view, change),
        ChangePhase::Stuck => rest::stuck(&view, change),
    }
}
