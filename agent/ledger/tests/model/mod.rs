//! The count of memory in every order of the steps of several processes, each of which may be killed before any of its writes. loom runs the
//! source files of the ledger itself, with its own atomic numbers.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::SeqCst},
};

use loom::thread::{JoinHandle, spawn};

use crate::{
    accounts::{Accounts, Slot},
    owner::Owner,
    sync::{self, AtomicU64},
    word,
};

/// Units that the processes may hold together.
const LIMIT: u64 = 3;
/// How often loom takes its turn from a thread, at any point. More orders than these take minutes.
const PREEMPTIONS: usize = 2;

/// A usage file with the locks that the kernel has for it.
struct Container {
    total: AtomicU64,
    used: AtomicU64,
    slots: Vec<Slot>,
    /// The process of the slot lives.
    lives: Vec<loom::sync::atomic::AtomicBool>,
    /// What the processes really hold.
    real: loom::sync::atomic::AtomicU64,
}

impl Container {
    fn new(slots: usize) -> Self {
        Self {
            total: AtomicU64::default(),
            used: AtomicU64::default(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            lives: (0..slots).map(|_| false.into()).collect(),
            real: 0.into(),
        }
    }

    fn accounts(&self) -> Accounts<'_> {
        Accounts { total: &self.total, used: &self.used, slots: &self.slots }
    }

    fn counted(&self) -> u64 {
        word::units(self.total.load(SeqCst))
    }

    /// As the kernel answers: it knows the present.
    fn lives(&self, slot: usize) -> bool {
        self.lives[slot].fetch_or(false, SeqCst)
    }

    /// Runs a process that lives until it is killed before one of its writes. `None` if it was.
    fn run<T>(&self, slot: usize, writes: Option<u32>, body: impl FnOnce(&Process<'_>) -> T) -> Option<T> {
        let held = Cell::new(0);
        sync::kill_after(writes);
        let result = catch_unwind(AssertUnwindSafe(|| {
            let owner = Owner::new(self.accounts(), slot);
            self.lives[slot].swap(true, SeqCst);
            body(&Process { container: self, owner, held: &held })
        }));
        sync::kill_after(None);
        match result {
            Ok(result) => Some(result),
            Err(killed) if killed.is::<sync::Killed>() => {
                self.end(slot, held.get());
                None
            }
            Err(failed) => std::panic::resume_unwind(failed),
        }
    }

    /// A process ends that holds so much.
    fn end(&self, slot: usize, held: u64) {
        self.real.fetch_sub(held, SeqCst);
        self.lives[slot].swap(false, SeqCst);
    }

    /// After all threads have ended: a new process gets exactly what the living ones have left, once.
    fn assert_exact(&self, slot: usize) {
        let held = self.real.load(SeqCst);
        self.run(slot, None, |process| {
            process.owner.sweep(|slot| self.lives(slot));
            assert_eq!(self.counted(), held, "counted and really held");
            assert!(process.reserve(LIMIT - held));
            assert!(!process.reserve(1), "beyond the limit");
            process.release(LIMIT - held);
            assert_eq!(self.counted(), held, "after a release");
        });
    }
}

/// A process that lives.
struct Process<'c> {
    container: &'c Container,
    owner: Owner<'c>,
    held: &'c Cell<u64>,
}

impl Process<'_> {
    fn reserve(&self, units: u64) -> bool {
        let granted = self.owner.reserve(units, LIMIT, |slot| self.container.lives(slot));
        if granted {
            let real = self.container.real.fetch_add(units, SeqCst) + units;
            self.held.set(self.held.get() + units);
            assert!(real <= LIMIT, "{real} held of {LIMIT}");
        }
        granted
    }

    fn release(&self, units: u64) {
        self.container.real.fetch_sub(units, SeqCst);
        self.held.set(self.held.get() - units);
        self.owner.release(units);
    }
}

