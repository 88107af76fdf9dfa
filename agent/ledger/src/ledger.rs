//! One process's part of the usage: reserving before an allocation, releasing after a free.

use std::sync::atomic::Ordering::SeqCst;

use crate::{
    Mapped, Usage,
    accounts::Slot,
    owner::Owner,
    page::{SLOTS, UNIT},
    word,
};

/// The limit would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

/// A process in the usage file of its container.
#[derive(Debug)]
pub struct Ledger<'u> {
    usage: &'u Mapped<Usage>,
    slot: &'u Slot,
    owner: Owner<'u>,
}

impl<'u> Ledger<'u> {
    /// Takes a slot for this process, which has opened the usage itself: its open file has the lock that shows that it lives. `None` if all slots
    /// are those of living processes.
    pub fn join(usage: &'u Mapped<Usage>) -> Option<Self> {
        let own = (0..SLOTS).find(|slot| usage.lock_entry(*slot))?;
        let slot = usage.accounts().slots.get(own)?;
        let owner = Owner::new(usage.accounts(), own);
        slot.waiting.store(0, SeqCst);
        slot.taken.store(std::process::id().into(), SeqCst);
        usage.lock_slot(own).then_some(Self { usage, slot, owner })
    }

    /// Reserves memory before the driver allocates it. Bytes are rounded up to [`UNIT`]. Before it denies, it gives back what ended
    /// processes hold, with one system call for each process that holds memory.
    pub fn reserve(&self, bytes: u64, limit: u64) -> Result<(), Denied> {
        if self.owner.reserve(bytes.div_ceil(UNIT), limit / UNIT, |slot| self.usage.is_locked(slot)) {
            return Ok(());
        }
        self.usage.count_denial();
        Err(Denied)
    }

    /// Gives memory back after the driver has freed it, or has not allocated it.
    pub fn release(&self, bytes: u64) {
        self.owner.release(bytes.div_ceil(UNIT));
    }

    /// Counts memory that the driver has allocated already, also beyond the limit.
    pub fn charge(&self, bytes: u64) {
        self.owner.add(bytes.div_ceil(UNIT), word::MAX_UNITS);
    }

    /// Runs a call that waits for the GPU. Its begin is in the ledger until it returns, if no other thread of the process waits already: a kernel
    /// that never ends would otherwise be known to this thread alone.
    pub fn waiting<R>(&self, begin: u64, call: impl FnOnce() -> R) -> R {
        let first = self.slot.waiting.compare_exchange(0, begin, SeqCst, SeqCst).is_ok();
        let result = call();
        if first {
            self.slot.waiting.store(0, SeqCst);
        }
        result
    }

    /// Gives back what ended processes hold.
    pub fn recover(&self) {
        self.owner.sweep(|slot| self.usage.is_locked(slot));
    }

