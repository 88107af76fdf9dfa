//! The status of a tenant, computed from the same observation as its writes.

pub mod earlier_access;
pub mod memory_limit;
pub mod queue;
pub mod virtual_cluster;

use gputenancy_crds::{
    Equivalents, GpuTenantStatus, GpuUse, Isolation, NamespaceState, Network, SharingMode,
    condition::{self, ConditionUpdate, Overall, merge},
    names,
    reasons::{self, Reason},
    words::counted,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    Amount,
    decide::{
        Decided, desired, pull_secrets,
        roles::{Role, Roles},
        teardown,
    },
    observe::{Observed, managed::Managed, quota_key},
};

const NAMESPACES: &str = "NamespacesReady";
const POLICY: &str = "PolicyReady";
const QUOTA: &str = "QuotaReady";
const CAPACITY: &str = "CapacityReady";
/// Reason of `QuotaReady` and type of a condition while `spec.suspend` is true.
pub const SUSPENDED: &str = "Suspended";
/// Waiting time from which a controller is counted: a budget moves faster than a status is read.
pub const SHOWN_AFTER: SignedDuration = SignedDuration::from_secs(2);

/// The status after a decision; `failed`: the error of its last write.
pub fn status(seen: &Observed, decided: &Decided, failed: Option<&str>) -> GpuTenantStatus {
    let roles = &decided.roles;
    let generation = seen.tenant.metadata.generation;
    let old = seen.tenant.status.clone().unwrap_or_default();
    let gpus = uses(seen, roles);
    let mut parts =
        vec![namespaces(seen, roles), policy(seen, roles), quota(seen, decided), capacity(seen, roles, &gpus)];
    parts.extend(pull_secrets::condition(seen, roles));
    parts.extend(virtual_cluster::condition(seen));
    parts.extend(queue::condition(seen));
    let overall = if seen.tenant.metadata.deletion_timestamp.is_some() {
        deletion(seen, roles)
    } else {
        overall(&parts, &gpus, failed)
    };
    let mut updates = overall.updates();
    updates.extend(parts);
    // the platform's matter: a team whose pods run is Ready
    let limit = memory_limit::limit(seen, roles);
    updates.extend(limit.as_ref().map(memory_limit::condition));
    updates.extend(earlier_access::condition(seen, roles));
    if seen.tenant.spec.suspend {
        updates.push(ConditionUpdate::yes(
            SUSPENDED,
            reasons::SUSPENDED,
            "spec.suspend is true: set it to false to admit new pods",
        ));
    }
    let summary = gpus.iter().map(in_short).collect::<Vec<_>>().join(", ");
    GpuTenantStatus {
        observed_generation: generation,
        conditions: merge(&old.conditions, updates, generation, seen.now),
        namespaces: roles
            .iter()
            .map(|(name, role)| NamespaceState { name: name.into(), phase: phase(role).into() })
            .collect(),
        equivalents: equivalents(seen, roles),
        queue: queue::in_use(seen),
        // its controller's, and never written by the operator
        virtual_cluster: old.virtual_cluster,
        enforcement: limit.map(|limit| limit.means),
        summary: (!gpus.is_empty()).then_some(summary),
        gpus,
    }
}

/// Used and budget of a profile, and how many devices of the budget do not exist: `mig-1g 9/9 (6 unmet)`. Pods that wait for these count as used.
fn in_short(gpu: &GpuUse) -> String {
    let unmet = match gpu.budget.saturating_sub(gpu.available) {
        unmet @ 1.. => format!(" ({unmet} unmet)"),
        _ => String::new(),
    };
    format!("{} {}/{}{unmet}", gpu.profile, gpu.used, gpu.budget)
}

/// Is this a state that usually ends within a second?
pub fn is_transient(status: &GpuTenantStatus) -> bool {
    let ready = status.conditions.iter().find(|c| c.type_ == condition::READY);
    ready.is_some_and(|c| matches!(c.reason.as_str(), "Creating" | "Applying" | "Planning" | "QueuePending"))
}

fn phase(role: Role) -> &'static str {
    match role {
        Role::Missing => "Missing",
        Role::Foreign => NamespaceState::FOREIGN,
        Role::Adoptable => "Adopting",
        Role::Terminating => "Terminating",
        Role::Active => "Active",
        Role::Retained => "Retained",
    }
}

fn equivalents(seen: &Observed, roles: &Roles) -> Option<Equivalents> {
    let (used, cap) = (seen.equivalents(roles)?, seen.cap()?);
    Some(Equivalents { used: used.decimal(), cap: cap.whole.decimal() })
}

