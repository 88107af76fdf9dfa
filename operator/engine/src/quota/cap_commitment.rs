//! What may be granted under a cap at this moment, while a decision orders limits.

use std::collections::HashMap;

use gputenancy_crds::quantity::Amount;

use super::{Account, Cap};

/// What all quotas of a tenant may grant at most of what counts against a cap, by what it weighs.
pub struct Ceiling<'a> {
    cap: &'a Cap,
    /// By resource: what a device weighs, and what may be granted in each account.
    granted: HashMap<&'a str, (i128, Vec<Amount>)>,
    /// What all of that weighs, in thousandths of a part.
    sum: i128,
    used: i128,
    settled: bool,
}

impl<'a> Ceiling<'a> {
    /// As it is before anything is ordered. Limits that come down count until they are in force.
    pub fn of(cap: &'a Cap, keys: Vec<&'a str>, accounts: &[Account]) -> Self {
        let mut this = Self { cap, granted: HashMap::new(), sum: 0, used: 0, settled: true };
        for key in keys {
            let weight = cap.device(key);
            let granted: Vec<Amount> = accounts.iter().map(|a| a.at_most(key).max(a.used(key))).collect();
            let add = |sum: i128, amount: Amount| sum.saturating_add(amount.milli().saturating_mul(weight));
            this.sum = granted.iter().copied().fold(this.sum, add);
            this.used = accounts.iter().map(|a| a.used(key)).fold(this.used, add);
            this.settled &= accounts.iter().all(|a| a.settled(key));
            this.granted.insert(key, (weight, granted));
        }
        this
    }

    /// Are all limits and all use known?
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// The highest limit of this resource in this account beside all that may be granted otherwise, in whole devices.
    pub fn room(&self, key: &str, at: usize) -> Amount {
        let Some((weight, granted)) = self.granted.get(key) else { return Amount::default() };
        let own = granted.get(at).copied().unwrap_or_default().milli().saturating_mul(*weight);
        let left = self.cap.limit().saturating_sub(self.sum.saturating_sub(own)).max(0);
        let devices = left / (*weight).max(1) / 1000;
        Amount::of_milli(devices * 1000)
    }

    /// Notes a limit that is ordered.
    pub fn order(&mut self, key: &str, at: usize, limit: Amount) {
        let Some((weight, granted)) = self.granted.get_mut(key) else { return };
        if let Some(amount) = granted.get_mut(at).filter(|amount| **amount < limit) {
            let more = limit.milli().saturating_sub(amount.milli());
            self.sum = self.sum.saturating_add(more.saturating_mul(*weight));
            *amount = limit;
        }
    }

    /// What is used beyond the cap, in whole GPUs.
    pub fn over(&self) -> Amount {
        self.cap.gpus(self.used.saturating_sub(self.cap.limit()))
    }
}
