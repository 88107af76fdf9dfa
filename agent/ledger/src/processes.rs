//! Which processes of the container live, and what each of them holds. Reading it changes nothing.

use std::sync::atomic::Ordering::SeqCst;

use crate::{Mapped, UNIT, Usage};

/// A living process that has taken a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id as the process itself sees it.
    pub pid: u32,
    /// Bytes that it holds, with its context.
    pub bytes: u64,
}

impl Mapped<Usage> {
    /// The processes that hold memory, in the order of their slots. A process whose slot was taken through this open file is not among them: the kernel reports
    /// locks of other open files only.
    pub fn processes(&self) -> Vec<Process> {
        let taken =
            self.slots.iter().enumerate().filter(|(at, slot)| slot.taken.load(SeqCst) != 0 && self.is_locked(*at));
        let process =
            |pid: u64, held: u64| Some(Process { pid: u32::try_from(pid).ok()?, bytes: held.saturating_mul(UNIT) });
        taken.filter_map(|(_, slot)| process(slot.taken.load(SeqCst), slot.held())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ledger;

    #[test]
    fn living_processes_are_listed_with_what_they_hold_and_ended_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage");
        Mapped::<Usage>::create(&path).unwrap();
        let open = || Mapped::<Usage>::open(&path).unwrap();
        let reader = open();
        assert_eq!(reader.processes(), []);
        let (first, second) = (open(), open());
        let one = Ledger::join(&first).unwrap();
        one.reserve(UNIT, u64::MAX).unwrap();
        let pid = std::process::id();
        {
            let two = Ledger::join(&second).unwrap();
            two.reserve(3 * UNIT, u64::MAX).unwrap();
            let expected = [Process { pid, bytes: UNIT }, Process { pid, bytes: 3 * UNIT }];
            assert_eq!(reader.processes(), expected);
        }
        // the end of a process closes its files; its slot is still taken
        drop(second);
        assert_eq!(reader.processes(), [Process { pid, bytes: UNIT }]);
        assert_eq!(reader.used(), 4 * UNIT);
    }
}