fn uses(seen: &Observed, roles: &Roles) -> Vec<GpuUse> {
    let names = || roles.own();
    let of = |g: &gputenancy_crds::Guarantee| {
        let profile = seen.view.profiles.get(&g.profile);
        let resource = profile.map(|p| p.resource.clone()).unwrap_or_default();
        let budget = if seen.granted(&g.profile).is_ok() { g.count } else { 0 };
        let used: Amount = names()
            .filter_map(|ns| seen.quotas.get(ns)?.status.used.get(&quota_key(&resource)).and_then(Amount::parse))
            .sum();
        let namespaces: Vec<&str> = names().collect();
        let refused = seen.refused.waiting(&namespaces, &quota_key(&resource), seen.now, SHOWN_AFTER);
        let held = seen.view.held_by(names(), &resource) + seen.view.retained_devices_of(names(), &resource);
        let free = profile.map_or(0, |p| p.free);
        let (borrowed, lent) = queue::shared(seen, &resource);
        let share = seen.view.weights.get(&resource).filter(|_| seen.tenant.spec.gpu_equivalents.is_some());
        GpuUse {
            profile: g.profile.clone(),
            budget,
            used: used.quantity().0.parse().unwrap_or(i32::MAX),
            share: share.map(ToString::to_string),
            isolation: profile.map(|p| p.sharing.map_or(Isolation::Hardware, SharingMode::isolation)),
            price: profile.and_then(|p| p.contract.price.clone()),
            // what others borrow comes back when the team asks for it
            available: held.saturating_add(free).saturating_add(lent).min(budget),
            waiting: seen
                .view
                .waiting_in(names(), &resource)
                .saturating_add(i32::try_from(refused).unwrap_or(i32::MAX))
                .saturating_add(virtual_cluster::refused(seen, &g.profile)),
            borrowed,
            lent,
            resource_name: resource,
        }
    };
    seen.tenant.spec.gpus.iter().map(of).collect()
}

fn namespaces(seen: &Observed, roles: &Roles) -> ConditionUpdate {
    let named = |wanted: Role| -> Vec<&str> { roles.with(wanted).collect() };
    let foreign = named(Role::Foreign);
    if let Some(first) = foreign.first() {
        let (reason, why) = conflict(seen, first);
        let mut message = format!("namespace {first} {why}");
        if foreign.len() > 1 {
            message.push_str(&format!("; listed and not the tenant's: {}", foreign.join(", ")));
        }
        return ConditionUpdate::no(NAMESPACES, reason, message);
    }
    let terminating: Vec<&str> = named(Role::Terminating);
    if !terminating.is_empty() {
        let blocked = |name: &&str| match teardown::reasons_of(seen, name) {
            None => (*name).to_owned(),
            Some(reasons) => format!("{name} ({reasons})"),
        };
        let named = terminating.iter().map(blocked).collect::<Vec<_>>().join(", ");
        let message = format!("{named} is being deleted; it is created again afterwards if spec.namespaces lists it");
        return ConditionUpdate::no(NAMESPACES, reasons::NAMESPACE_TERMINATING, message);
    }
    let pending = named(Role::Missing).len() + named(Role::Adoptable).len();
    if pending > 0 {
        let message = format!("{pending} of {} namespaces are being created or adopted", roles.iter().count());
        return ConditionUpdate::no(NAMESPACES, reasons::CREATING, message);
    }
    let count = seen.tenant.spec.namespaces.len();
    ConditionUpdate::yes(
        NAMESPACES,
        reasons::ACTIVE,
        format!("{count} {}", if count == 1 { "namespace" } else { "namespaces" }),
    )
}

/// Why a listed namespace is not the tenant's, and the remedy.
fn conflict(seen: &Observed, name: &str) -> (Reason, String) {
    let because = |message: &str| (reasons::NAMESPACE_CONFLICT, message.to_owned());
    let Some(namespace) = seen.namespaces.get(name) else { return because("does not exist") };
    if let Some(tenant) = gputenancy_crds::projection::tenant_of(&**namespace) {
        return because(&format!("belongs to tenant {tenant}: choose another name in spec.namespaces"));
    }
    if name == seen.operator_namespace {
        return because("is the operator's: choose another name in spec.namespaces");
    }
    if namespace.metadata.deletion_timestamp.is_some() {
        let blocked = teardown::reasons_of(seen, name).map(|reasons| format!(" ({reasons})")).unwrap_or_default();
        return because(&format!("has no tenant and is being deleted{blocked}; it is created again afterwards"));
    }
    let label = format!("kubectl label namespace {name} {}=true", names::ADOPTABLE_LABEL);
    if seen.tenant.spec.namespaces.iter().any(|n| n.name == name && n.adopt) {
        let message = format!(
            "exists, has no tenant, and is not labelled as adoptable: have a user with the right to update GpuTenants run `{label}`, or choose another name"
        );
        return (reasons::NAMESPACE_NOT_ADOPTABLE, message);
    }
    because(&format!(
        "exists and has no tenant: set adopt: true for its name in spec.namespaces and run `{label}`, or choose another name"
    ))
}

