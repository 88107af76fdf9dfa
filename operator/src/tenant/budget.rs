//! A tenant's budget, and its namespaces with their quotas, from the caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use gputenancy_engine::{
    projection::{SlimPod, SlimQuota},
    quota::{
        self, Amounts, Cap, Limits, NamespaceQuota, Presence, QuotaDecision, QuotaState, write_fence::FencingToken,
    },
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;

use super::{
    Amount,
    observe::{Observed, Role, quota_key},
    render,
};

impl Observed {
    /// Everything that is limited, over all namespaces of the tenant. Every resource that could be a GPU's is named.
    pub fn budget(&self) -> Limits {
        let zero = || Amount::default().quantity();
        // what the platform says of every tenant; what this one says itself comes later and counts
        let mut budget: Limits = self.standard.resources().map(|(key, most)| (key.clone(), most.clone())).collect();
        budget.extend(self.view.resources.iter().map(|r| (quota_key(r), zero())));
        // a guarantee whose profile is refused still names its resource: at zero
        budget.extend(self.view.profiles.values().map(|p| (quota_key(&p.resource), zero())));
        budget.extend(self.tenant.spec.resources.clone());
        let mut devices: BTreeMap<String, i32> = BTreeMap::new();
        for guarantee in &self.tenant.spec.gpus {
            if let Ok(resource) = self.granted(&guarantee.profile) {
                let sum = devices.entry(quota_key(&resource)).or_default();
                *sum = sum.saturating_add(guarantee.count);
            }
        }
        budget.extend(devices.into_iter().map(|(key, n)| (key, Amount::of_milli(i128::from(n) * 1000).quantity())));
        budget
    }

    /// The tenant's own namespaces with their quotas.
    pub fn namespace_quotas(&self) -> Vec<(String, NamespaceQuota)> {
        let quota = |(name, role): (String, Role)| {
            let state = self.quotas.get(&name).map(|q| quota_state(q));
            let present = state.map(|state| Presence::Quota { state, fenced: self.firm.contains(&name) });
            let (open, presence) = match role {
                Role::Foreign | Role::Adoptable => return None,
                Role::Missing if self.unseen.contains(&name) => (true, Presence::NoQuota),
                Role::Missing => (true, Presence::NewNamespace),
                Role::Active => (true, present.unwrap_or(Presence::NoQuota)),
                Role::Retained => (false, present.unwrap_or(Presence::NoQuota)),
                Role::Terminating => (false, present.unwrap_or(Presence::Terminating)),
            };
            let pod_requests = if presence == Presence::Terminating { self.held(&name) } else { self.counted(&name) };
            let (counted, demands) = (!self.unsteady.contains(&name), self.refused.demands(&name));
            Some((name, NamespaceQuota { open, presence, counted, pod_requests, demands }))
        };
        let roles = self.roles();
        // what we made a moment ago and the spec does not list any more
        let unseen = self.unseen.iter().filter(|name| !roles.iter().any(|(known, _)| known == *name));
        let unseen = unseen.map(|name| {
            let (presence, pod_requests, demands) = (Presence::NoQuota, Amounts::new(), Vec::new());
            (name.clone(), NamespaceQuota { open: false, presence, counted: true, pod_requests, demands })
        });
        roles.clone().into_iter().filter_map(quota).chain(unseen).collect()
    }

    fn counted(&self, namespace: &str) -> Amounts {
        self.counted.get(namespace).cloned().unwrap_or_default()
    }

    fn held(&self, namespace: &str) -> Amounts {
        let here = self.view.held.iter().filter(|((ns, _), _)| ns == namespace);
        here.map(|((_, resource), n)| (quota_key(resource), Amount::of_milli(i128::from(*n) * 1000))).collect()
    }

    /// The cap over all profiles, if the tenant has one. A text that is no number, which the schema refuses, is a cap of nothing.
    pub fn cap(&self) -> Option<Cap> {
        let text = self.tenant.spec.gpu_equivalents.clone()?;
        let weights = self.view.weights.iter().map(|(resource, weight)| (quota_key(resource), *weight));
        Some(Cap { whole: Amount::parse(&Quantity(text)).unwrap_or_default(), weights: weights.collect() })
    }

