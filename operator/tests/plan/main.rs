//! The pure core: plans over small fleets, and changes in a small world that fails on purpose.

mod boards;
mod brute;
mod change;
mod fleet;
mod planner;
mod properties;
mod world;

/// Few cases by default, because every change of the code runs them; `PROPTEST_CASES` asks for more.
fn config() -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(128);
    proptest::test_runner::Config { cases, failure_persistence: None, ..proptest::test_runner::Config::default() }
}
