//! Real processes with many threads on one usage file: no reservation beyond the limit, and a balance that is exact after any of them was
//! killed at any point. The benchmark makes the same with more of everything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unsafe_code,
    reason = "a test ends there"
)]

mod support;

use gputenancy_ledger::UNIT;
use support::{Plan, run_and_kill, run_to_the_end};

/// So little that it is reached all the time.
const SCARCE: u64 = 256 * UNIT;
const AMPLE: u64 = 1 << 20;

#[test]
fn many_threads_of_many_processes_never_exceed_the_limit() {
    let plan = Plan { processes: 16, threads: 16, limit: SCARCE, seed: 1 };
    assert!(run_to_the_end(plan, 300) > 0, "the limit was never reached");
}

#[test]
fn balance_is_exact_after_processes_were_killed_at_random_points() {
    run_and_kill(Plan { processes: 3, threads: 2, limit: AMPLE, seed: 0x5eed_0001 }, 500);
}

#[test]
fn balance_is_exact_after_processes_were_killed_that_reach_the_limit() {
    run_and_kill(Plan { processes: 3, threads: 4, limit: SCARCE, seed: 0x5eed_0002 }, 1500);
}