/// The condition of a tenant whose namespaces are all not its own: `message` says what it therefore lacks.
fn without_namespace(type_: &'static str, roles: &Roles, message: &str) -> Option<ConditionUpdate> {
    let mut roles = roles.iter().map(|(_, role)| role).peekable();
    let without = roles.peek().is_some() && roles.all(|role| role == Role::Foreign);
    without.then(|| ConditionUpdate::no(type_, reasons::NAMESPACE_CONFLICT, message))
}

fn policy(seen: &Observed, roles: &Roles) -> ConditionUpdate {
    let nowhere = "no grant is written for the tenant while it has no namespace of its own: see NamespacesReady";
    if let Some(none) = without_namespace(POLICY, roles, nowhere) {
        return none;
    }
    for name in roles.managed() {
        if let Some(kind) = Managed::from_spec().find(|kind| desired::write(seen, *kind, name).is_some()) {
            let message = format!("namespace {name}: {kind} does not match {} yet", kind.follows());
            return ConditionUpdate::no(POLICY, reasons::APPLYING, message);
        }
    }
    let isolated = seen.tenant.spec.network == Network::Isolated;
    if isolated && seen.api_endpoints.is_empty() {
        let message = "no address of the API server is known, so isolated pods do not reach it: Service kubernetes in namespace default has no EndpointSlice with one; check that kube-apiserver creates it, or set spec.network: Open";
        return ConditionUpdate::no(POLICY, reasons::NO_API_SERVER, message);
    }
    let network = if isolated { "" } else { "; spec.network is Open: all pods in the cluster reach its pods" };
    ConditionUpdate::yes(
        POLICY,
        reasons::GRANTED,
        format!("each namespace has a grant (kubectl get gpugrant){network}"),
    )
}

fn quota(seen: &Observed, Decided { roles, quotas, .. }: &Decided) -> ConditionUpdate {
    let nowhere = "no quota is written for the tenant while it has no namespace of its own: see NamespacesReady";
    if let Some(none) = without_namespace(QUOTA, roles, nowhere) {
        return none;
    }
    if let Some(refusal) = seen.refusals().into_iter().next() {
        return ConditionUpdate::no(QUOTA, refusal.reason, refusal.message);
    }
    if let Some(name) = quotas.pending(seen) {
        let message = format!("the quota of namespace {name} is not enforced yet");
        return ConditionUpdate::no(QUOTA, reasons::APPLYING, message);
    }
    let over = seen.overdraft(roles, &quotas.decision);
    if !over.is_empty() && !seen.tenant.spec.suspend {
        let message = format!(
            "over budget: {over}; running pods continue and no new pods are admitted: delete pods, or raise the budget"
        );
        return ConditionUpdate::no(QUOTA, reasons::OVER_BUDGET, message);
    }
    if seen.tenant.spec.suspend {
        return ConditionUpdate::yes(
            QUOTA,
            reasons::SUSPENDED,
            "spec.suspend is true: running pods continue and no new pods are admitted",
        );
    }
    if let Some(kept) = seen.retained_devices_note(roles) {
        return ConditionUpdate::yes(QUOTA, reasons::ENFORCED, kept);
    }
    if let Some(cap) = &seen.tenant.spec.gpu_equivalents {
        let message = format!("the enforced quotas are within the budget and allow at most {cap} whole GPUs together");
        return ConditionUpdate::yes(QUOTA, reasons::ENFORCED, message);
    }
    ConditionUpdate::yes(QUOTA, reasons::ENFORCED, "the enforced quotas add up to the budget")
}

fn capacity(seen: &Observed, roles: &Roles, gpus: &[GpuUse]) -> ConditionUpdate {
    let plan = seen.view.tenants.get(&*seen.name());
    if plan.and_then(|p| p.generation) != seen.tenant.metadata.generation {
        return ConditionUpdate::no(
            CAPACITY,
            reasons::PLANNING,
            "the plan has not seen this generation of the tenant yet",
        );
    }
    let nowhere = "no device is planned for the tenant while it has no namespace of its own";
    if let Some(none) = without_namespace(CAPACITY, roles, nowhere) {
        return none;
    }
    if let Some(refusal) = seen.refusals().into_iter().next() {
        return ConditionUpdate::no(CAPACITY, refusal.reason, refusal.message);
    }
    if let Some(shortage) = plan.and_then(|p| p.shortages.first()) {
        return ConditionUpdate::no(CAPACITY, reasons::SHORTAGE, shortage.clone());
    }
    if let Some(short) = gpus.iter().find(|g| g.available < g.budget) {
        return incomplete(seen, short);
    }
    ConditionUpdate::yes(CAPACITY, reasons::AVAILABLE, "every guaranteed device exists")
}

