//! A process's side of its accounts, in its own memory.

use std::sync::{PoisonError, atomic::Ordering::SeqCst};

use crate::{
    accounts::{ACCOUNTS, Accounts, Change},
    sync::{AtomicU64, Mutex, yield_now},
    word::Place,
};

/// Attempts to find an account that holds something. More fail only in a file that was written over: what is left stays counted.
const ATTEMPTS: u32 = 10_000_000;
/// What an attempt counts while no other thread has an account; one that has may have been stopped with it, by a limit of processor time.
const ALONE: u32 = 1_000;

/// A process that has taken a slot.
#[derive(Debug)]
pub(crate) struct Owner<'u> {
    accounts: Accounts<'u>,
    slot: usize,
    /// Units that it holds, above one bit for each account that a thread is changing.
    held: AtomicU64,
    /// Searches for ended processes that have begun.
    begun: AtomicU64,
    /// Number of the last search that has finished. Held by the thread that searches.
    finished: Mutex<u64>,
}

impl<'u> Owner<'u> {
    /// Makes a slot empty that this process alone may take. It may reserve when it shows that it lives, and not before.
    pub(crate) fn new(accounts: Accounts<'u>, slot: usize) -> Self {
        accounts.take(slot);
        accounts.settle_last();
        if let Some(taken) = accounts.slots.get(slot) {
            accounts.clear(slot, taken.balances());
        }
        Self { accounts, slot, held: AtomicU64::new(0), begun: AtomicU64::new(0), finished: Mutex::new(0) }
    }

    /// Reserves units. Before it refuses, it gives back what processes hold that do not live: no refusal counts a process that ended before.
    pub(crate) fn reserve(&self, units: u64, limit: u64, lives: impl Fn(usize) -> bool) -> bool {
        if self.add(units, limit) {
            return true;
        }
        // what this process holds itself is enough for a refusal
        if units.saturating_add(self.held()) > limit {
            return false;
        }
        self.sweep(lives);
        self.add(units, limit)
    }

    /// Gives back what processes hold that do not live. One search serves all threads that wanted one before it began.
    pub(crate) fn sweep(&self, lives: impl Fn(usize) -> bool) {
        let before = self.begun.load(SeqCst);
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        if *finished <= before {
            let number = self.begun.fetch_add(1, SeqCst).wrapping_add(1);
            self.accounts.settle_last();
            for (slot, seen) in self.accounts.taken().map(|(at, slot)| (at, slot.balances())) {
                // a process without a reservation blocks no operation, and is not asked for
                let holds = seen.iter().any(|balance| crate::word::units(*balance) > 0);
                if holds && slot != self.slot && !lives(slot) {
                    self.accounts.clear(slot, seen);
                }
            }
            *finished = number;
        }
    }

    /// Adds units if the total then stays within the limit.
    pub(crate) fn add(&self, units: u64, limit: u64) -> bool {
        let account = loop {
            match self.claim(|_| true) {
                Some(account) => break account,
                // as many threads as there are accounts are in the middle of an operation
                None => yield_now(),
            }
        };
        let added = self.accounts.change(self.place(account), Change::Add { units, limit });
        self.put_back(account, if added { units } else { 0 });
        added
    }

    /// Gives units back, those at most that the process holds.
    pub(crate) fn release(&self, units: u64) {
        let mut left = self.subtract_held(units);
        let mut attempts = 0;
        while left > 0 && attempts < ATTEMPTS {
            let others = self.held.load(SeqCst) & ((1 << ACCOUNTS) - 1) != 0;
            let Some(account) = self.claim(|place| self.accounts.balance(place) > 0) else {
                attempts += if others { 1 } else { ALONE };
                yield_now();
                continue;
            };
            let place = self.place(account);
            let part = left.min(self.accounts.balance(place));
            if self.accounts.change(place, Change::Subtract { units: part }) {
                left = left.saturating_sub(part);
            }
            self.put_back(account, 0);
        }
    }

    /// Units that the process holds.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(SeqCst) >> ACCOUNTS
    }

    fn place(&self, account: usize) -> Place {
        Place { slot: self.slot, account }
    }

    /// Less of what the process holds; returns how much less.
    fn subtract_held(&self, units: u64) -> u64 {
        let mut before = self.held.load(SeqCst);
        loop {
            let less = units.min(before >> ACCOUNTS);
            match self.held.compare_exchange(before, before.wrapping_sub(less << ACCOUNTS), SeqCst, SeqCst) {
                Ok(_) => return less,
                Err(other) => before = other,
            }
        }
    }

    /// An account for this thread alone, if one fits that no other thread has.
    fn claim(&self, fits: impl Fn(Place) -> bool) -> Option<usize> {
        let busy = self.held.load(SeqCst);
        let is_free = |held: u64, account: &usize| held >> account & 1 == 0;
        let free = (0..ACCOUNTS).filter(|account| is_free(busy, account) && fits(self.place(*account)));
        free.into_iter().find(|account| is_free(self.held.fetch_or(1 << account, SeqCst), account))
    }

    /// Lets other threads have an account; the process holds so many units more.
    fn put_back(&self, account: usize, more: u64) {
        self.held.fetch_add((more << ACCOUNTS).wrapping_sub(1 << account), SeqCst);
    }
}
