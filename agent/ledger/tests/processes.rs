//! Real processes with many threads on one usage file: no reservation beyond the limit, and a balance that is exact after any of them was
//! killed at any point. The benchmark makes the same with more of everything.

use crate::support::{Plan, run_and_kill, run_to_the_end};
use gputenancy_ledger::UNIT;

/// So little that it is reached all the time.
const SCARCE: u64 = 1024 * UNIT;
const AMPLE: u64 = 1 << 20;

#[test]
fn a_million_operations_of_64_processes_with_16_threads_never_exceed_the_limit() {
    let plan = Plan { processes: 64, threads: 16, limit: Some(SCARCE), seed: 1 };
    assert!(run_to_the_end(plan, 1_000_000) > 0, "the limit was never reached");
}

#[test]
fn balance_is_exact_after_processes_were_killed_at_random_points() {
    run_and_kill(Plan { processes: 3, threads: 2, limit: Some(AMPLE), seed: 0x5eed_0001 }, 500);
}

#[test]
fn balance_is_exact_after_processes_were_killed_that_reach_the_limit() {
    run_and_kill(Plan { processes: 3, threads: 4, limit: Some(SCARCE / 4), seed: 0x5eed_0002 }, 1500);
}
