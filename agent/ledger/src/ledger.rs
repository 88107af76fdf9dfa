//! One process's part of the usage: reserving before an allocation, releasing after a free.

use std::sync::atomic::Ordering::SeqCst;

use crate::{
    Identity, Usage,
    page::{SLOTS, Slot, UNIT, pid},
    repair, total,
};

/// The limit would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

/// A process in the usage file of its container.
#[derive(Debug)]
pub struct Ledger<'u> {
    usage: &'u Usage,
    slot: &'u Slot,
    own: Identity,
}

impl<'u> Ledger<'u> {
    /// Takes a slot for this process; `None` if all are taken by processes that run. A slot that an earlier program of the same process
    /// left behind at `exec` is cleared: the driver has freed what it held.
    pub fn join(usage: &'u Usage, own: Identity) -> Option<Self> {
        let same = |slot: &&Slot| slot.identity().is_some_and(|(_, of)| of == own);
        let joined = |slot| Self { usage, slot, own };
        if let Some(slot) = usage.slots.iter().find(same) {
            slot.in_progress.store(0, SeqCst);
            repair::clear(slot);
            repair::recount(usage);
            return Some(joined(slot));
        }
        for _ in 0..2 {
            if let Some(slot) = usage.slots.iter().find(|slot| take(slot, own)) {
                return Some(joined(slot));
            }
            repair::recover(usage, &own);
        }
        None
    }

    /// Reserves memory before the driver allocates it. Bytes are rounded up to [`UNIT`]. Before it denies, it gives back what ended
    /// processes hold.
    pub fn reserve(&self, bytes: u64, limit: u64) -> Result<(), Denied> {
        let units = bytes.div_ceil(UNIT);
        if self.try_reserve(units, limit / UNIT) {
            return Ok(());
        }
        repair::recover(self.usage, &self.own);
        if self.try_reserve(units, limit / UNIT) {
            return Ok(());
        }
        self.usage.count_denial();
        Err(Denied)
    }

    /// Gives memory back after the driver has freed it, or has not allocated it.
    pub fn release(&self, bytes: u64) {
        let units = bytes.div_ceil(UNIT);
        self.slot.in_progress.fetch_add(1, SeqCst);
        let taken = |held: u64| Some(held - total::held_delta(units.min(total::held_units(held))));
        // the closure returns a word in every case
        let held = self.slot.held.fetch_update(SeqCst, SeqCst, taken).unwrap_or_else(|held| held);
        total::subtract(&self.usage.total, units.min(total::held_units(held)));
        self.slot.in_progress.fetch_sub(1, SeqCst);
    }

    /// Counts memory that the driver has allocated already, whatever the limit is.
    pub fn charge(&self, bytes: u64) {
        self.try_reserve(bytes.div_ceil(UNIT), total::MAX_UNITS);
    }

    /// Gives back what ended processes hold.
    pub fn recover(&self) {
        repair::recover(self.usage, &self.own);
    }

    /// Bytes that this process holds.
    pub fn held(&self) -> u64 {
        total::held_units(self.slot.held.load(SeqCst)).saturating_mul(UNIT)
    }

    /// Bytes that all processes hold.
    pub fn used(&self) -> u64 {
        self.usage.used()
    }

    /// The total grows first and shrinks last, so a process that is killed in between makes it too large, never too small.
    fn try_reserve(&self, units: u64, limit: u64) -> bool {
        self.slot.in_progress.fetch_add(1, SeqCst);
        let added = total::add(&self.usage.total, units, limit);
        if added {
            self.slot.held.fetch_add(total::held_delta(units), SeqCst);
        }
        self.slot.in_progress.fetch_sub(1, SeqCst);
        added
    }
}

/// Takes a slot if it is free.
fn take(slot: &Slot, own: Identity) -> bool {
    let before = slot.owner.load(SeqCst);
    if pid(before) != 0 {
        return false;
    }
    let taken = (before >> 32).wrapping_add(1) << 32 | u64::from(own.pid);
    if slot.owner.compare_exchange(before, taken, SeqCst, SeqCst).is_err() {
        return false;
    }
    slot.in_progress.store(0, SeqCst);
    slot.namespace.store(own.namespace, SeqCst);
    slot.start.store(own.start, SeqCst);
    true
}

