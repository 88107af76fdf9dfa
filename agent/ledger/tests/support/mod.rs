//! Many processes with many threads on one usage file, and a second account of what each really holds.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::{
    fs::OpenOptions,
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use gputenancy_ledger::{Ledger, Mapped, UNIT, Usage};

/// Numbers that processes share.
pub struct Shared(*const [AtomicU64; Shared::COUNT]);

// SAFETY: atomic numbers that stay mapped.
unsafe impl Sync for Shared {}

impl Shared {
    /// How many.
    pub const COUNT: usize = 512;

    /// Maps a file, which is created if it is missing.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).unwrap();
        file.set_len(4096).unwrap();
        let (size, rights) = (4096, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of an open file, which is never unmapped.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    pub fn get(&self, at: usize) -> &AtomicU64 {
        // SAFETY: mapped for ever, with this many numbers.
        let all = unsafe { &*self.0 };
        &all[at]
    }

    pub fn sum(&self) -> u64 {
        (0..Self::COUNT).map(|at| self.get(at).load(SeqCst)).sum()
    }
}

/// A generator of numbers that are the same for the same seed.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A child process that runs the body and then ends.
fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child opens files, maps memory and starts threads, all of which glibc permits after a fork of a program with threads, and does not
    // return into the test.
    match unsafe { libc::fork() } {
        0 => {
            // the process that kills gets the processor when it wants it
            // SAFETY: changes the priority of the child alone.
            unsafe { libc::nice(10) };
            body();
            // SAFETY: ends the process without running what the test has registered.
            unsafe { libc::_exit(0) }
        }
        pid => {
            assert!(pid > 0, "fork");
            pid
        }
    }
}

fn signal(pid: libc::pid_t, number: libc::c_int) {
    // SAFETY: a child that was not waited for, so that its number is its own.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

/// Waits until a child has ended, or with `WUNTRACED` stopped; returns its status.
fn wait(pid: libc::pid_t, options: libc::c_int) -> libc::c_int {
    let mut status = 0;
    // SAFETY: writes the status of a child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, options) }, pid);
    status
}

/// What the processes do.
#[derive(Clone, Copy)]
pub struct Plan {
    pub processes: usize,
    /// Threads of each.
    pub threads: u64,
    /// Bytes. Without a limit nothing is asked for: the two atomic additions of the second account are all that a pair costs.
    pub limit: Option<u64>,
    pub seed: u64,
}

/// A process: its threads reserve and release, and enter what they hold into one of the numbers, after the reservation and before the release. `operations`
/// of each thread; `None` until it is killed.
fn process(folder: &Path, real: &Shared, plan: Plan, at: usize, seed: u64, operations: Option<u64>) {
    let usage = Mapped::<Usage>::open(&folder.join("usage")).unwrap();
    let ledger = Ledger::join(&usage).unwrap();
    thread::scope(|scope| {
        for number in 0..plan.threads {
            let ledger = &ledger;
            let random = Random((seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
            scope.spawn(move || work(ledger, real, (plan, at), random, operations));
        }
    });
}

/// Index of the number with the sum of all processes, of which a check reads the sum after each addition.
const ALL: usize = Shared::COUNT - 1;
/// Index of the number of sums beyond the limit.
const BEYOND: usize = Shared::COUNT - 2;

fn work(ledger: &Ledger<'_>, real: &Shared, (plan, at): (Plan, usize), mut random: Random, operations: Option<u64>) {
    let mut held: Vec<u64> = Vec::new();
    let release = |bytes: u64| {
        real.get(if operations.is_some() { ALL } else { at }).fetch_sub(bytes, SeqCst);
        if plan.limit.is_some() {
            ledger.release(bytes);
        }
    };
    let mut done = 0;
    while operations.is_none_or(|operations| done < operations) {
        done += 1;
        let number = random.next();
        let bytes = (number % 64 + 1) * UNIT;
        if !number.is_multiple_of(3) && held.len() < 8 {
            if plan.limit.is_some_and(|limit| ledger.reserve(bytes, limit).is_err()) {
                continue;
            }
            if operations.is_none() {
                real.get(at).fetch_add(bytes, SeqCst);
            } else if real.get(ALL).fetch_add(bytes, SeqCst) + bytes > plan.limit.unwrap_or(u64::MAX) {
                real.get(BEYOND).fetch_add(1, SeqCst);
            }
            held.push(bytes);
        } else if let Some(bytes) = held.pop() {
            release(bytes);
        }
    }
    held.into_iter().for_each(release);
}

/// All threads together make so many operations, of which none goes beyond the limit, and nothing is left. Returns the number of refusals.
pub fn run_to_the_end(plan: Plan, operations: u64) -> u64 {
    let operations = operations.div_ceil(plan.processes as u64 * plan.threads);
    let folder = tempfile::tempdir().unwrap();
    let usage = Mapped::<Usage>::create(&folder.path().join("usage")).unwrap();
    let real = Shared::open(&folder.path().join("real"));
    let start = |at| fork(|| process(folder.path(), &real, plan, at, plan.seed ^ at as u64, Some(operations)));
    let children: Vec<libc::pid_t> = (0..plan.processes).map(start).collect();
    for child in children {
        assert_eq!(wait(child, 0), 0, "a child failed");
    }
    assert_eq!((real.get(BEYOND).load(SeqCst), real.get(ALL).load(SeqCst)), (0, 0), "beyond the limit, or left");
    assert_eq!(usage.used(), 0);
    usage.denied()
}

/// Kills processes at random moments and starts others in their places. Between kills all stop: what the living really hold is never more than the ledger
/// counts, and that is never more than the limit. In the end the balance is exact.
pub fn run_and_kill(plan: Plan, kills: u64) {
    let limit = plan.limit.expect("a limit");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    Mapped::<Usage>::create(&path).unwrap();
    let real = Shared::open(&folder.path().join("real"));
    let usage = Mapped::<Usage>::open(&path).unwrap();
    let own = Ledger::join(&usage).unwrap();
    own.reserve(10 * UNIT, limit).unwrap();
    let mut random = Random(plan.seed | 1);
    let start = |at, seed| fork(|| process(folder.path(), &real, plan, at, seed, None));
    let mut children: Vec<libc::pid_t> = (0..plan.processes).map(|at| start(at, random.next())).collect();
    for kill in 0..kills {
        thread::sleep(Duration::from_micros(random.next() % 1500));
        let at = usize::try_from(random.next()).unwrap() % children.len();
        signal(children[at], libc::SIGKILL);
        wait(children[at], 0);
        real.get(at).store(0, SeqCst);
        children[at] = start(at, random.next());
        match random.next() % 4 {
            // others go on, so that this may not find everything
            0 => own.recover(),
            1 if own.reserve(UNIT, limit).is_ok() => own.release(UNIT),
            _ => {}
        }
        if kill % 32 == 0 {
            for child in &children {
                signal(*child, libc::SIGSTOP);
            }
            for child in &children {
                wait(*child, libc::WUNTRACED);
            }
            let (held, used) = (real.sum() + own.held(), usage.used());
            assert!(held <= used && used <= limit, "kill {kill}: {held} held, {used} counted of {limit}");
            for child in &children {
                signal(*child, libc::SIGCONT);
            }
        }
    }
    for child in children {
        signal(child, libc::SIGKILL);
        wait(child, 0);
    }
    own.recover();
    assert_eq!((usage.used(), own.held()), (10 * UNIT, 10 * UNIT));
    own.reserve(limit - 10 * UNIT, limit).expect("all that is left");
    own.release(limit);
    assert_eq!((usage.used(), own.held()), (0, 0));
}