/// Every order of the steps, up to [`PREEMPTIONS`].
fn in_every_order(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// The same for each write before which a process can be killed, and at last without a kill.
fn killed_before_every_write(model: impl Fn(Option<u32>) + Copy + Sync + Send + 'static) {
    for writes in 0.. {
        sync::has_killed();
        in_every_order(move || model(Some(writes)));
        if !sync::has_killed() {
            assert!(writes > 5, "it was killed too seldom");
            return;
        }
    }
}

/// A thread of a process of its own.
fn process<T: 'static>(
    container: &Arc<Container>,
    slot: usize,
    writes: Option<u32>,
    body: impl FnOnce(&Process<'_>) -> T + 'static,
) -> JoinHandle<Option<T>> {
    let container = Arc::clone(container);
    spawn(move || container.run(slot, writes, body))
}

#[test]
fn limit_holds_for_processes_that_reserve_at_the_same_time() {
    in_every_order(|| {
        let container = Arc::new(Container::new(4));
        let work = |process: &Process<'_>| {
            let granted = process.reserve(2);
            if granted {
                process.release(2);
            }
            granted
        };
        let all = [0, 1, 2].map(|slot| process(&container, slot, None, work));
        let granted = all.map(|thread| thread.join().unwrap().unwrap());
        assert!(granted.contains(&true));
        assert_eq!(container.counted(), 0);
        container.assert_exact(3);
    });
}

#[test]
fn what_a_killed_process_held_is_given_back_once() {
    killed_before_every_write(|writes| {
        let container = Arc::new(Container::new(3));
        let killed = process(&container, 0, writes, |process| {
            process.reserve(1);
            if process.reserve(1) {
                process.release(1);
            }
        });
        let other = process(&container, 1, None, |process| {
            if process.reserve(2) {
                process.release(1);
            }
        });
        killed.join().unwrap();
        other.join().unwrap().unwrap();
        container.assert_exact(2);
    });
}

#[test]
fn no_refusal_counts_a_process_that_ended_before() {
    killed_before_every_write(|writes| {
        let container = Arc::new(Container::new(4));
        let left = container.run(0, writes, |process| {
            assert!(process.reserve(1) && process.reserve(2));
            process.release(1);
            process.held.get()
        });
        if let Some(held) = left {
            container.end(0, held);
        }
        let all = [1, 2].map(|slot| process(&container, slot, None, |process| process.reserve(LIMIT)));
        let granted = all.map(|thread| thread.join().unwrap().unwrap());
        assert_eq!(granted.iter().filter(|granted| **granted).count(), 1, "one of them gets all: {granted:?}");
        container.assert_exact(3);
    });
}

#[test]
fn process_that_is_killed_while_it_clears_another_takes_nothing_with_it() {
    killed_before_every_write(|writes| {
        let container = Arc::new(Container::new(4));
        container.run(0, None, |process| assert!(process.reserve(LIMIT)));
        container.end(0, LIMIT);
        let killed = process(&container, 1, writes, |process| process.reserve(LIMIT));
        let other = process(&container, 2, None, |process| process.reserve(1));
        let (killed, other) = (killed.join().unwrap(), other.join().unwrap().unwrap());
        assert!(other || killed != Some(false), "both refused");
        container.assert_exact(3);
    });
}

#[test]
fn process_that_takes_the_slot_of_an_ended_one_is_not_cleared() {
    killed_before_every_write(|writes| {
        let container = Arc::new(Container::new(3));
        container.run(0, None, |process| assert!(process.reserve(2)));
        container.end(0, 2);
        let next = process(&container, 0, writes, |process| process.reserve(2));
        let other = process(&container, 1, None, |process| {
            assert!(process.reserve(1));
            process.reserve(2)
        });
        let (next, other) = (next.join().unwrap(), other.join().unwrap().unwrap());
        assert!(other || next != Some(false), "both refused");
        container.assert_exact(2);
    });
}

#[test]
fn threads_of_a_process_share_its_accounts() {
    in_every_order(|| {
        // the threads need it for as long as they like; loom has few orders here
        let container: &'static Container = Box::leak(Box::new(Container::new(2)));
        let owner: &'static Owner<'static> = Box::leak(Box::new(Owner::new(container.accounts(), 0)));
        let work = move || {
            assert!(owner.reserve(1, 3, |_| true));
            owner.release(1);
            owner.reserve(2, 2, |_| true)
        };
        let other = spawn(work);
        let granted = [work(), other.join().unwrap()].into_iter().filter(|granted| *granted).count() as u64;
        assert!(granted <= 1);
        assert_eq!(
            (owner.held(), container.slots[0].held(), container.counted()),
            (2 * granted, 2 * granted, 2 * granted)
        );
        owner.release(2);
        assert_eq!((owner.held(), container.slots[0].held(), container.counted()), (0, 0, 0));
    });
}
