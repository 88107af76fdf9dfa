//! The change machine in a small world where everything can crash: ends, evictions, holds and heat are checked there.
//!
//! `CHANGE_SEEDS` says how many seeds of mixed faults are tried, `CHANGE_SEED` replays one and tells its story. With
//! `CHANGE_CRASHES=2` every state after a crash is struck again.

mod actors;
mod canary;
mod failures;
mod notices;
mod outcomes;
mod scenario;
mod seeds;
mod shares;
mod single;
mod small;
mod windows;
mod world;

/// Few cases by default, because every change of the code runs them; `PROPTEST_CASES` asks for more.
fn config() -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(128);
    proptest::test_runner::Config { cases, failure_persistence: None, ..proptest::test_runner::Config::default() }
}
