//! What each process holds, and the sum of all. A process may be killed between any two instructions, and the sum stays exact.
//!
//! An operation has three steps: the account's next balance is written, the total is changed together with its note which operation did it, and the
//! next balance becomes the balance. Only the second step decides. The next process that changes the total first makes the third step for the operation that
//! the total notes, because its process may not exist any more. So the total is at all times the sum of the balances, with the one operation that it
//! notes, and what an ended process holds is known to the unit without stopping the others.
//!
//! Processes of the container can write anything here: an index is checked, sums saturate, and no loop depends on what is read, except that a change
//! is tried again when another process has changed the total meanwhile.

use std::sync::atomic::Ordering::SeqCst;

use crate::{
    sync::AtomicU64,
    word::{self, Place},
};

/// Accounts of a process. So many of its threads change the total at the same time without waiting for each other.
pub(crate) const ACCOUNTS: usize = 7;

/// What a process holds is the sum of its accounts.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// What it holds: see [`word`].
    balance: AtomicU64,
    /// The balance after the operation in progress, or after the last one that was not granted.
    next: AtomicU64,
}

/// One process. A line of the processor's cache of its own. Its process holds a lock of one byte of the file as long as it lives: see
/// [`crate::Mapped`].
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Process id in the container of the last process that took it; 0 if none did.
    pub(crate) taken: AtomicU64,
    /// Since when a thread waits for the GPU, in nanoseconds of the monotonic clock; 0 if none does.
    pub(crate) waiting: AtomicU64,
    accounts: [Account; ACCOUNTS],
}

impl Slot {
    /// The balances of its accounts.
    pub(crate) fn balances(&self) -> [u64; ACCOUNTS] {
        std::array::from_fn(|at| self.accounts.get(at).map_or(0, |account| account.balance.load(SeqCst)))
    }

    /// Units that its process holds.
    pub(crate) fn held(&self) -> u64 {
        self.balances().into_iter().fold(0, |sum, balance| sum.saturating_add(word::units(balance)))
    }
}

/// A change of an account, in units.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// If the total then stays within the limit.
    Add { units: u64, limit: u64 },
    /// What it holds at most.
    Subtract { units: u64 },
}

impl Change {
    /// The sum after the change.
    fn of(self, sum: u64) -> Option<u64> {
        match self {
            Self::Add { units, limit } => sum.checked_add(units).filter(|sum| *sum <= limit.min(word::MAX_UNITS)),
            Self::Subtract { units } => Some(sum.saturating_sub(units)),
        }
    }
}

/// The count of a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accounts<'u> {
    /// The sum of all balances: see [`word`].
    pub(crate) total: &'u AtomicU64,
    /// Slots that were ever taken are below this one.
    pub(crate) used: &'u AtomicU64,
    pub(crate) slots: &'u [Slot],
}

impl<'u> Accounts<'u> {
    /// Changes the total and an account, which no other thread of its process changes at the same time. False if the limit would be exceeded.
    pub(crate) fn change(&self, place: Place, change: Change) -> bool {
        let Some(account) = self.account(place) else { return false };
        let balance = account.balance.load(SeqCst);
        let Some(units) = change.of(word::units(balance)) else { return false };
        let next = word::next(balance, units);
        account.next.store(next, SeqCst);
        self.commit(place, (balance, next), |sum| change.of(sum))
    }

    /// Units of an account.
    pub(crate) fn balance(&self, place: Place) -> u64 {
        self.account(place).map_or(0, |account| word::units(account.balance.load(SeqCst)))
    }

    /// A slot is taken for the first time, or again.
    pub(crate) fn take(&self, slot: usize) {
        self.used.fetch_max((slot as u64).saturating_add(1), SeqCst);
    }

    /// The slots that were ever taken: there are few, and looking at all takes longer than an allocation.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (usize, &'u Slot)> + use<'u> {
        let used = usize::try_from(self.used.load(SeqCst)).unwrap_or(usize::MAX);
        self.slots.iter().enumerate().take(used)
    }

    /// Makes the third step of the last operation. After it the balances of a process that had ended before are what it holds.
    pub(crate) fn settle_last(&self) {
        self.settle(self.total.load(SeqCst));
    }

    /// Gives back what an ended process holds. `seen` are its balances before it was known that it had ended, and after [`Self::settle_last`]. Several
    /// processes may do this at the same time, another process may take the slot meanwhile, and each of them may be killed: it happens once.
    pub(crate) fn clear(&self, slot: usize, seen: [u64; ACCOUNTS]) {
        for (account, seen) in seen.into_iter().enumerate().filter(|(_, seen)| word::units(*seen) > 0) {
            self.clear_account(Place { slot, account }, seen);
        }
    }

    fn clear_account(&self, place: Place, seen: u64) {
        let Some(account) = self.account(place) else { return };
        let empty = word::next(seen, 0);
        // its process may have ended between the second and the third step
        self.settle_last();
        // read before the balance: if that is still the same, this is not of a process that has taken the slot meanwhile
        let next = account.next.load(SeqCst);
        if account.balance.load(SeqCst) != seen {
            return;
        }
        match account.next.compare_exchange(next, empty, SeqCst, SeqCst) {
            Err(other) if other != empty => {}
            _ => {
                self.commit(place, (seen, empty), |sum| Some(sum.saturating_sub(word::units(seen))));
            }
        }
    }

    /// Second and third step of an operation. False if there is no such sum, or if the account does not have this balance any more.
    fn commit(&self, place: Place, (balance, next): (u64, u64), sum: impl Fn(u64) -> Option<u64>) -> bool {
        let Some(account) = self.account(place) else { return false };
        loop {
            let before = self.total.load(SeqCst);
            self.settle(before);
            // another process may have made the second step of a clearing, which is settled now
            if account.balance.load(SeqCst) != balance {
                return false;
            }
            let Some(units) = sum(word::units(before)) else { return false };
            let after = word::total(units, place, next);
            if self.total.compare_exchange(before, after, SeqCst, SeqCst).is_ok() {
                self.settle(after);
                return true;
            }
        }
    }

    /// Makes the third step of the operation that a total notes, if it is not made yet.
    fn settle(&self, total: u64) {
        let Some(account) = self.account(word::place(total)) else { return };
        let (balance, next) = (account.balance.load(SeqCst), account.next.load(SeqCst));
        // a process that has changed the total since has settled it before
        if word::is_last(total, balance, next) && self.total.load(SeqCst) == total {
            // fails if another process makes the same step
            let _ = account.balance.compare_exchange(balance, next, SeqCst, SeqCst);
        }
    }

    fn account(&self, place: Place) -> Option<&'u Account> {
        self.slots.get(place.slot)?.accounts.get(place.account)
    }
}
