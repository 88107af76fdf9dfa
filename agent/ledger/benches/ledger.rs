//! Cost of one reservation with its release, compared with the two atomic additions that any count of memory needs.
//!
//! `LEDGER_OPERATIONS=1000000 cargo bench --bench ledger` has 64 processes with 16 threads make that many operations each instead, and
//! `LEDGER_KILLS=10000` kills as many processes at random moments. Either ends with an error if the balance is not exact.
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

criterion_group!(benches, pairs);

/// A number from the environment.
fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn main() {
    // so little that it is reached all the time
    let plan = Plan { processes: 64, threads: 16, limit: 1024 * UNIT, seed: asked("LEDGER_SEED").unwrap_or(1) };
    let (operations, kills) = (asked("LEDGER_OPERATIONS"), asked("LEDGER_KILLS"));
    if let Some(operations) = operations {
        let begin = Instant::now();
        let denied = run_to_the_end(plan, operations);
        println!("{operations} operations of each of 64 x 16 threads: {denied} refused, {:?}", begin.elapsed());
    }
    if let Some(kills) = kills {
        let begin = Instant::now();
        run_and_kill(plan, kills);
        println!("{kills} kills: balance exact, {:?}", begin.elapsed());
    }
    if operations.is_none() && kills.is_none() {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
}