    /// What the tenant's quotas have granted of all GPU resources, as whole GPUs; `None` without a cap.
    pub fn equivalents(&self) -> Option<Amount> {
        let cap = self.cap()?;
        let ours = self.roles().into_iter().filter(|(_, role)| !matches!(role, Role::Foreign | Role::Adoptable));
        let quotas: Vec<_> = ours.filter_map(|(name, _)| self.quotas.get(&name).cloned()).collect();
        let used = quotas.iter().flat_map(|quota| &quota.status.used);
        Some(cap.weigh(used.filter_map(|(key, quantity)| Some((key.as_str(), Amount::parse(quantity)?)))))
    }

    /// What to write to which quota now, and where that leads.
    pub fn decide_quotas(&self) -> (Vec<String>, QuotaDecision) {
        let (names, namespaces): (Vec<String>, Vec<NamespaceQuota>) = self.namespace_quotas().into_iter().unzip();
        let decision = quota::decide(&self.budget(), self.cap().as_ref(), &namespaces, self.tenant.spec.suspend);
        (names, decision)
    }

    /// The quotas of the tenant's own namespaces.
    pub fn quota_states(&self) -> BTreeMap<String, QuotaState> {
        self.quotas.iter().map(|(namespace, quota)| (namespace.clone(), quota_state(quota))).collect()
    }

    /// What is used of a resource beyond the tenant's budget, and of all GPUs beyond its cap, in words; empty when all is within.
    pub fn overdraft(&self, decision: &QuotaDecision) -> String {
        let budget = self.budget();
        let words = |(key, over): (&String, &Amount)| {
            let of = |amounts: &Limits| amounts.get(key).map_or_else(|| "0".to_owned(), |q| q.0.clone());
            format!("{key} by {} over {}", quota::quantity(key, *over).0, of(&budget))
        };
        let cap = self.tenant.spec.gpu_equivalents.as_ref().filter(|_| decision.over_cap > Amount::default());
        let cap = cap.map(|cap| format!("spec.gpuEquivalents by {} over {cap}", decision.over_cap.decimal()));
        decision.over_budget.iter().map(words).chain(cap).collect::<Vec<_>>().join(", ")
    }

    /// The version and the identity that a write of this quota is decided on, to be refused if it is not that any more.
    pub fn decided_on(&self, namespace: &str) -> (Option<String>, Option<String>) {
        match self.quotas.get(namespace) {
            Some(quota) => (quota.resource_version(), quota.uid()),
            // no object is of this version: the write makes one, or is refused
            None => (Some("1".into()), None),
        }
    }
}

fn quota_state(quota: &SlimQuota) -> QuotaState {
    let SlimQuota { spec, status, .. } = quota;
    QuotaState { written: spec.hard.clone(), enforced: status.hard.clone(), used: status.used.clone() }
}

/// Devices that live pods of these namespaces ask for, by namespace and quota key.
pub fn counted<'a>(pods: impl Iterator<Item = &'a SlimPod>) -> BTreeMap<String, Amounts> {
    let mut counted: BTreeMap<String, Amounts> = BTreeMap::new();
    for pod in pods.filter(|p| !p.is_over() && p.metadata.deletion_timestamp.is_none()) {
        let here = counted.entry(pod.namespace().unwrap_or_default()).or_default();
        let containers = pod.spec.containers.iter().flat_map(|c| &c.resources.requests);
        for (resource, asked) in containers {
            let sum = here.entry(quota_key(resource)).or_default();
            *sum = sum.plus(Amount::parse(asked).unwrap_or_default());
        }
    }
    counted
}

/// The limits of a quota that are in force, each by a number that tells its key from others.
#[derive(Clone, Debug)]
pub struct InForce(Box<[(u64, Amount)]>);

impl InForce {
    /// Of a quota.
    pub fn of(quota: &SlimQuota) -> Self {
        let amounts = quota.status.hard.iter().filter_map(|(key, q)| Some((hash(key), Amount::parse(q)?)));
        Self(amounts.collect())
    }

    /// Has any limit come down since then, or gone?
    pub fn fell_from(&self, before: &Self) -> bool {
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

/// Resources of the budget that a tenant's quotas have not reached, by namespace.
pub fn unreached<'a>(
    names: &'a [String],
    decision: &'a QuotaDecision,
    quotas: &'a BTreeMap<String, QuotaState>,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let none = QuotaState::default();
    let of = |(name, target): (&'a String, &'a Limits)| {
        let keys = quotas.get(name).unwrap_or(&none).unreached_keys(target);
        (!keys.is_empty()).then_some((name.as_str(), keys))
    };
    names.iter().zip(&decision.targets).filter_map(of).collect()
}
