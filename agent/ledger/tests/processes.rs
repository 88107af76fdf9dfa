//! Real processes with many threads on one usage file: no reservation beyond the limit, and a balance that is exact after any of them was
//! killed at any point.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code, reason = "a test ends there")]

use std::{
    env,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use gputenancy_ledger::{Ledger, Mapped, UNIT, Usage};

/// Variable with the folder of a child process.
const FOLDER: &str = "LEDGER_FOLDER";
/// Variable with the operations of each of its threads; 0: until it is killed.
const OPERATIONS: &str = "LEDGER_OPERATIONS";
/// Variable with the limit in bytes.
const LIMIT: &str = "LEDGER_LIMIT";
const THREADS: u64 = 16;
/// So little that it is reached all the time.
const SCARCE: u64 = 256 * UNIT;
const AMPLE: u64 = 1 << 20;

/// What is really held: a second account, which a test checks without the ledger.
struct Real(memmap::Shared);

mod memmap {
    use std::{fs::OpenOptions, os::fd::AsRawFd, path::Path, sync::atomic::AtomicU64};

    /// One number that processes share.
    pub struct Shared(*const AtomicU64);

    // SAFETY: an atomic number that stays mapped.
    unsafe impl Sync for Shared {}

    impl Shared {
        pub fn open(path: &Path) -> Self {
            let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).unwrap();
            file.set_len(4096).unwrap();
            let (size, rights) = (4096, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a new mapping of an open file, which is never unmapped.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Self(at.cast())
        }

        pub fn get(&self) -> &AtomicU64 {
            // SAFETY: mapped for ever.
            unsafe { &*self.0 }
        }
    }
}

impl Real {
    fn of(folder: &Path) -> Self {
        Self(memmap::Shared::open(&folder.join("real")))
    }

    fn get(&self) -> &AtomicU64 {
        self.0.get()
    }
}

fn open(folder: &Path) -> Mapped<Usage> {
    Mapped::<Usage>::open(&folder.join("usage")).unwrap()
}

/// A child: this program, with only the test below.
fn child(folder: &Path, operations: u64, limit: u64) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--nocapture"]).stdout(Stdio::null());
    command.env(FOLDER, folder).env(OPERATIONS, operations.to_string()).env(LIMIT, limit.to_string()).spawn().unwrap()
}

/// Reserves and releases in many threads, as a child process.
#[test]
fn child_process() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let number = |variable| env::var(variable).unwrap().parse::<u64>().unwrap();
    let (operations, limit) = (number(OPERATIONS), number(LIMIT));
    let (usage, real) = (open(folder), Real::of(folder));
    let ledger = Ledger::join(&usage).expect("a slot");
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (ledger, real) = (&ledger, &real);
            scope.spawn(move || work(ledger, real, (operations, limit), number));
        }
    });
}

fn work(ledger: &Ledger<'_>, real: &Real, (operations, limit): (u64, u64), seed: u64) {
    let mut held: Vec<u64> = Vec::new();
    let mut random = (seed * 7919 + u64::from(std::process::id())) | 1;
    let mut done = 0;
    while operations == 0 || done < operations {
        done += 1;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let bytes = (random % 64 + 1) * UNIT;
        if !random.is_multiple_of(3) && held.len() < 8 {
            if ledger.reserve(bytes, limit).is_ok() {
                let before = real.get().fetch_add(bytes, SeqCst);
                // a killed process leaves its part in this account
                assert!(operations == 0 || before + bytes <= limit, "{before} + {bytes} exceeds {limit}");
                held.push(bytes);
            }
        } else if let Some(bytes) = held.pop() {
            real.get().fetch_sub(bytes, SeqCst);
            ledger.release(bytes);
        }
    }
    for bytes in held {
        real.get().fetch_sub(bytes, SeqCst);
        ledger.release(bytes);
    }
}

#[test]
fn many_threads_of_many_processes_never_exceed_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let usage = Mapped::<Usage>::create(&folder.path().join("usage")).unwrap();
    let children: Vec<Child> = (0..16).map(|_| child(folder.path(), 300, SCARCE)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert!(usage.denied() > 0, "the limit was never reached");
    assert_eq!((usage.used(), Real::of(folder.path()).get().load(SeqCst)), (0, 0));
}

#[test]
fn balance_is_exact_after_processes_were_killed_at_random_points() {
    let folder = tempfile::tempdir().unwrap();
    let usage = Mapped::<Usage>::create(&folder.path().join("usage")).unwrap();
    let own = Ledger::join(&usage).unwrap();
    own.reserve(10 * UNIT, AMPLE).unwrap();
    let mut children: Vec<Child> = (0..4).map(|_| child(folder.path(), 0, AMPLE)).collect();
    for round in 0..60 {
        thread::sleep(Duration::from_micros(3000 + 37 * round));
        let at = usize::try_from(round).unwrap() % children.len();
        children[at].kill().unwrap();
        children[at].wait().unwrap();
        assert!(usage.used() <= AMPLE, "{}", usage.used());
        children[at] = child(folder.path(), 0, AMPLE);
        // others go on, so that this may not succeed now
        own.recover();
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    own.recover();
    assert_eq!(usage.used(), 10 * UNIT);
    own.reserve(AMPLE - 10 * UNIT, AMPLE).expect("all that is left");
    own.release(AMPLE);
    assert_eq!((usage.used(), own.held()), (0, 0));
}
