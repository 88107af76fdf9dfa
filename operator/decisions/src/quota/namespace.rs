//! One namespace of a tenant with its quota, as observed.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::quantity::Amount;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    limits::{Limits, amount, is_equal},
    target::{Demand, DemandStage, NamespaceUsage},
};

/// Amounts by quota key.
pub type Amounts = BTreeMap<String, Amount>;

/// A quota. Admission compares with `enforced`, which follows `written` a moment later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuotaState {
    /// `spec.hard`.
    pub written: Limits,
    /// `status.hard`.
    pub enforced: Limits,
    /// `status.used`.
    pub used: Limits,
}

impl QuotaState {
    /// Keys whose limits differ from these targets or are not enforced yet.
    pub fn unreached_keys<'a>(&self, target: &'a Limits) -> BTreeSet<&'a str> {
        let reached = |limits: &Limits, (key, wanted): &(&String, &Quantity)| {
            limits.get(*key).is_some_and(|present| is_equal(present, wanted))
        };
        let unreached = target.iter().filter(|entry| !reached(&self.written, entry) || !reached(&self.enforced, entry));
        unreached.map(|(key, _)| key.as_str()).collect()
    }
}

/// Which of a namespace and its quota exist.
#[derive(Clone, Debug, PartialEq)]
pub enum Presence {
    /// The namespace is created in this reconcile, its quota right after: nothing can run in it.
    NewNamespace,
    /// The namespace has no quota: its use is unknown.
    NoQuota,
    /// The quota exists.
    Quota {
        /// Its limits and use.
        state: QuotaState,
        /// No write in flight, of this leader or an earlier one, can change it; see [`super::write_fence`].
        fenced: bool,
    },
    /// The namespace is being deleted and has no quota any more: it admits nothing.
    Terminating,
}

/// The pods that a controller of a namespace was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct PodDemand {
    /// For one pod.
    pub amounts: Amounts,
    /// How current it is.
    pub stage: DemandStage,
}

/// One namespace of a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceQuota {
    /// New pods are admitted; false: it keeps what it uses.
    pub open: bool,
    /// The namespace and its quota.
    pub presence: Presence,
    /// No limit fell so recently that pods admitted before may still be uncounted.
    pub counted: bool,
    /// Requests of its pods in the cache: the quota controller may have counted before the last of them was created.
    pub pod_requests: Amounts,
    /// The pods that its controllers were refused.
    pub demands: Vec<PodDemand>,
}

impl NamespaceQuota {
    pub(super) fn state(&self) -> Option<&QuotaState> {
        match &self.presence {
            Presence::Quota { state, .. } => Some(state),
            _ => None,
        }
    }

    pub(super) fn used(&self, key: &str) -> Amount {
        let reported = self.state().and_then(|s| amount(&s.used, key)).unwrap_or_default();
        reported.max(self.pod_requests.get(key).copied().unwrap_or_default())
    }

    /// The most that may be granted under this quota as long as it is not written again.
    pub(super) fn grantable(&self, key: &str) -> Amount {
        let Some(state) = self.state() else { return Amount::default() };
        let of = |limits: &Limits| amount(limits, key).unwrap_or_default();
        of(&state.written).max(of(&state.enforced))
    }

    /// Are its limit and its use of this resource known?
    pub(super) fn is_known(&self, key: &str) -> bool {
        match &self.presence {
            Presence::NewNamespace | Presence::Terminating => true,
            Presence::NoQuota => false,
            // limit and use enter the status together
            Presence::Quota { state, .. } => state.enforced.contains_key(key),
        }
    }

    pub(super) fn is_fenced(&self) -> bool {
        !matches!(self.presence, Presence::Quota { fenced: false, .. })
    }

    pub(super) fn usage(&self, key: &str, suspended: bool) -> NamespaceUsage {
        let demand = |d: &PodDemand| Some(Demand { amount: d.amounts.get(key)?.milli(), stage: d.stage });
        let demands: Vec<_> = self.demands.iter().filter_map(demand).filter(|d| d.amount > 0).collect();
        let limit = self.state().and_then(|s| amount(&s.written, key)).map(Amount::milli);
        // a suspended team may still write its workloads down
        let closed = suspended && !is_count_of_objects(key);
        NamespaceUsage { open: self.open && !closed, used: self.used(key).milli(), limit, demands }
    }
}

/// Counts objects that use nothing of a node by themselves, such as Deployments.
fn is_count_of_objects(key: &str) -> bool {
    key.starts_with("count/") && key != "count/pods"
}
