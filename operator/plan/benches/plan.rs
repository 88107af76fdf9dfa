//! How long a plan takes: a small fleet against full enumeration, and a larger one by itself.

// a benchmark that cannot build its fleet has nothing to measure
#![allow(missing_docs, dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../tests/plan/support/boards.rs"]
mod boards;
#[path = "../tests/plan/support/brute.rs"]
mod brute;
#[path = "../tests/plan/support/fleet.rs"]
mod fleet;
#[path = "../tests/plan/support/scale.rs"]
mod scale;

use std::{
    collections::BTreeMap,
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use fleet::Fleet;
use gputenancy_plan::{Snapshot, plan};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// So many GPUs on nodes of eight, a pod on every second instance, and a demand that has shifted towards large ones.
fn fleet(gpus: usize, small: i32, large: i32) -> Fleet {
    let mut fleet = Fleet::default().mig("small", "1g.10gb").mig("large", "3g.40gb").whole("gpu");
    fleet = fleet.pool("p", &["small", "large", "gpu"]);
    for node in 0..gpus.div_ceil(8) {
        let boards = vec![boards::a100(); (gpus - node * 8).min(8)];
        fleet = fleet.node(&format!("n{node:03}"), "p", &boards);
    }
    fleet = fleet.tenant("t", &[("small", small), ("large", large)]).settle();
    for pod in 0..small / 2 {
        assert!(fleet.start("t", &format!("pod-{pod}"), "nvidia.com/mig-1g.10gb"));
    }
    let more = i32::try_from(gpus).unwrap() / 2;
    fleet.tenant("t", &[("small", small), ("large", large + more)])
}

/// The obvious way: every layout of every GPU, one with the other.
fn enumerate(used: &[brute::Instances], wanted: &BTreeMap<String, usize>) -> Option<usize> {
    let layouts: Vec<Vec<brute::Instances>> =
        used.iter().map(|u| brute::layouts(&boards::a100(), &["1g.10gb", "3g.40gb"], u)).collect();
    let mut fleets: Vec<(Vec<&brute::Instances>, usize)> = vec![(vec![], 0)];
    for (layouts, pods) in layouts.iter().zip(used) {
        let evicted = |layout: &brute::Instances| pods.iter().filter(|p| !layout.contains(p)).count();
        let extend = |(fleet, cost): &(Vec<_>, usize)| -> Vec<_> {
            let one = |layout| (fleet.iter().copied().chain([layout]).collect(), cost + evicted(layout));
            layouts.iter().map(one).collect()
        };
        fleets = fleets.iter().flat_map(extend).collect();
    }
    let serves = |fleet: &[&brute::Instances]| {
        wanted.iter().all(|(name, n)| fleet.iter().flat_map(|l| l.iter()).filter(|(p, _)| p == name).count() >= *n)
    };
    fleets.iter().filter(|(fleet, _)| serves(fleet)).map(|(_, cost)| *cost).min()
}

fn benchmark(c: &mut Criterion) {
    let snapshots: BTreeMap<usize, Snapshot> = [(2, 4, 1), (8, 14, 4), (64, 112, 32)]
        .into_iter()
        .map(|(gpus, s, l)| (gpus, fleet(gpus, s, l).snapshot().0))
        .collect();
    for (gpus, snapshot) in &snapshots {
        c.bench_function(&format!("plan of {gpus} GPUs"), |b| b.iter(|| plan(black_box(snapshot))));
    }
    let used = vec![vec![("1g.10gb".to_owned(), 0), ("1g.10gb".to_owned(), 1)], vec![]];
    let wanted = [("1g.10gb".to_owned(), 4), ("3g.40gb".to_owned(), 2)].into();
    let (naive, _) = times(|| assert_eq!(black_box(enumerate(&used, &wanted)), Some(0)));
    let (ours, _) = times(|| plan(&snapshots[&2]));
    println!(
        "2 GPUs: full enumeration {naive:?}, plan {ours:?}, ratio {:.1}",
        naive.as_secs_f64() / ours.as_secs_f64()
    );
}

/// 5,000 nodes of eight GPUs, 10,000 tenants.
fn large(c: &mut Criterion) {
    let before = MEMORY.current_usage();
    let settled = scale::fleet();
    let snapshot = MEMORY.current_usage() - before;
    // more 3g.40gb than are free: GPUs are partitioned again
    let grown = scale::grown(&settled, 2_000, 5);
    let mut group = c.benchmark_group("40,000 GPUs, 10,000 tenants");
    group.sample_size(10);
    group.bench_function("a copy of the snapshot, the baseline", |b| b.iter(|| black_box(&settled).clone()));
    group.bench_function("full plan, nothing to do", |b| b.iter(|| plan(black_box(&settled))));
    group.bench_function("full plan, 10,000 devices more", |b| b.iter(|| plan(black_box(&grown))));
    group.finish();
    let base = times(|| settled.clone());
    let report = |what: &str, (clock, processor): (Duration, Duration)| {
        let ratio = processor.as_secs_f64() / base.1.as_secs_f64();
        println!("40,000 GPUs, {what}: {clock:?}, {processor:?} of it on a processor, {ratio:.4} copies");
    };
    report("a copy of the snapshot", base);
    report("full plan, nothing to do", times(|| plan(&settled)));
    report("full plan, 10,000 devices more", times(|| plan(&grown)));
    let before = MEMORY.current_usage();
    let changed = plan(&grown);
    let result = MEMORY.current_usage() - before;
    let mib = |bytes: usize| f64::from(u32::try_from(bytes >> 10).unwrap()) / 1024.0;
    println!("memory: snapshot {:.1} MiB, plan {:.1} MiB", mib(snapshot), mib(result));
    assert!(changed.gpus.values().any(|g| g.changed));
    println!(
        "10,000 devices more: {} GPUs change, {} problems",
        changed.gpus.values().filter(|g| g.changed).count(),
        changed.problems.len()
    );
}

/// Time of one round: by the clock, and on a processor, which other work on the machine delays less.
fn times<T>(mut work: impl FnMut() -> T) -> (Duration, Duration) {
    const ROUNDS: u32 = 20;
    let (start, processor) = (Instant::now(), on_processor());
    (0..ROUNDS).for_each(|_| drop(black_box(work())));
    (start.elapsed() / ROUNDS, on_processor().saturating_sub(processor) / ROUNDS)
}

/// Time that this thread has spent on a processor, as Linux counts it.
fn on_processor() -> Duration {
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(counts.split_whitespace().next().unwrap().parse().unwrap())
}

criterion_group!(benches, benchmark, large);
criterion_main!(benches);
