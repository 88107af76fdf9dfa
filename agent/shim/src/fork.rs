//! A child process after `fork` begins without its parent's share and allocations: CUDA's own state is not usable there either.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::{graph, graph_memory, held, pace, pool, share, virtual_memory};

/// Watches for forks from the first call on.
pub fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.load(Relaxed) && !WATCHED.swap(true, Relaxed) {
        // SAFETY: a function of this library, which is not unloaded before the program ends.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
}

/// In the child, whose only thread calls it: locks that other threads of the parent had are free again.
extern "C" fn forget() {
    share::forget();
    held::forget();
    pace::forget();
    pool::forget();
    graph::forget();
    graph_memory::forget();
    virtual_memory::forget();
}
