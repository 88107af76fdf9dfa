//! Shares of one GPU in virtual time: programs that launch as the shim does, an engine that runs one kernel after another, and the arbiter of the
//! agent. Nothing waits for a clock, so that the figures are exact on any machine.

use std::path::Path;

use gputenancy_ledger::{Arbiter, LAG, Launch, Limits, Mapped, Member, OnMissing, Pace, Turn, Usage, Used};

const MS: u64 = 1_000_000;
const PERIOD: u64 = 20 * MS;
/// Step of the virtual time.
const STEP: u64 = MS / 50;
/// Begin of the virtual time: a machine has been up for a while.
const BEGIN: u64 = 10_000 * MS;
/// Between two rounds of the arbiter, and between two looks of a program at the GPU, as in agent and shim.
const ROUND: u64 = 2 * MS;
const LOOK: u64 = MS / 2;
/// Works that wait for the GPU, and the longest wait with the same limits, as in the shim.
const OUTSTANDING: usize = 2;
const NAP: u64 = 20 * MS;

/// A program on a share that launches kernels of one length as fast as it may, from `wakes` on.
struct Program {
    limits: Mapped<Limits>,
    usage: Mapped<Usage>,
    kernel: u64,
    wakes: u64,
    /// Works that the GPU has not ended, and those that are not charged.
    pending: Vec<Used>,
    ended: Vec<Used>,
    arrived: u64,
    looks: u64,
    /// When the GPU began each kernel.
    begun: Vec<u64>,
}

impl Program {
    /// Settles, and launches if it may.
    fn run(&mut self, now: u64, free: &mut u64) {
        if now < self.wakes || now < self.looks {
            return;
        }
        let limits = &self.limits;
        self.usage.want(now);
        let pace = limits.pace_at(|| now).unwrap();
        let known = limits.relayed(now);
        let (done, pending) = self.pending.iter().partition::<Vec<Used>, _>(|used| used.end <= now);
        for used in &done {
            self.usage.record(used.launched, used.end);
        }
        self.pending = pending;
        self.ended.extend(done);
        let is_known = |used: &Used| known.is_none_or(|until| until >= used.end + LAG);
        let (charged, ended) = self.ended.iter().partition::<Vec<Used>, _>(|used| is_known(used));
        self.ended = ended;
        for used in charged {
            let waited = known.map(|_| limits.waited_until(used.launched));
            self.usage.charge_time(&used, waited, pace.percent);
        }
        let since = self.pending.first().map_or(now, |used| used.launched);
        let before = (self.pending.len() as u64 * self.kernel.max(MS / 2)).saturating_sub(now - since);
        if self.pending.len() >= OUTSTANDING {
            self.looks = now + MS / 10;
            return;
        }
        let launch = Launch { paid: self.usage.paid(), before, mean: self.kernel, shared: known.is_some() };
        let wait = pace.wait(now, &launch);
        if wait > 0 {
            let look = if known.is_some() && !self.pending.is_empty() { before.max(LOOK) } else { NAP };
            self.looks = now + wait.min(look).min(NAP);
            return;
        }
        let begin = (*free).max(now);
        *free = begin + self.kernel;
        self.begun.push(begin);
        let start = self.pending.last().map_or(now, |used| used.end);
        self.pending.push(Used { arrived: self.arrived, launched: now, start, end: *free });
        self.arrived = now;
    }
}

struct Gpu {
    _root: tempfile::TempDir,
    programs: Vec<Program>,
    arbiter: Option<Arbiter>,
    now: u64,
    free: u64,
}

/// A share: percent, whether it may use idle time, milliseconds of a kernel.
type Share = (u64, bool, u64);

impl Gpu {
    fn new(shares: &[Share], arbitrated: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (mut programs, mut members, mut start) = (Vec::new(), Vec::new(), 0);
        for (at, (percent, burst, kernel)) in shares.iter().enumerate() {
            let file = |name: &str| root.path().join(format!("{at}-{name}"));
            let turn = Turn { period: PERIOD, start, length: PERIOD / 100 * percent };
            start += turn.length;
            let pace = Pace { percent: *percent, turn: Some(turn), burst: *burst };
            programs.push(program(&file("limits"), &file("usage"), pace, kernel * MS));
            members.push(Member { limits: file("limits"), usage: file("usage"), pace, priority: 0 });
        }
        let arbiter = arbitrated.then(|| Arbiter::new(members));
        Self { _root: root, programs, arbiter, now: BEGIN, free: BEGIN }
    }

    fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            if let Some(arbiter) = self.arbiter.as_mut().filter(|_| self.now.is_multiple_of(ROUND)) {
                arbiter.arbitrate(self.now);
            }
            // two programs never launch in the same nanosecond
            for (at, program) in (0..).zip(&mut self.programs) {
                program.run(self.now + at, &mut self.free);
            }
            self.now += STEP;
        }
    }

    /// Percent of the last `time` that each program had of the GPU.
    fn parts(&self, time: u64) -> Vec<f64> {
        let from = self.now - time;
        let part = |program: &Program| {
            let kernels = program.begun.iter().filter(|begin| **begin >= from).count() as u64;
            (kernels * program.kernel * 100) as f64 / time as f64
        };
        self.programs.iter().map(part).collect()
    }
}

fn program(limits: &Path, usage: &Path, pace: Pace, kernel: u64) -> Program {
    let limits = Mapped::<Limits>::create(limits).unwrap();
    limits.write("GPU-a", 1 << 30, 0, OnMissing::Deny);
    limits.set_pace(Some(pace));
    let usage = Mapped::<Usage>::create(usage).unwrap();
    let (pending, ended, begun) = Default::default();
    Program { limits, usage, kernel, wakes: BEGIN, pending, ended, arrived: BEGIN, looks: 0, begun }
}

/// The parts that busy programs reach, of which each differs by at most two percentage points from its share.
fn reach_their_parts(shares: &[Share]) {
    let mut gpu = Gpu::new(shares, true);
    gpu.run(10_000 * MS);
    let reached = gpu.parts(9_000 * MS);
    for ((percent, ..), got) in shares.iter().zip(&reached) {
        assert!((got - *percent as f64).abs() <= 2.0, "{shares:?}: {reached:?}");
    }
}

#[test]
fn shares_reach_their_parts_with_kernels_of_any_length() {
    for parts in [[30, 70], [10, 90]] {
        for kernels in [[1, 1], [5, 5], [20, 20], [1, 20], [20, 1], [60, 5]] {
            reach_their_parts(&[(parts[0], false, kernels[0]), (parts[1], false, kernels[1])]);
        }
    }
    for kernels in [[1, 1, 1], [5, 5, 5], [20, 20, 20], [1, 5, 20]] {
        reach_their_parts(&[(20, false, kernels[0]), (30, false, kernels[1]), (50, false, kernels[2])]);
    }
}

#[test]
fn without_the_agent_a_share_gets_at_most_its_part() {
    for kernels in [[1, 1], [5, 5], [20, 20], [1, 20]] {
        let mut gpu = Gpu::new(&[(30, true, kernels[0]), (70, true, kernels[1])], false);
        gpu.run(10_000 * MS);
        let reached = gpu.parts(9_000 * MS);
        assert!(reached[0] <= 31.0 && reached[1] <= 71.0, "{kernels:?}: {reached:?}");
    }
}

#[test]
fn busy_share_has_the_gpu_while_its_neighbour_is_idle() {
    for kernel in [1, 5, 20] {
        let mut gpu = Gpu::new(&[(30, true, kernel), (70, true, 1)], true);
        gpu.programs[1].wakes = u64::MAX;
        gpu.run(3_000 * MS);
        let reached = gpu.parts(2_000 * MS);
        assert!(reached[0] > 90.0, "{kernel} ms: {reached:?}");
        // a strict one does not
        let mut gpu = Gpu::new(&[(30, false, kernel), (70, true, 1)], true);
        gpu.programs[1].wakes = u64::MAX;
        gpu.run(3_000 * MS);
        assert!(gpu.parts(2_000 * MS)[0] <= 32.0, "{kernel} ms");
    }
}

#[test]
fn busy_shares_that_may_burst_reach_their_parts() {
    for kernels in [[1, 1], [5, 5], [20, 20], [1, 20]] {
        reach_their_parts(&[(30, true, kernels[0]), (70, true, kernels[1])]);
    }
}

#[test]
fn neighbour_that_has_work_again_gets_the_gpu_within_two_kernels_and_thirty_milliseconds() {
    for kernel in [1, 5, 20] {
        for offset in [0, 3, 7, 13, 19] {
            let mut gpu = Gpu::new(&[(30, true, kernel), (70, true, 1)], true);
            let wakes = BEGIN + (2_000 + offset) * MS;
            (gpu.programs[1].wakes, gpu.programs[1].arrived) = (wakes, wakes);
            gpu.run(3_000 * MS);
            let waited = gpu.programs[1].begun[0] - wakes;
            assert!(waited <= (30 + 2 * kernel) * MS, "{kernel} ms, {offset}: {waited}");
        }
    }
}
