//! The status of a tenant, computed from the same observation as its writes.

use gputenancy_crds::{
    Equivalents, GpuTenantStatus, GpuUse, NamespaceState, Network,
    condition::{self, ConditionUpdate, Overall, merge},
    reasons::{self, Reason},
};
use k8s_openapi::jiff::SignedDuration;

use super::{
    Amount, budget,
    decide::{Fences, Optional, Write},
    observe::{Observed, Role, quota_key},
    pull, render, teardown,
};

const NAMESPACES: &str = "NamespacesReady";
const POLICY: &str = "PolicyReady";
const QUOTA: &str = "QuotaReady";
const CAPACITY: &str = "CapacityReady";
/// Reason of `QuotaReady` while nothing new is admitted by the tenant's own wish, and type of the condition that says so.
pub const SUSPENDED: &str = "Suspended";
/// How long a controller waits before that is shown: a budget moves faster than a status is read.
pub const SHOWN_AFTER: SignedDuration = SignedDuration::from_secs(2);

/// The status to show; `failed` is the last write's error, if any.
pub fn status(seen: &Observed, failed: Option<&str>) -> GpuTenantStatus {
    let generation = seen.tenant.metadata.generation;
    let old = seen.tenant.status.clone().unwrap_or_default();
    let gpus = uses(seen);
    let mut parts = vec![namespaces(seen), policy(seen), quota(seen), capacity(seen, &gpus)];
    parts.extend(pull::verdict(seen));
    let overall =
        if seen.tenant.metadata.deletion_timestamp.is_some() { deletion(seen) } else { overall(&parts, &gpus, failed) };
    let mut updates = overall.updates();
    updates.extend(parts);
    if seen.tenant.spec.suspend {
        updates.push(ConditionUpdate::yes(
            SUSPENDED,
            reasons::SUSPENDED,
            "spec.suspend is true: set it to false to admit new work",
        ));
    }
    let summary = gpus.iter().map(|g| format!("{} {}/{}", g.profile, g.used, g.budget)).collect::<Vec<_>>().join(", ");
    GpuTenantStatus {
        observed_generation: generation,
        conditions: merge(&old.conditions, updates, generation, seen.now),
        namespaces: seen
            .roles()
            .into_iter()
            .map(|(name, role)| NamespaceState { name, phase: phase(role).into() })
            .collect(),
        equivalents: equivalents(seen),
        summary: (!gpus.is_empty()).then_some(summary),
        gpus,
    }
}

/// Is this a state of being set up, which is over in a moment unless something is wrong?
pub fn passes(status: &GpuTenantStatus) -> bool {
    let ready = status.conditions.iter().find(|c| c.type_ == condition::READY);
    ready.is_some_and(|c| matches!(c.reason.as_str(), "Creating" | "Applying" | "Planning"))
}

fn phase(role: Role) -> &'static str {
    match role {
        Role::Missing => "Missing",
        Role::Foreign => "Foreign",
        Role::Adoptable => "Adopting",
        Role::Terminating => "Terminating",
        Role::Active => "Active",
        Role::Retained => "Retained",
    }
}

fn equivalents(seen: &Observed) -> Option<Equivalents> {
    let (used, cap) = (seen.equivalents()?, seen.cap()?);
    Some(Equivalents { used: used.decimal(), cap: cap.whole.decimal() })
}

fn uses(seen: &Observed) -> Vec<GpuUse> {
    let roles = seen.roles();
    let ours = |role: Role| !matches!(role, Role::Foreign | Role::Adoptable);
    let names = || roles.iter().filter(|(_, r)| ours(*r)).map(|(n, _)| n.as_str());
    let of = |g: &gputenancy_crds::Guarantee| {
        let profile = seen.view.profiles.get(&g.profile);
        let resource = profile.map(|p| p.resource.clone()).unwrap_or_default();
        let budget = if seen.granted(&g.profile).is_ok() { g.count } else { 0 };
        let used: Amount = names()
            .filter_map(|ns| seen.quotas.get(ns)?.status.used.get(&quota_key(&resource)).and_then(Amount::parse))
            .sum();
        let own: Vec<&str> = names().collect();
        let refused = seen.refused.waiting(&own, &quota_key(&resource), seen.now, SHOWN_AFTER);
        let held = seen.view.held_by(names(), &resource);
        let free = profile.map_or(0, |p| p.free);
        let share = seen.view.weights.get(&resource).filter(|_| seen.tenant.spec.gpu_equivalents.is_some());
        GpuUse {
            profile: g.profile.clone(),
            budget,
            used: used.quantity().0.parse().unwrap_or(i32::MAX),
            share: share.map(ToString::to_string),
            available: held.saturating_add(free).min(budget),
            waiting: seen
                .view
                .waiting_in(names(), &resource)
                .saturating_add(i32::try_from(refused).unwrap_or(i32::MAX)),
            resource_name: resource,
        }
    };
    seen.tenant.spec.gpus.iter().map(of).collect()
}

