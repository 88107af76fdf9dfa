//! The change machine: one GPU from one layout to another under running work, decided without any I/O or clock.
//!
//! Everything it knows is in `GpuNode.spec` (the journal), in `GpuNode.status` and in the pods: there is no state to lose.

mod limits;
mod model;

pub use limits::{Turn, admit};
pub use model::{
    BarePods, Controller, Decision, Event, Eviction, Notice, Observation, PodFacts, Policy, Progress, Refusal,
};

/// Decides what to do now for one GPU.
pub fn step(observation: &Observation<'_>) -> Decision {
    let _ = observation;
    Decision::default()
}
