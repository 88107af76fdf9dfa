//! Plans over fleets, small and large.

// a test that meets a surprise shall stop there and say where
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod enforcement;
mod incremental;
mod leftovers;
mod marked;
mod optimum;
mod order;
mod planner;
mod program;
mod properties;
mod searched;
mod shares;
mod silicon_rules;
mod stuck;
mod support;

/// Few cases by default, because every change of the code runs them; `PROPTEST_CASES` asks for more, in `make test-all` for 10,000.
fn config() -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    proptest::test_runner::Config { cases, failure_persistence: None, ..proptest::test_runner::Config::default() }
}

/// Number of fleets that are compared with an exact solver: all from 500 cases on, else in proportion.
fn fleets(all: u32) -> u32 {
    (all * config().cases.min(500) / 500).max(1)
}