/// The condition of a tenant that lacks devices of a guarantee which the plan has.
fn incomplete(seen: &Observed, short: &GpuUse) -> ConditionUpdate {
    let available = format!("{} of {} devices of profile {} available", short.available, short.budget, short.profile);
    let pools = seen.view.profiles.get(&short.profile).map(|profile| &profile.contract.pools);
    let waiting = pools.into_iter().flatten().filter_map(|pool| Some((pool, seen.windows.get(pool)?.opens)));
    // the window that opens first
    match waiting.min_by_key(|(_, opens)| opens.unwrap_or(Timestamp::MAX)) {
        Some((pool, Some(opens))) => {
            let message = format!(
                "{available}; changes wait for the maintenance window of pool {pool} at {opens}: kubectl gpu changes shows them"
            );
            ConditionUpdate::no(CAPACITY, reasons::CHANGE_PLANNED, message)
        }
        Some((pool, None)) => {
            let message = format!(
                "{available}; changes wait for a maintenance window of pool {pool}, and none opens: correct spec.disruption.windows of the GpuPool"
            );
            ConditionUpdate::no(CAPACITY, reasons::CHANGE_PLANNED, message)
        }
        None => {
            let message = format!(
                "{available}; others are being created, or pods beyond their team's budget or outside of it hold them: kubectl gpu changes shows what a change waits for"
            );
            ConditionUpdate::no(CAPACITY, reasons::CHANGING, message)
        }
    }
}

fn overall(parts: &[ConditionUpdate], gpus: &[GpuUse], failed: Option<&str>) -> Overall {
    if let Some(error) = failed {
        return Overall::Reconciling { reason: reasons::WRITE_FAILED, message: format!("{error}; retrying") };
    }
    let broken = |part: &&ConditionUpdate| part.status != Some(true);
    let Some(first) = parts.iter().filter(broken).min_by_key(|p| !needs_action(p.reason)) else {
        let devices: i32 = gpus.iter().map(|g| g.budget).sum();
        return Overall::Ready { message: format!("{}, all available", counted(devices, "guaranteed device")) };
    };
    let (reason, message) = (first.reason, first.message.clone());
    if needs_action(reason) { Overall::Stalled { reason, message } } else { Overall::Reconciling { reason, message } }
}

fn needs_action(reason: Reason) -> bool {
    let transient = [
        reasons::CREATING,
        reasons::APPLYING,
        reasons::PLANNING,
        reasons::CHANGE_PLANNED,
        reasons::CHANGING,
        reasons::NAMESPACE_TERMINATING,
        reasons::CONTROL_PLANE_STARTING,
        reasons::VIRTUAL_CLUSTER_PENDING,
        reasons::VIRTUAL_CLUSTER_UNREACHABLE,
        reasons::WRITE_FAILED,
    ];
    !transient.contains(&reason)
}

fn deletion(seen: &Observed, roles: &Roles) -> Overall {
    if seen.tenant.spec.deletion_protection {
        let message =
            "the tenant was deleted and is protected: set spec.deletionProtection: false to complete the deletion"
                .into();
        return Overall::Stalled { reason: reasons::DELETION_PROTECTED, message };
    }
    if teardown::waits_for_virtual_cluster(seen, roles) {
        let message =
            "the virtual cluster is being deleted (by the Deployment gputenancy-virtual-clusters); namespaces follow"
                .into();
        return Overall::Reconciling { reason: reasons::DELETING, message };
    }
    let terminating: Vec<String> = roles.with(Role::Terminating).map(|name| teardown::blocker(seen, name)).collect();
    let message =
        if terminating.is_empty() { "namespaces are being released".to_owned() } else { terminating.join("; ") };
    if teardown::deleted_for(seen) >= teardown::MAX_WAIT {
        return Overall::Stalled { reason: reasons::DELETION_BLOCKED, message };
    }
    Overall::Reconciling { reason: reasons::DELETING, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_the_budget_that_do_not_exist_are_in_the_line_for_kubectl() {
        let gpu = |used, budget, available| {
            let (profile, resource_name) = ("mig-1g".to_owned(), "nvidia.com/mig-1g.10gb".to_owned());
            GpuUse {
                profile,
                resource_name,
                budget,
                used,
                available,
                waiting: 0,
                borrowed: 0,
                lent: 0,
                share: None,
                isolation: None,
                price: None,
            }
        };
        let lines = [gpu(9, 9, 3), gpu(2, 8, 8), gpu(0, 0, 0)].map(|gpu| in_short(&gpu));
        assert_eq!(lines, ["mig-1g 9/9 (6 unmet)", "mig-1g 2/8", "mig-1g 0/0"]);
    }
}
