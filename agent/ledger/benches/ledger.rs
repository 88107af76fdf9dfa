//! Cost of one reservation with its release, compared with the two atomic additions that any count of memory needs.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark ends there")]

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use criterion::{Criterion, criterion_group, criterion_main};
use gputenancy_ledger::{Ledger, Mapped, Usage};

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
criterion_main!(benches);
