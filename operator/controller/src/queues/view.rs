//! What the queues mean for tenants; published as a whole.

use std::collections::BTreeMap;

use gputenancy_crds::reasons::Reason;
use gputenancy_decisions::queues::PoolQueue;

/// The queues at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueView {
    /// By tenant; without those that queue for nothing.
    pub tenants: BTreeMap<String, TenantQueue>,
    /// By pool with queues.
    pub pools: BTreeMap<String, PoolQueue>,
}

/// The queue of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantQueue {
    /// Does it admit jobs within the limits of the spec?
    pub ready: bool,
    /// Why, or why not.
    pub reason: Reason,
    /// For people.
    pub message: String,
    /// Devices by resource that others leave idle and the tenant's jobs use.
    pub borrowed: BTreeMap<String, i64>,
    /// Devices by resource that the tenant leaves idle and others use.
    pub lent: BTreeMap<String, i64>,
    /// Jobs that wait.
    pub waiting: i64,
    /// Jobs that Kueue has admitted.
    pub admitted: i64,
}

impl TenantQueue {
    /// The state of a queue; without what is in use.
    pub fn of(ready: bool, reason: Reason, message: String) -> Self {
        Self { ready, reason, message, borrowed: BTreeMap::new(), lent: BTreeMap::new(), waiting: 0, admitted: 0 }
    }
}

impl QueueView {
    /// The tenants whose queues differ.
    pub fn differing(&self, old: &Self) -> Vec<String> {
        let all = self.tenants.keys().chain(old.tenants.keys().filter(|name| !self.tenants.contains_key(*name)));
        all.filter(|name| self.tenants.get(*name) != old.tenants.get(*name)).cloned().collect()
    }

    /// Does the queue of this tenant admit jobs? Its quotas may then admit what it may borrow, too.
    pub fn admits(&self, tenant: &str) -> bool {
        self.tenants.get(tenant).is_some_and(|queue| queue.ready)
    }
}
