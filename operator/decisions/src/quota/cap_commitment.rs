//! The most that the quotas of a tenant may grant under a cap, while one decision writes limits.

use std::collections::HashMap;

use gputenancy_crds::quantity::Amount;

use super::{namespace::NamespaceQuota, weight::Cap};

/// The most that all quotas of a tenant may grant of the resources under a cap, by weight.
pub struct CapCommitment<'a> {
    cap: &'a Cap,
    /// By resource: the weight of a device, and the amount that each namespace's quota may grant.
    committed: HashMap<&'a str, (i128, Vec<Amount>)>,
    /// Weight of all of `committed`, in thousandths of a part.
    total: i128,
    used: i128,
    known: bool,
}

impl<'a> CapCommitment<'a> {
    /// Before anything is written. A lowered limit counts in full until it is enforced.
    pub fn new(cap: &'a Cap, keys: Vec<&'a str>, namespaces: &[NamespaceQuota]) -> Self {
        let mut this = Self { cap, committed: HashMap::new(), total: 0, used: 0, known: true };
        for key in keys {
            let weight = cap.device(key);
            let committed: Vec<Amount> = namespaces.iter().map(|n| n.grantable(key).max(n.used(key))).collect();
            let add = |sum: i128, amount: Amount| sum.saturating_add(amount.milli().saturating_mul(weight));
            this.total = committed.iter().copied().fold(this.total, add);
            this.used = namespaces.iter().map(|n| n.used(key)).fold(this.used, add);
            this.known &= namespaces.iter().all(|n| n.is_known(key));
            this.committed.insert(key, (weight, committed));
        }
        this
    }

    /// Are all limits and all use known?
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// The highest limit of this resource in this namespace that everything else leaves under the cap, in whole devices.
    pub fn headroom(&self, key: &str, namespace: usize) -> Amount {
        let Some((weight, committed)) = self.committed.get(key) else { return Amount::default() };
        let own = committed.get(namespace).copied().unwrap_or_default().milli().saturating_mul(*weight);
        let left = self.cap.limit().saturating_sub(self.total.saturating_sub(own)).max(0);
        let devices = left / (*weight).max(1) / 1000;
        Amount::of_milli(devices * 1000)
    }

    /// Adds a limit that is going to be written.
    pub fn commit(&mut self, key: &str, namespace: usize, limit: Amount) {
        let Some((weight, committed)) = self.committed.get_mut(key) else { return };
        if let Some(amount) = committed.get_mut(namespace).filter(|amount| **amount < limit) {
            let more = limit.milli().saturating_sub(amount.milli());
            self.total = self.total.saturating_add(more.saturating_mul(*weight));
            *amount = limit;
        }
    }

    /// Use beyond the cap, in whole GPUs.
    pub fn excess(&self) -> Amount {
        self.cap.gpus(self.used.saturating_sub(self.cap.limit()))
    }
}
