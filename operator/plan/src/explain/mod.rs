//! Sentences for people: why a GPU changes, and what the fleet cannot give.
//!
//! `reason` explains the target of a GPU, on request: plans are made often and read seldom. `shortage` explains demand that is not
//! served and profiles that a pool cannot offer, `enforcement` shares that nodes cannot limit; `remedy` finds the GPU on which the fewest
//! devices are in the way.

mod enforcement;
mod reason;
mod remedy;
mod shortage;

pub use self::reason::explain;
pub(crate) use self::shortage::problems;
