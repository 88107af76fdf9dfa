//! A tenant's budget, and its namespaces with their quotas. Pure.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use gputenancy_crds::projection::{SlimPod, SlimQuota};
use gputenancy_decisions::quota::{
    self, Amounts, Cap, Limits, NamespaceQuota, Presence, QuotaDecision, QuotaState, write_fence::FencingToken,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;

use super::{
    roles::{Role, Roles},
    write::{Precondition, absent},
};
use crate::tenant::{
    Amount,
    observe::{Observed, quota_key},
    render,
};

impl Observed {
    /// All limits of the tenant, over all its namespaces. Has a key for every GPU resource.
    pub fn budget(&self) -> Limits {
        let zero = || Amount::default().quantity();
        // the platform's limits first: the tenant's own replace them
        let mut budget: Limits = self.standard.resources().map(|(key, most)| (key.clone(), most.clone())).collect();
        budget.extend(self.view.resources.iter().map(|r| (quota_key(r), zero())));
        // a refused profile has a limit of zero
        budget.extend(self.view.profiles.values().map(|p| (quota_key(&p.resource), zero())));
        budget.extend(self.tenant.spec.resources.clone());
        let mut devices: BTreeMap<String, i32> = BTreeMap::new();
        for guarantee in &self.tenant.spec.gpus {
            if let Ok(resource) = self.granted(&guarantee.profile) {
                let sum = devices.entry(quota_key(&resource)).or_default();
                *sum = sum.saturating_add(guarantee.count).saturating_add(self.borrowed(guarantee, &resource));
            }
        }
        budget.extend(devices.into_iter().map(|(key, n)| (key, Amount::of_milli(i128::from(n) * 1000).quantity())));
        budget
    }

    /// The tenant's namespaces with their quotas.
    fn namespace_quotas(&self, roles: &Roles) -> Vec<(String, NamespaceQuota)> {
        let quota = |(name, role): (&str, Role)| {
            let state = self.quotas.get(name).map(|q| quota_state(q));
            let present = state.map(|state| Presence::Quota { state, fenced: self.fenced.contains(name) });
            let (open, presence) = match role {
                Role::Foreign | Role::Adoptable => return None,
                Role::Missing if self.uncached.contains(name) => (true, Presence::NoQuota),
                Role::Missing => (true, Presence::NewNamespace),
                Role::Active => (true, present.unwrap_or(Presence::NoQuota)),
                Role::Retained => (false, present.unwrap_or(Presence::NoQuota)),
                Role::Terminating => (false, present.unwrap_or(Presence::Terminating)),
            };
            let pod_requests = if presence == Presence::Terminating { self.held(name) } else { self.requested(name) };
            let (counted, demands) = (!self.recently_lowered.contains(name), self.refused.demands(name));
            Some((name.to_owned(), NamespaceQuota { open, presence, counted, pod_requests, demands }))
        };
        // created by a recent write, and no longer in the spec
        let uncached = self.uncached.iter().filter(|name| !roles.iter().any(|(known, _)| known == name.as_str()));
        let uncached = uncached.map(|name| {
            let (presence, pod_requests, demands) = (Presence::NoQuota, Amounts::new(), Vec::new());
            (name.clone(), NamespaceQuota { open: false, presence, counted: true, pod_requests, demands })
        });
        roles.iter().filter_map(quota).chain(uncached).collect()
    }

    /// Devices that processes of the tenant's deleted pods use, by resource. Kubernetes counts deleted pods in no quota.
    fn retained_devices<'s>(&'s self, roles: &'s Roles) -> impl Iterator<Item = (&'s String, Amount)> {
        let own = |name: &str| roles.own().any(|own| own == name);
        let all = self.view.retained_devices.iter().filter(move |((namespace, _), _)| own(namespace));
        all.map(|((_, resource), n)| (resource, Amount::of_milli(i128::from(*n) * 1000)))
    }

    /// The budget without retained devices: what quotas may grant.
    fn grantable(&self, roles: &Roles) -> Limits {
        let mut budget = self.budget();
        for (resource, kept) in self.retained_devices(roles) {
            if let Some(limit) = budget.get_mut(&quota_key(resource)) {
                *limit = Amount::parse(limit).unwrap_or_default().less(kept).quantity();
            }
        }
        budget
    }

    /// The cap without retained devices.
    fn grantable_cap(&self, roles: &Roles) -> Option<Cap> {
        let cap = self.cap()?;
        let kept: Vec<(String, Amount)> =
            self.retained_devices(roles).map(|(resource, n)| (quota_key(resource), n)).collect();
        let kept = cap.weigh(kept.iter().map(|(key, n)| (key.as_str(), *n)));
        Some(Cap { whole: cap.whole.less(kept), ..cap })
    }

    fn requested(&self, namespace: &str) -> Amounts {
        self.requested.get(namespace).cloned().unwrap_or_default()
    }

    fn held(&self, namespace: &str) -> Amounts {
        let here = self.view.held.iter().filter(|((ns, _), _)| ns == namespace);
        here.map(|((_, resource), n)| (quota_key(resource), Amount::of_milli(i128::from(*n) * 1000))).collect()
    }

    /// The cap over all profiles, if the tenant has one. Text that is not a number, which the schema refuses, is a cap of zero.
    pub fn cap(&self) -> Option<Cap> {
        let text = self.tenant.spec.gpu_equivalents.clone()?;
        let weights = self.view.weights.iter().map(|(resource, weight)| (quota_key(resource), *weight));
        Some(Cap { whole: Amount::parse(&Quantity(text)).unwrap_or_default(), weights: weights.collect() })
    }

    /// Use of all GPU resources in whole GPUs, as the tenant's quotas count it; `None` without a cap.
    pub fn equivalents(&self, roles: &Roles) -> Option<Amount> {
        let cap = self.cap()?;
        let used = roles.own().filter_map(|name| self.quotas.get(name)).flat_map(|quota| &quota.status.used);
        Some(cap.weigh(used.filter_map(|(key, quantity)| Some((key.as_str(), Amount::parse(quantity)?)))))
    }

    /// Limits and use of the quotas that exist.
    pub fn quota_states(&self) -> BTreeMap<String, QuotaState> {
        self.quotas.iter().map(|(namespace, quota)| (namespace.clone(), quota_state(quota))).collect()
    }

    /// Use beyond the tenant's budget, by resource, and of all GPUs beyond its cap, for a message; empty if there is none.
    pub fn overdraft(&self, roles: &Roles, decision: &QuotaDecision) -> String {
        let budget = self.budget();
        let excess = |(key, over): (&String, &Amount)| {
            let of = |amounts: &Limits| amounts.get(key).map_or_else(|| "0".to_owned(), |q| q.0.clone());
            format!("{key} by {} over {}", quota::quantity(key, *over).0, of(&budget))
        };
        let cap = self.tenant.spec.gpu_equivalents.as_ref().filter(|_| decision.over_cap > Amount::default());
        let cap = cap.map(|cap| format!("spec.gpuEquivalents by {} over {cap}", decision.over_cap.decimal()));
        let over = decision.over_budget.iter().map(excess).chain(cap).collect::<Vec<_>>().join(", ");
        match self.retained_devices_note(roles) {
            Some(kept) if !over.is_empty() => format!("{over}; {kept}"),
            _ => over,
        }
    }

    /// The retained devices, for a message.
    pub fn retained_devices_note(&self, roles: &Roles) -> Option<String> {
        let mut sums: BTreeMap<&String, Amount> = BTreeMap::new();
        for (resource, n) in self.retained_devices(roles) {
            let sum = sums.entry(resource).or_default();
            *sum = sum.plus(n);
        }
        let all: Vec<String> = sums.into_iter().map(|(resource, n)| format!("{} of {resource}", n.decimal())).collect();
        (!all.is_empty()).then(|| {
            format!(
                "processes of pods that were deleted by force still use {}, which counts until they end",
                all.join(", ")
            )
        })
    }

    /// Version and uid that a write of this quota is decided on.
    pub fn decided_on(&self, namespace: &str) -> Precondition {
        match self.quotas.get(namespace) {
            Some(quota) => (quota.resource_version(), quota.uid()),
            None => absent(),
        }
    }
}