fn namespaces(seen: &Observed) -> ConditionUpdate {
    let roles = seen.roles();
    let named = |wanted: Role| -> Vec<&str> {
        roles.iter().filter(|(_, role)| *role == wanted).map(|(name, _)| name.as_str()).collect()
    };
    let foreign = named(Role::Foreign);
    if let Some(first) = foreign.first() {
        let mut message = format!("namespace {first} {}", whose(seen, first));
        if foreign.len() > 1 {
            message.push_str(&format!("; of all that are listed, {} are not this tenant's", foreign.join(", ")));
        }
        return ConditionUpdate::no(NAMESPACES, reasons::NAMESPACE_FOREIGN, message);
    }
    let terminating: Vec<&str> = named(Role::Terminating);
    if !terminating.is_empty() {
        let message = format!(
            "{} is being deleted; it is made again afterwards if spec.namespaces lists it",
            terminating.join(", ")
        );
        return ConditionUpdate::no(NAMESPACES, reasons::NAMESPACE_TERMINATING, message);
    }
    let coming = named(Role::Missing).len() + named(Role::Adoptable).len();
    if coming > 0 {
        let message = format!("{coming} of {} namespaces are being made or adopted", roles.len());
        return ConditionUpdate::no(NAMESPACES, reasons::CREATING, message);
    }
    let count = seen.tenant.spec.namespaces.len();
    ConditionUpdate::yes(
        NAMESPACES,
        reasons::ACTIVE,
        format!("{count} {}", if count == 1 { "namespace" } else { "namespaces" }),
    )
}

/// Whose a listed namespace is that is not the tenant's, and what can be done.
fn whose(seen: &Observed, name: &str) -> String {
    let Some(namespace) = seen.namespaces.get(name) else { return "is not there".into() };
    if let Some(tenant) = gputenancy_engine::projection::tenant_of(&**namespace) {
        return format!("belongs to tenant {tenant}: choose another name in spec.namespaces");
    }
    if name == seen.home {
        return "is the operator's own: choose another name in spec.namespaces".into();
    }
    if namespace.metadata.deletion_timestamp.is_some() {
        return "is not of any tenant and is being deleted; it is made anew when it is gone".into();
    }
    "exists and is not of any tenant: say adopt: true beside its name in spec.namespaces to take it, or choose another name".into()
}

fn policy(seen: &Observed) -> ConditionUpdate {
    let fences = Fences::of(seen);
    for (name, role) in seen.roles() {
        if !matches!(role, Role::Active | Role::Missing | Role::Retained) {
            continue;
        }
        if !seen.has_grant(&name) {
            let message = format!("the grant of namespace {name} is not written yet; until then its pods are refused");
            return ConditionUpdate::no(POLICY, reasons::APPLYING, message);
        }
        let late = fences.writes(seen, &name).first().and_then(unfenced);
        let people = || {
            let owners = render::owners(&seen.tenant, &name).is_some() != seen.bindings.contains_key(&name);
            let viewers = render::viewers(&seen.tenant, &name).is_some() != seen.viewers.contains_key(&name);
            let all = [(owners, render::OWNERS, "spec.owners"), (viewers, render::VIEWERS, "spec.viewers")];
            let (_, binding, field) = all.into_iter().find(|(late, ..)| *late)?;
            Some(format!("role binding {binding} is not as {field} says yet"))
        };
        if let Some(what) = late.or_else(people) {
            return ConditionUpdate::no(POLICY, reasons::APPLYING, format!("namespace {name}: {what}"));
        }
    }
    let isolated = seen.tenant.spec.network == Network::Isolated;
    if isolated && seen.api_endpoints.is_empty() {
        let message = "no address of the API server is known, so isolated pods do not reach it: Service kubernetes in namespace default has no EndpointSlice with one; see that kube-apiserver makes it, or set spec.network: Open";
        return ConditionUpdate::no(POLICY, reasons::NO_API_SERVER, message);
    }
    let network =
        if isolated { "" } else { "; spec.network is Open: whoever runs pods in the cluster reaches its pods" };
    ConditionUpdate::yes(
        POLICY,
        reasons::GRANTED,
        format!("each namespace has a grant: kubectl get gpugrant shows it{network}"),
    )
}

/// What is not as it should be yet, by the write that sets it right.
fn unfenced(write: &Write) -> Option<String> {
    Some(match write {
        Write::Network(_) => format!("network policy {} is not in force as it should be yet", render::NETWORK),
        Write::Remove { what: Optional::Network, .. } => {
            format!("network policy {} is still there, though spec.network is Open", render::NETWORK)
        }
        Write::Limits(_) | Write::Remove { what: Optional::Limits, .. } => {
            format!("limit range {} does not say the platform's default requests yet", render::LIMITS)
        }
        Write::Classes(_) => format!("quota {} does not say what spec.priorityClasses says yet", render::CLASSES),
        Write::Remove { what: Optional::Classes, .. } => {
            format!("quota {} is still there, though spec.priorityClasses is left out", render::CLASSES)
        }
        _ => return None,
    })
}

