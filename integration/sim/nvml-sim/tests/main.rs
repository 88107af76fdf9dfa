//! The simulated NVML: its C ABI, what real processes do to it, and what NVIDIA's programs read from it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

mod abi;
mod activity;
#[path = "support/built.rs"]
mod built;
mod callers;
mod common;
mod conformance;
mod device_plugin;
mod processes;
#[path = "support/witness.rs"]
#[allow(dead_code, reason = "test programs of other crates use the rest")]
mod witness;
mod wrapper;
