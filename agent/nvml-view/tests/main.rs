//! The view between programs and the simulated driver.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test ends there"
)]

#[path = "../../../integration/sim/nvml-sim/tests/support/built.rs"]
#[allow(dead_code, reason = "test programs of other crates use the rest")]
mod built;
mod exports;
mod view;