fn quota(seen: &Observed) -> ConditionUpdate {
    if let Some(refusal) = seen.refusals().into_iter().next() {
        return ConditionUpdate::no(QUOTA, refusal.reason, refusal.message);
    }
    let (names, decision) = seen.decide_quotas();
    if let Some((name, _)) = budget::unreached(&names, &decision, &seen.quota_states()).into_iter().next() {
        let message = format!("the quota of namespace {name} is not in force yet");
        return ConditionUpdate::no(QUOTA, reasons::APPLYING, message);
    }
    let over = seen.overdraft(&decision);
    if !over.is_empty() && !seen.tenant.spec.suspend {
        let message = format!(
            "over budget: {over}; nothing is stopped and nothing new is admitted: end what uses it, or raise the budget"
        );
        return ConditionUpdate::no(QUOTA, reasons::OVER_BUDGET, message);
    }
    if seen.tenant.spec.suspend {
        return ConditionUpdate::yes(
            QUOTA,
            reasons::SUSPENDED,
            "spec.suspend: what runs goes on, nothing new is admitted",
        );
    }
    if let Some(cap) = &seen.tenant.spec.gpu_equivalents {
        let message =
            format!("the quotas in force are within the budget and allow no more than {cap} whole GPUs together");
        return ConditionUpdate::yes(QUOTA, reasons::IN_FORCE, message);
    }
    ConditionUpdate::yes(QUOTA, reasons::IN_FORCE, "the quotas in force add up to the budget")
}

fn capacity(seen: &Observed, gpus: &[GpuUse]) -> ConditionUpdate {
    let plan = seen.view.tenants.get(&*seen.name());
    if plan.and_then(|p| p.generation) != seen.tenant.metadata.generation {
        return ConditionUpdate::no(
            CAPACITY,
            reasons::PLANNING,
            "the plan has not seen this generation of the tenant yet",
        );
    }
    if let Some(shortage) = plan.and_then(|p| p.shortages.first()) {
        return ConditionUpdate::no(CAPACITY, reasons::SHORTAGE, shortage.clone());
    }
    if let Some(short) = gpus.iter().find(|g| g.available < g.budget) {
        let message = format!(
            "{} of {} devices of profile {} can be had now; the rest is being carved, or is held by pods outside of the tenants' quotas",
            short.available, short.budget, short.profile
        );
        return ConditionUpdate::no(CAPACITY, reasons::CHANGING, message);
    }
    ConditionUpdate::yes(CAPACITY, reasons::AVAILABLE, "every guaranteed device exists")
}

fn overall(parts: &[ConditionUpdate], gpus: &[GpuUse], failed: Option<&str>) -> Overall {
    if let Some(error) = failed {
        return Overall::Reconciling { reason: reasons::WRITE_FAILED, message: format!("{error}; tried again") };
    }
    let broken = |part: &&ConditionUpdate| part.status != Some(true);
    let Some(first) = parts.iter().filter(broken).min_by_key(|p| !needs_a_person(p.reason)) else {
        let devices: i32 = gpus.iter().map(|g| g.budget).sum();
        return Overall::Ready { message: format!("{devices} guaranteed devices, all available") };
    };
    let (reason, message) = (first.reason, first.message.clone());
    if needs_a_person(reason) { Overall::Stalled { reason, message } } else { Overall::Reconciling { reason, message } }
}

fn needs_a_person(reason: Reason) -> bool {
    let passing =
        [reasons::CREATING, reasons::APPLYING, reasons::PLANNING, reasons::CHANGING, reasons::NAMESPACE_TERMINATING];
    !passing.contains(&reason)
}

fn deletion(seen: &Observed) -> Overall {
    if seen.tenant.spec.deletion_protection {
        let message = "the tenant was deleted and is protected: set spec.deletionProtection: false to let it go".into();
        return Overall::Stalled { reason: reasons::DELETION_PROTECTED, message };
    }
    let going: Vec<String> = seen
        .roles()
        .into_iter()
        .filter(|(_, r)| *r == Role::Terminating)
        .map(|(n, _)| teardown::blocker(seen, &n))
        .collect();
    let message = if going.is_empty() { "namespaces are being released".to_owned() } else { going.join("; ") };
    if teardown::deleted_for(seen) >= teardown::PATIENCE {
        return Overall::Stalled { reason: reasons::DELETION_BLOCKED, message };
    }
    Overall::Reconciling { reason: reasons::DELETING, message }
}
