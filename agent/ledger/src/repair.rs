//! Giving back what ended processes hold, while others go on.

use std::sync::atomic::Ordering::SeqCst;

use crate::{Mapped, Usage, total};

/// Attempts to count the total again. Each fails only because another process reserved or released in the same nanoseconds.
const ATTEMPTS: u32 = 100;

/// Clears the slots of processes that have ended, and counts the total again. The locks of this open file do not exclude its own threads: one
/// at a time calls this.
pub(crate) fn recover(usage: &Mapped<Usage>, own: usize) {
    for (at, slot) in usage.taken().filter(|(at, _)| *at != own) {
        if usage.lock(at) {
            slot.clear(0);
            usage.unlock(at);
        }
    }
    recount(usage);
}

/// Sets the total to the sum of what the slots hold, which is less if a process was killed within an operation. Without success it stays too
/// large, and the next one tries again.
pub(crate) fn recount(usage: &Usage) {
    for _ in 0..ATTEMPTS {
        let before = usage.total.load(SeqCst);
        let Some(sum) = sum(usage) else {
            std::hint::spin_loop();
            continue;
        };
        if sum == total::units(before) || total::replace(&usage.total, before, sum) {
            return;
        }
    }
}

/// Sum of the slots; `None` while an operation is in progress, whose part may be in the total and not in the slot.
fn sum(usage: &Usage) -> Option<u64> {
    let mut sum = 0_u64;
    for (_, slot) in usage.taken() {
        let idle = || slot.in_progress.load(SeqCst) == 0;
        if !idle() {
            return None;
        }
        sum = sum.saturating_add(slot.held.load(SeqCst));
        if !idle() {
            return None;
        }
    }
    Some(sum)
}
