//! The simulated boards and their driver.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

mod combinations;
mod failures;
mod faults;
mod mixed_boards;
mod mps;
mod properties;
mod run;
mod seven;
mod state;
mod transcripts;
mod visibility;
