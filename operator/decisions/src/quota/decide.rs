//! The decision about all quotas of a tenant.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::quantity::Amount;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    cap_allocation::{ResourceUsage, allocate_cap},
    cap_commitment::CapCommitment,
    limits::{Limits, amount, are_equal, is_gpu_key, quantity, unit},
    namespace::{Amounts, NamespaceQuota, Presence},
    target::{NamespaceUsage, target_limits},
    weight::Cap,
};

/// The action for one quota.
#[derive(Clone, Debug, PartialEq)]
pub enum QuotaAction {
    /// Nothing.
    Keep,
    /// Write these limits.
    Write(Limits),
    /// Write it unchanged, so that earlier writes in flight are refused.
    Touch,
}

/// The decision about all quotas of a tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuotaDecision {
    /// For each namespace.
    pub actions: Vec<QuotaAction>,
    /// The limits of each namespace once all writes are enforced.
    pub targets: Vec<Limits>,
    /// Use beyond the budget, by quota key.
    pub over_budget: Amounts,
    /// Use beyond the cap, in whole GPUs.
    pub over_cap: Amount,
    /// A limit rises once the pods of all namespaces are counted, and waits for nothing else.
    pub waits_for_count: bool,
}

/// Decides what to write now. `budget` has every resource that is limited; `cap` limits the weight of all GPU resources together;
/// `suspended`: no new pod is admitted.
///
/// Limits are lowered at once. One is raised only when every other quota of the tenant is known in full, is fenced, and leaves headroom for
/// the whole increase by what it may grant at most. Under a cap the quotas have to be known in full for all GPU resources, and leave
/// headroom under the cap too: the lower limit of one resource is enforced before another rises. GPU resources of a quota that the budget
/// lacks stay, at zero: without the key nothing would limit them.
///
/// ```
/// use gputenancy_decisions::quota::{NamespaceQuota, Presence, QuotaAction, decide};
/// use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
///
/// let gpus = |n: &str| [("requests.nvidia.com/gpu".to_owned(), Quantity(n.into()))].into();
/// let new = NamespaceQuota {
///     open: true,
///     presence: Presence::NewNamespace,
///     counted: true,
///     pod_requests: Default::default(),
///     demands: Vec::new(),
/// };
/// let decision = decide(&gpus("5"), None, &[new.clone(), new], false);
/// assert_eq!(decision.actions, [QuotaAction::Write(gpus("3")), QuotaAction::Write(gpus("2"))]);
/// ```
pub fn decide(budget: &Limits, cap: Option<&Cap>, namespaces: &[NamespaceQuota], suspended: bool) -> QuotaDecision {
    let mut decision = QuotaDecision::default();
    let mut hard: Vec<Limits> = namespaces.iter().map(dropped_gpu_keys).collect();
    let mut budget = budget.clone();
    if cap.is_some() {
        // what nothing limits any more may still be in use, and counts against the cap
        budget = hard.iter().flatten().map(|(key, zero)| (key.clone(), zero.clone())).chain(budget).collect();
    }
    let mut unfenced = BTreeSet::new();
    let mut resources = Vec::new();
    for (key, text) in &budget {
        let Some(whole) = Amount::parse(text) else {
            // not a quantity: the API server refuses it with its own message
            for limits in &mut hard {
                limits.insert(key.clone(), text.clone());
            }
            continue;
        };
        let usages = namespaces.iter().map(|n| n.usage(key, suspended)).collect();
        resources.push(BudgetedResource { key, text, budget: whole, usages });
    }
    let mut commitment = cap.map(|cap| {
        let keys = resources.iter().map(|r| r.key.as_str()).filter(|key| is_gpu_key(key));
        CapCommitment::new(cap, keys.collect(), namespaces)
    });
    let allocated = cap.map(|cap| allocated(cap, &resources)).unwrap_or_default();
    decision.over_cap = commitment.as_ref().map(CapCommitment::excess).unwrap_or_default();
    decision.targets.resize(namespaces.len(), Limits::new());
    for BudgetedResource { key, text, budget, usages } in resources {
        let used: Amount = namespaces.iter().map(|n| n.used(key)).sum();
        if used > budget {
            decision.over_budget.insert(key.clone(), used.less(budget));
        }
        let budgeted = allocated.get(key).copied().unwrap_or(budget);
        let targets = target_limits(budgeted.milli(), unit(key), &usages);
        let targets: Vec<Amount> = targets.into_iter().map(Amount::of_milli).collect();
        let next = next_limits(key, budget, namespaces, &targets, &mut commitment);
        decision.waits_for_count |= next.waits_for_count;
        unfenced.extend(next.unfenced);
        let write = |amount: Amount| if amount == budget { text.clone() } else { quantity(key, amount) };
        for (limits, amount) in hard.iter_mut().zip(next.limits) {
            limits.insert(key.clone(), write(amount));
        }
        for (limits, amount) in decision.targets.iter_mut().zip(targets) {
            limits.insert(key.clone(), write(amount));
        }
    }
    let action = |(at, (namespace, limits)): (usize, (&NamespaceQuota, Limits))| match &namespace.presence {
        Presence::Terminating => QuotaAction::Keep,
        Presence::Quota { state, .. } if are_equal(&limits, &state.written) => {
            if unfenced.contains(&at) {
                QuotaAction::Touch
            } else {
                QuotaAction::Keep
            }
        }
        _ => QuotaAction::Write(limits),
    };
    decision.actions = namespaces.iter().zip(hard).enumerate().map(action).collect();
    decision
}

