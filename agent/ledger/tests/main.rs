//! The ledger: in virtual time, in every order of its steps, and with real processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_precision_loss,
    unsafe_code,
    reason = "a test ends there"
)]

#[path = "../src/accounts.rs"]
#[allow(dead_code, reason = "the model has no files")]
mod accounts;
mod engine;
mod model;
#[path = "../src/owner.rs"]
#[allow(dead_code, reason = "the model has no files")]
mod owner;
mod processes;
mod support;
// loom's types, with which `model` compiles the source files of the ledger
#[path = "model/sync.rs"]
mod sync;
#[path = "../src/word.rs"]
mod word;
