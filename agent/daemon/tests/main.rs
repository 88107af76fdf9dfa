//! The agent on the simulated driver, and what it decodes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

mod allocation;
#[path = "../../../integration/sim/nvml-sim/tests/support/built.rs"]
#[allow(dead_code, reason = "test programs of other crates use the rest")]
mod built;
mod cdi;
mod common;
mod connections;
mod decoding;
mod draws;
mod drift;
mod driver_limits;
mod faults;
mod generated;
mod handover;
mod live_resize;
mod lost_spec;
mod mps;
mod simulated;
mod usage;
#[path = "../../../integration/sim/nvml-sim/tests/support/witness.rs"]
#[allow(dead_code, reason = "test programs of other crates use the rest")]
mod witness;
