//! Decisions as pure functions: the change machine, and layouts for NVIDIA's MIG manager.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic as tests do"
)]

mod change;
mod decoding;