/// A resource of the budget: its key, its quantity as written and as an amount, and its use by namespace.
struct BudgetedResource<'a> {
    key: &'a String,
    text: &'a Quantity,
    budget: Amount,
    usages: Vec<NamespaceUsage>,
}

/// The budget of each GPU resource as the cap is allocated now.
fn allocated(cap: &Cap, resources: &[BudgetedResource<'_>]) -> BTreeMap<String, Amount> {
    let gpus = || resources.iter().filter(|r| is_gpu_key(r.key));
    let usage = |r: &BudgetedResource<'_>| ResourceUsage {
        weight: cap.device(r.key),
        budget: r.budget.milli(),
        namespaces: r.usages.clone(),
    };
    let budgets = allocate_cap(cap.limit(), &gpus().map(usage).collect::<Vec<_>>());
    gpus().map(|r| r.key.clone()).zip(budgets.into_iter().map(Amount::of_milli)).collect()
}

/// What to write now for one resource.
struct NextLimits {
    limits: Vec<Amount>,
    /// Quotas that have to be fenced before others can rise.
    unfenced: BTreeSet<usize>,
    waits_for_count: bool,
}

fn next_limits(
    key: &str,
    budget: Amount,
    namespaces: &[NamespaceQuota],
    targets: &[Amount],
    commitment: &mut Option<CapCommitment<'_>>,
) -> NextLimits {
    let mut commitment = commitment.as_mut().filter(|_| is_gpu_key(key));
    let written = |n: &NamespaceQuota| n.state().and_then(|s| amount(&s.written, key));
    // always safe: no more than may be granted already
    let safe = |(n, target): (&NamespaceQuota, &Amount)| {
        if *target <= n.grantable(key) { *target } else { written(n).unwrap_or_default() }
    };
    let limits = namespaces.iter().zip(targets).map(safe).collect();
    let mut next = NextLimits { limits, unfenced: BTreeSet::new(), waits_for_count: false };
    for (at, (namespace, target)) in namespaces.iter().zip(targets).enumerate() {
        let others = || namespaces.iter().enumerate().filter(move |(index, _)| *index != at);
        if *target <= namespace.grantable(key)
            || !namespaces.iter().all(|n| n.is_known(key))
            || commitment.as_ref().is_some_and(|c| !c.is_known())
        {
            continue;
        }
        let new = namespace.presence == Presence::NewNamespace;
        // another leader may be creating that namespace with its quota: it has to exist first
        if !new && others().any(|(_, n)| n.presence == Presence::NewNamespace) {
            continue;
        }
        let unfenced: BTreeSet<usize> = others().filter(|(_, n)| !n.is_fenced()).map(|(index, _)| index).collect();
        if !unfenced.is_empty() {
            next.unfenced.extend(unfenced);
            continue;
        }
        let committed = |(index, n): (usize, &NamespaceQuota)| {
            let limit = next.limits.get(index).copied().unwrap_or_default();
            n.grantable(key).max(limit).max(n.used(key))
        };
        let headroom = budget.less(others().map(committed).sum());
        let headroom = commitment.as_ref().map_or(headroom, |c| headroom.min(c.headroom(key, at)));
        if headroom < *target && !new {
            continue;
        }
        // under a cap another resource of the same namespace may have been lowered
        let uncounted = commitment.is_some() && !namespace.counted;
        if !new && (uncounted || others().any(|(_, n)| !n.counted)) {
            next.waits_for_count = true;
            continue;
        }
        let raised = (*target).min(headroom);
        if let Some(limit) = next.limits.get_mut(at) {
            *limit = raised;
        }
        if let Some(commitment) = &mut commitment {
            commitment.commit(key, at, raised);
        }
    }
    next
}

/// GPU resources that a quota has and nothing limits any more: they stay, at zero.
fn dropped_gpu_keys(namespace: &NamespaceQuota) -> Limits {
    let keys = namespace.state().into_iter().flat_map(|s| s.written.keys());
    let gpus = keys.filter(|key| is_gpu_key(key));
    gpus.map(|key| (key.clone(), Amount::default().quantity())).collect()
}
