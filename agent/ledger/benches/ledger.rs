//! Cost of one reservation with its release, compared with the two atomic additions that any count of memory needs.
//!
//! `LEDGER_OPERATIONS=10000000 cargo bench --bench ledger` has 64 processes with 16 threads make that many operations together instead, and the same
//! without the ledger. `LEDGER_KILLS=10000` kills as many processes at random moments. Either ends with an error if the balance is not exact.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a benchmark ends there"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Instant,
};

use criterion::{Criterion, criterion_group};
use gputenancy_ledger::{Ledger, Mapped, UNIT, Usage};
use support::{Plan, run_and_kill, run_to_the_end};

fn pairs(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    Mapped::<Usage>::create(&path).unwrap();
    let usage = Mapped::<Usage>::open(&path).unwrap();
    let ledger = Ledger::join(&usage).unwrap();
    let mut group = criterion.benchmark_group("reserve and release");
    let count = AtomicU64::new(0);
    group.bench_function("two atomic additions", |bencher| {
        bencher.iter(|| {
            count.fetch_add(black_box(4096), SeqCst);
            count.fetch_sub(black_box(4096), SeqCst);
        });
    });
    group.bench_function("ledger", |bencher| {
        bencher.iter(|| {
            ledger.reserve(black_box(4096), 1 << 30).unwrap();
            ledger.release(black_box(4096));
        });
    });
    group.finish();
}

/// A refusal looks at the lock of each process that holds memory.
fn refusals(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    Mapped::<Usage>::create(&path).unwrap();
    let mut group = criterion.benchmark_group("refusal");
    let mut open: Vec<Mapped<Usage>> = Vec::new();
    for others in [1_usize, 7, 63] {
        while open.len() < others {
            let other = Mapped::<Usage>::open(&path).unwrap();
            Ledger::join(&other).unwrap().reserve(UNIT, u64::MAX).unwrap();
            open.push(other);
        }
        let usage = Mapped::<Usage>::open(&path).unwrap();
        let ledger = Ledger::join(&usage).unwrap();
        let limit = others as u64 * UNIT;
        group.bench_function(format!("next to {others} processes that hold memory"), |bencher| {
            bencher.iter(|| ledger.reserve(black_box(UNIT), limit).unwrap_err());
        });
    }
    group.finish();
}

criterion_group!(benches, pairs, refusals);

/// A number from the environment.
fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn timed<R>(run: impl FnOnce() -> R) -> (R, f64) {
    let begin = Instant::now();
    let result = run();
    (result, begin.elapsed().as_secs_f64())
}

/// Nanoseconds of one of a million pairs.
fn pair(mut run: impl FnMut()) -> f64 {
    let million = || (0..1_000_000).for_each(|_| run());
    timed(million).1 * 1000.0
}

/// The cost of a pair, and its ratio to two atomic additions: median of five rounds with both.
fn print_ratio() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    Mapped::<Usage>::create(&path).unwrap();
    let usage = Mapped::<Usage>::open(&path).unwrap();
    let ledger = Ledger::join(&usage).unwrap();
    let count = AtomicU64::new(0);
    let mut rounds = [(0.0, 0.0); 5].map(|_| {
        let additions = pair(|| {
            count.fetch_add(black_box(4096), SeqCst);
            count.fetch_sub(black_box(4096), SeqCst);
        });
        let ledger = pair(|| {
            ledger.reserve(black_box(4096), 1 << 30).unwrap();
            ledger.release(black_box(4096));
        });
        (ledger / additions, ledger)
    });
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("a pair: {:.1} ns, {:.1} times two atomic additions", rounds[2].1, rounds[2].0);
}

fn main() {
    let seed = asked("LEDGER_SEED").unwrap_or(1);
    let (operations, kills) = (asked("LEDGER_OPERATIONS"), asked("LEDGER_KILLS"));
    if let Some(operations) = operations {
        // so little that it is reached all the time
        let plan = Plan { processes: 64, threads: 16, limit: Some(1024 * UNIT), seed };
        let (denied, took) = timed(|| run_to_the_end(plan, operations));
        let (_, alone) = timed(|| run_to_the_end(Plan { limit: None, ..plan }, operations));
        println!(
            "{operations} operations of 64 x 16 threads: {denied} refused, none beyond the limit, nothing left, {took:.1} s"
        );
        println!("the same with two atomic additions instead: {alone:.1} s, ratio {:.1}", took / alone);
    }
    if let Some(kills) = kills {
        // few threads, because each of a killed process ends when it gets the processor
        let plan = Plan { processes: 3, threads: 4, limit: Some(256 * UNIT), seed };
        let ((), took) = timed(|| run_and_kill(plan, kills));
        println!("{kills} kills: balance exact, {took:.1} s");
    }
    if operations.is_none() && kills.is_none() {
        benches();
        Criterion::default().configure_from_args().final_summary();
        print_ratio();
    }
}
