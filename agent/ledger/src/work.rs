//! Work of a share that has ended: written by its processes into the usage of their container, and copied by the agent to the neighbours.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Works that a container keeps: at two batches a millisecond, those of 16 ms.
pub(crate) const RECENT: usize = 32;
/// Works of all neighbours that a share sees.
pub(crate) const NEIGHBOURS: usize = 64;

/// When work was launched and when it ended, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// When it was launched.
    pub launched: u64,
    /// When it ended.
    pub end: u64,
}

/// A work in a file. A reader may find the launch of one work and the end of another one: its charge is then wrong once, by less than a period.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct WorkCell {
    launched: AtomicU64,
    end: AtomicU64,
}

impl WorkCell {
    pub(crate) fn store(&self, work: Work) {
        // in between it is no work
        self.end.store(0, Relaxed);
        self.launched.store(work.launched, Relaxed);
        self.end.store(work.end, Relaxed);
    }

    pub(crate) fn load(&self) -> Work {
        Work { launched: self.launched.load(Relaxed), end: self.end.load(Relaxed) }
    }
}