const _: () = assert!(SLOTS <= 256, "the search for a slot is linear");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 100 * UNIT;

    fn process(pid: u32) -> Identity {
        Identity { pid, start: 1, namespace: 1 }
    }

    #[test]
    fn reservation_is_rounded_up_and_the_limit_can_be_reached_exactly() {
        let usage = Usage::default();
        let ledger = Ledger::join(&usage, process(std::process::id())).unwrap();
        assert_eq!(ledger.reserve(1, LIMIT), Ok(()));
        assert_eq!((ledger.used(), ledger.held()), (UNIT, UNIT));
        assert_eq!(ledger.reserve(99 * UNIT, LIMIT), Ok(()));
        assert_eq!(ledger.reserve(1, LIMIT), Err(Denied));
        assert_eq!(ledger.reserve(0, LIMIT), Ok(()));
        assert_eq!((usage.denied(), ledger.used()), (1, LIMIT));
        // a smaller limit takes nothing away
        assert_eq!(ledger.reserve(1, UNIT), Err(Denied));
        ledger.charge(UNIT);
        assert_eq!(ledger.used(), LIMIT + UNIT, "what the driver has allocated already counts");
        ledger.release(u64::MAX);
        assert_eq!((ledger.used(), ledger.held()), (0, 0), "no more than it holds");
    }

    #[test]
    fn size_that_wraps_is_denied() {
        let usage = Usage::default();
        let ledger = Ledger::join(&usage, process(std::process::id())).unwrap();
        ledger.reserve(UNIT, u64::MAX).unwrap();
        for bytes in [u64::MAX, u64::MAX - UNIT, 1 << 63] {
            assert_eq!(ledger.reserve(bytes, u64::MAX), Err(Denied), "{bytes}");
        }
        assert_eq!(ledger.used(), UNIT);
    }

    #[test]
    fn program_that_replaces_another_by_exec_begins_with_nothing() {
        let usage = Usage::default();
        let own = process(std::process::id());
        Ledger::join(&usage, own).unwrap().reserve(10 * UNIT, LIMIT).unwrap();
        let after = Ledger::join(&usage, own).unwrap();
        assert_eq!((after.held(), after.used()), (0, 0));
    }

    #[test]
    fn slots_of_ended_processes_are_taken_again() {
        let usage = Usage::default();
        // ids above the kernel's limit are of no process
        for ended in 0..u32::try_from(SLOTS).unwrap() {
            let ledger = Ledger::join(&usage, process(5_000_000 + ended)).unwrap();
            ledger.try_reserve(1, 1000);
        }
        assert_eq!(usage.used(), 256 * UNIT);
        let ledger = Ledger::join(&usage, process(std::process::id())).unwrap();
        assert_eq!(ledger.used(), 0);
    }

    #[test]
    fn process_that_was_killed_within_a_reservation_leaves_nothing() {
        let usage = Usage::default();
        let killed = Ledger::join(&usage, process(5_000_000)).unwrap();
        killed.try_reserve(10, 100);
        // it had entered the total and not its slot
        killed.slot.in_progress.fetch_add(1, SeqCst);
        assert!(total::add(&usage.total, 80, 100));
        let ledger = Ledger::join(&usage, process(std::process::id())).unwrap();
        assert_eq!(ledger.reserve(100 * UNIT, LIMIT), Ok(()), "before it denies, it looks for ended processes");
        assert_eq!(ledger.used(), LIMIT);
    }

    proptest! {
        #[test]
        fn total_is_what_the_slots_hold(operations in prop::collection::vec((0..3_u32, any::<bool>(), 0..40_u64), 0..200)) {
            let usage = Usage::default();
            let ledgers: Vec<Ledger<'_>> = (0..3).map(|pid| Ledger::join(&usage, process(5_000_000 + pid)).unwrap()).collect();
            let mut held = [0_u64; 3];
            for (who, reserve, units) in operations {
                let at = who as usize;
                let all: u64 = held.iter().sum();
                if reserve {
                    let granted = ledgers[at].try_reserve(units, 100);
                    prop_assert_eq!(granted, all + units <= 100);
                    held[at] += if granted { units } else { 0 };
                } else {
                    ledgers[at].release(units * UNIT);
                    held[at] = held[at].saturating_sub(units);
                }
                prop_assert_eq!(usage.used(), held.iter().sum::<u64>() * UNIT);
            }
        }
    }
}