    /// The usage file of the container.
    pub fn usage(&self) -> &'u Usage {
        self.usage
    }

    /// Bytes that this process holds.
    pub fn held(&self) -> u64 {
        self.owner.held().saturating_mul(UNIT)
    }

    /// Bytes that all processes hold.
    pub fn used(&self) -> u64 {
        self.usage.used()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::page::SLOTS;

    const LIMIT: u64 = 100 * UNIT;

    /// The usage of a container.
    struct Container(tempfile::TempDir);

    impl Container {
        fn new() -> Self {
            let container = Self(tempfile::tempdir().unwrap());
            Mapped::<Usage>::create(&container.path()).unwrap();
            container
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("usage")
        }

        /// What a process of the container opens; closing it is the end of the process.
        fn process(&self) -> Mapped<Usage> {
            Mapped::<Usage>::open(&self.path()).unwrap()
        }
    }

    #[test]
    fn reservation_is_rounded_up_and_the_limit_can_be_reached_exactly() {
        let container = Container::new();
        let usage = container.process();
        let ledger = Ledger::join(&usage).unwrap();
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
    fn counts_are_read_without_a_mapping_and_show_whether_anything_happened() {
        let container = Container::new();
        let read = || Mapped::<Usage>::read_counts(&container.path());
        let usage = container.process();
        let ledger = Ledger::join(&usage).unwrap();
        ledger.reserve(3 * UNIT, LIMIT).unwrap();
        let first = read().unwrap();
        assert_eq!((first.used(), first.denied(), first.is_unchanged(&read().unwrap())), (3 * UNIT, 0, true));
        ledger.reserve(UNIT, LIMIT).unwrap();
        ledger.release(UNIT);
        assert!(ledger.reserve(2 * LIMIT, LIMIT).is_err());
        let second = read().unwrap();
        assert_eq!((second.used(), second.denied(), first.is_unchanged(&second)), (3 * UNIT, 1, false));
        // what a container may do to its file
        let file = std::fs::OpenOptions::new().write(true).open(container.path()).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[255; 16], 16).unwrap();
        assert_eq!(read().map(|counts| (counts.used(), counts.denied())), Some((word::MAX_UNITS * UNIT, u64::MAX)));
        file.set_len(20).unwrap();
        assert_eq!(read(), None, "too short");
        file.set_len(0).unwrap();
        file.set_len(Mapped::<Usage>::SIZE).unwrap();
        assert_eq!(read(), None, "of another version");
    }

    #[test]
    fn size_that_wraps_is_denied() {
        let container = Container::new();
        let usage = container.process();
        let ledger = Ledger::join(&usage).unwrap();
        ledger.reserve(UNIT, u64::MAX).unwrap();
        for bytes in [u64::MAX, u64::MAX - UNIT, 1 << 63] {
            assert_eq!(ledger.reserve(bytes, u64::MAX), Err(Denied), "{bytes}");
        }
        assert_eq!(ledger.used(), UNIT);
    }

    #[test]
    fn living_processes_keep_their_slots_and_ended_ones_leave_them() {
        let container = Container::new();
        let mut processes: Vec<Mapped<Usage>> = (0..SLOTS).map(|_| container.process()).collect();
        for usage in &processes {
            assert!(Ledger::join(usage).is_some());
        }
        let usage = container.process();
        assert!(Ledger::join(&usage).is_none(), "all are taken");
        processes.truncate(SLOTS / 2);
        let ledger = Ledger::join(&usage).unwrap();
        assert!(ledger.usage.is_locked(SLOTS / 2 - 1) && !ledger.usage.is_locked(SLOTS / 2));
        assert_eq!(ledger.reserve(LIMIT, LIMIT), Ok(()));
    }

    #[test]
    fn refusal_counts_living_processes_alone() {
        let container = Container::new();
        let usage = container.process();
        let ledger = Ledger::join(&usage).unwrap();
        let other = container.process();
        Ledger::join(&other).unwrap().reserve(90 * UNIT, LIMIT).unwrap();
        assert_eq!(ledger.reserve(11 * UNIT, LIMIT), Err(Denied), "it still lives");
        drop(other);
        assert_eq!(ledger.used(), 90 * UNIT);
        assert_eq!(ledger.reserve(LIMIT, LIMIT), Ok(()), "before it denies, it looks for ended processes");
        assert_eq!(ledger.used(), LIMIT);
    }

    #[test]
    fn slot_of_an_ended_process_begins_with_nothing() {
        let container = Container::new();
        {
            let usage = container.process();
            Ledger::join(&usage).unwrap().reserve(10 * UNIT, LIMIT).unwrap();
        }
        let usage = container.process();
        let next = Ledger::join(&usage).unwrap();
        assert!(std::ptr::eq(next.slot, &raw const usage.accounts().slots[0]), "the same slot");
        assert_eq!((next.held(), next.slot.held(), next.used()), (0, 0, 0));
    }

    #[test]
    fn page_that_was_written_over_ends_no_call_and_no_process() {
        let container = Container::new();
        let usage = container.process();
        let ledger = Ledger::join(&usage).unwrap();
        ledger.reserve(10 * UNIT, LIMIT).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(container.path()).unwrap();
        for byte in [0, 255, 0x5a] {
            let all = vec![byte; usize::try_from(Mapped::<Usage>::SIZE).unwrap() - 16];
            std::os::unix::fs::FileExt::write_all_at(&file, &all, 16).unwrap();
            // neither of them has to be right
            let _ = ledger.reserve(UNIT, LIMIT);
            ledger.recover();
            ledger.release(UNIT);
            ledger.charge(UNIT);
            usage.processes();
        }
    }

    proptest! {
        #[test]
        fn total_is_what_the_slots_hold(operations in prop::collection::vec((0..3_u32, any::<bool>(), 0..40_u64), 0..200)) {
            let container = Container::new();
            let processes: Vec<Mapped<Usage>> = (0..3).map(|_| container.process()).collect();
            let ledgers: Vec<Ledger<'_>> = processes.iter().map(|usage| Ledger::join(usage).unwrap()).collect();
            let mut held = [0_u64; 3];
            for (who, reserve, units) in operations {
                let at = who as usize;
                let all: u64 = held.iter().sum();
                if reserve {
                    let granted = ledgers[at].owner.add(units, 100);
                    prop_assert_eq!(granted, all + units <= 100);
                    held[at] += if granted { units } else { 0 };
                } else {
                    ledgers[at].release(units * UNIT);
                    held[at] = held[at].saturating_sub(units);
                }
                ledgers[at].recover();
                prop_assert_eq!(processes[0].used(), held.iter().sum::<u64>() * UNIT);
            }
        }
    }
}
