//! The shim between programs and the simulated driver, each program in a mount namespace as in a container.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test ends there"
)]

mod allocations;
mod export_tables;
mod exports;
mod families;
mod faults;
mod graph_oracle;
mod graphs;
mod imports;
mod limits;
mod pools;
mod portable;
mod routes;
// NVIDIA's runtimes are fetched for this processor alone
#[cfg(target_arch = "x86_64")]
mod runtimes;
mod sequences;
mod sharing;
mod support;
