//! A lock that a child process can reset after `fork`: the thread that had it does not exist there.

use std::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

/// Attempts before a waiting thread lets others run.
const SPINS: u32 = 100;

/// A value for one thread at a time.
pub struct Lock<T> {
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only used by the thread that has set `busy`.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Releases the lock when the body of [`Lock::with`] ends.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl<T> Lock<T> {
    /// A lock with this value.
    pub const fn new(value: T) -> Self {
        Self { busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs the body with the value. The body must not use the same lock.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let mut spins = 0_u32;
        while self.busy.compare_exchange_weak(false, true, Acquire, Acquire).is_err() {
            spins = spins.saturating_add(1);
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let _busy = Busy(&self.busy);
        // SAFETY: `busy` makes this thread its only user.
        body(unsafe { &mut *self.value.get() })
    }

    /// Sets the value in a child process after `fork`, whose only thread calls this. The former value is the parent's, and is not dropped.
    pub fn reset(&self, value: T) {
        // SAFETY: there is no other thread.
        std::mem::forget(unsafe { self.value.get().replace(value) });
        self.busy.store(false, Release);
    }
}
