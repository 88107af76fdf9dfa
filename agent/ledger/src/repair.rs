//! Giving back what ended processes hold, while others go on.

use std::sync::atomic::Ordering::SeqCst;

use crate::{
    Identity, Usage,
    page::{Slot, pid},
    total,
};

/// Attempts to count the total again. Each fails only because another process reserved or released in the same nanoseconds.
const ATTEMPTS: u32 = 100;

/// Frees the slots of processes that have ended, and counts the total again.
pub(crate) fn recover(usage: &Usage, own: &Identity) {
    usage.slots.iter().for_each(|slot| free_if_ended(slot, own));
    recount(usage);
}

/// Frees the slot of an ended process. Several may try at once, and one may be stopped in between for long. `held` is read before the
/// owner: if another process has taken the slot since, `held` was cleared in between and is another word.
fn free_if_ended(slot: &Slot, own: &Identity) {
    let held = slot.held.load(SeqCst);
    let Some((owner, of)) = slot.identity() else { return };
    if of == *own || !of.has_ended(own.namespace) {
        return;
    }
    if slot.held.compare_exchange(held, total::cleared(held), SeqCst, SeqCst).is_ok() {
        // the next owner resets the rest: `in_progress` of a process that was killed may stay above 0
        let _ = slot.owner.compare_exchange(owner, owner & !u64::from(u32::MAX), SeqCst, SeqCst);
    }
}

/// Sets what a slot holds to nothing, for its owner.
pub(crate) fn clear(slot: &Slot) {
    let cleared = |held| Some(total::cleared(held));
    // the closure returns a word in every case
    let _ = slot.held.fetch_update(SeqCst, SeqCst, cleared);
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
    for slot in usage.slots.iter().filter(|slot| pid(slot.owner.load(SeqCst)) != 0) {
        let idle = || slot.in_progress.load(SeqCst) == 0;
        if !idle() {
            return None;
        }
        sum = sum.saturating_add(total::held_units(slot.held.load(SeqCst)));
        if !idle() {
            return None;
        }
    }
    Some(sum)
}
