//! loom's types in the place of the standard library's, and the end of a process before one of its writes.

use std::{cell::Cell, sync::atomic::Ordering};

pub(crate) use loom::{sync::Mutex, thread::yield_now};

/// The process was killed.
pub(crate) struct Killed;

loom::thread_local! {
    static WRITES: Cell<Option<u32>> = Cell::new(None);
}

thread_local! {
    /// loom runs all threads of a model in this one.
    static HAS_KILLED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a process was killed since the last call.
pub(crate) fn has_killed() -> bool {
    HAS_KILLED.replace(false)
}

/// From now on the process of this thread makes so many writes, and is killed before the next one.
pub(crate) fn kill_after(writes: Option<u32>) {
    WRITES.with(|left| left.set(writes));
}

fn write() {
    let killed = WRITES.with(|left| {
        let before = left.get();
        left.set(before.map(|writes| writes.saturating_sub(1)));
        before == Some(0)
    });
    if killed {
        HAS_KILLED.set(true);
        std::panic::resume_unwind(Box::new(Killed));
    }
}

/// A number in memory that processes share. A killed process has made all of a write or nothing of it; what it read last changes nothing.
#[derive(Debug, Default)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        write();
        self.0.store(value, order);
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        write();
        self.0.fetch_add(value, order)
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        write();
        self.0.fetch_or(value, order)
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        write();
        self.0.fetch_max(value, order)
    }

    pub(crate) fn compare_exchange(&self, old: u64, new: u64, ok: Ordering, failed: Ordering) -> Result<u64, u64> {
        write();
        self.0.compare_exchange(old, new, ok, failed)
    }
}
