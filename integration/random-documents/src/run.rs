//! Runs a property with random choices.
#![allow(clippy::panic, reason = "a test ends there")]

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use proptest::{
    prelude::*,
    test_runner::{TestCaseResult, TestRunner},
};

use crate::Choices;

/// Most choices for one document.
const CHOICES: usize = 300;
/// Cases of a property, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 10_000;

/// Time spent in the decoder, and in the baseline that it is compared with.
#[derive(Debug, Default)]
pub struct Times {
    decoder: Cell<Duration>,
    baseline: Cell<Duration>,
}

impl Times {
    /// Measures the decoder.
    pub fn decoder<T>(&self, decode: impl FnOnce() -> T) -> T {
        measured(&self.decoder, decode)
    }

    /// Measures the baseline.
    pub fn baseline<T>(&self, decode: impl FnOnce() -> T) -> T {
        measured(&self.baseline, decode)
    }
}

fn measured<T>(total: &Cell<Duration>, run: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = run();
    total.set(total.get() + begun.elapsed());
    result
}

/// Runs a property 10,000 times, or as often as `PROPTEST_CASES` says, and prints the time of a case.
///
/// # Panics
/// If a case fails, with the smallest one that does.
pub fn check(name: &str, property: impl Fn(&mut Choices, &Times) -> TestCaseResult) {
    run(name, CASES, property);
}

/// The same with a tenth of the cases.
///
/// # Panics
/// If a case fails, with the smallest one that does.
pub fn check_slow(name: &str, property: impl Fn(&mut Choices, &Times) -> TestCaseResult) {
    run(name, CASES / 10, property);
}

fn run(name: &str, cases: u32, property: impl Fn(&mut Choices, &Times) -> TestCaseResult) {
    let given = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = given.map_or(cases, |given: u32| (given / (CASES / cases)).max(1));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let times = Times::default();
    let choices = (any::<u64>().no_shrink(), 0..CHOICES).prop_map(|(seed, left)| Choices::new(seed, left));
    if let Err(failure) = TestRunner::new(config).run(&choices, |mut choices| property(&mut choices, &times)) {
        panic!("{name}: {failure}");
    }
    let each = |total: &Cell<Duration>| total.get().as_secs_f64() * 1e6 / f64::from(cases.max(1));
    println!("{name}: {cases} cases, {:.1} µs each; baseline {:.1} µs", each(&times.decoder), each(&times.baseline));
}