/// The decision about the quotas of a tenant's namespaces.
#[derive(Debug)]
pub struct Quotas {
    /// The namespaces.
    pub namespaces: Vec<String>,
    /// The decision, with an action and a target for each of them in this order.
    pub decision: QuotaDecision,
}

impl Quotas {
    /// Decides.
    pub fn of(seen: &Observed, roles: &Roles) -> Self {
        let (namespaces, quotas): (Vec<String>, Vec<NamespaceQuota>) = seen.namespace_quotas(roles).into_iter().unzip();
        let (budget, cap) = (seen.grantable(roles), seen.grantable_cap(roles));
        let decision = quota::decide(&budget, cap.as_ref(), &quotas, seen.tenant.spec.suspend);
        Self { namespaces, decision }
    }

    /// A namespace whose quota does not enforce its target yet.
    pub fn pending(&self, seen: &Observed) -> Option<&String> {
        let states = seen.quota_states();
        let state = |name: &String| states.get(name).cloned().unwrap_or_default();
        let mut targets = self.namespaces.iter().zip(&self.decision.targets);
        targets.find(|(name, target)| !state(name).unreached_keys(target).is_empty()).map(|(name, _)| name)
    }
}

fn quota_state(quota: &SlimQuota) -> QuotaState {
    let SlimQuota { spec, status, .. } = quota;
    QuotaState { written: spec.hard.clone(), enforced: status.hard.clone(), used: status.used.clone() }
}

/// Devices that pods request, but for those that have finished or are terminating, by namespace and quota key.
pub fn requested<'a>(pods: impl Iterator<Item = &'a SlimPod>) -> BTreeMap<String, Amounts> {
    let mut requested: BTreeMap<String, Amounts> = BTreeMap::new();
    for pod in pods.filter(|p| !p.is_over() && p.metadata.deletion_timestamp.is_none()) {
        let here = requested.entry(pod.namespace().unwrap_or_default()).or_default();
        let containers = pod.spec.containers.iter().flat_map(|c| &c.resources.requests);
        for (resource, quantity) in containers {
            let sum = here.entry(quota_key(resource)).or_default();
            *sum = sum.plus(Amount::parse(quantity).unwrap_or_default());
        }
    }
    requested
}

/// The limits that a quota enforces (`status.hard`), by hash of their key.
#[derive(Clone, Debug)]
pub struct Enforced(Box<[(u64, Amount)]>);

impl Enforced {
    /// Of a quota.
    pub fn of(quota: &SlimQuota) -> Self {
        let amounts = quota.status.hard.iter().filter_map(|(key, q)| Some((hash(key), Amount::parse(q)?)));
        Self(amounts.collect())
    }

    /// Is any limit lower than before, or missing?
    pub fn is_lower_than(&self, before: &Self) -> bool {
        let amount = |key: u64| self.0.iter().find(|(other, _)| *other == key).map(|(_, amount)| *amount);
        before.0.iter().any(|(key, then)| amount(*key) < Some(*then))
    }
}

fn hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The fencing token of the last write of a quota.
pub fn fencing_token(quota: &SlimQuota) -> Option<FencingToken> {
    quota.annotations().get(render::STAMP).and_then(|text| FencingToken::parse(text))
}
