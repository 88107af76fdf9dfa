//! What to write so that the queues are as they should be, and what tenants have to know. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_cluster::desired::includes;
use gputenancy_crds::reasons;
use gputenancy_decisions::queues::{Cell, Limits, Shares, Table, complete, divide, plan_writes};
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::Value;

use super::{
    limits,
    observe::{Observed, has_condition, is_ours},
    pools,
    render::{self, Key, PREFIX},
    teams::QueuedTenant,
    usage::Usage,
    view::{QueueView, TenantQueue},
    workloads,
    write::Write,
};
use crate::cache::kueue::Kind;

/// What is decided of one observation.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    /// In this order.
    pub writes: Vec<Write>,
    /// For tenants.
    pub view: QueueView,
}

/// Objects by key.
type Objects = BTreeMap<Key, Value>;

/// Decides about all queues.
pub fn decide(seen: &Observed) -> Decided {
    let live = limits_in_force(seen);
    let teams: Vec<_> = seen.tenants.iter().map(|tenant| tenant.team.clone()).collect();
    let shares = divide(&teams, &seen.supply, &by_team(&live));
    let wanted = wanted_limits(seen, &shares);
    let mut objects = wanted_objects(seen, &wanted);
    let foreign: BTreeSet<Key> = objects.keys().filter(|key| seen.is_foreign(key)).cloned().collect();
    objects.retain(|key, _| !foreign.contains(key));
    // a queue of another writer must not admit the jobs of a team
    let closed = seen.tenants.iter().filter(|tenant| foreign.contains(&cluster_queue(&tenant.team.name)));
    for key in closed.flat_map(local_queues) {
        objects.remove(&key);
    }

    let numbers = plan_writes(&live, &wanted);
    let mut writes: Vec<Write> = numbers
        .lower
        .iter()
        .filter(|(key, _)| !foreign.contains(*key))
        .map(|(key, table)| Write::Lower(key.clone(), with_limits(seen, key, table)))
        .collect();
    for (key, object) in &objects {
        let lowered = numbers.lower.get(key);
        let is_written = lowered.is_some() && lowered == wanted.get(key);
        let differs = lowered.is_some() || seen.live.get(key).is_none_or(|live| !is_as_wanted(live, object));
        if differs && !is_written {
            writes.push(Write::Apply(key.clone(), object.clone()));
        }
    }
    writes.extend(workloads::writes(seen));
    // an object is deleted before those that it refers to
    writes.extend(seen.unwanted(&objects).into_iter().rev().map(Write::Delete));
    let usage = Usage::of(seen, &shares);
    let queues = seen.tenants.iter().map(|tenant| {
        let mut queue = tenant_queue(seen, tenant, (&objects, &foreign), &shares);
        usage.fill_in(&tenant.team.name, &mut queue);
        (tenant.team.name.clone(), queue)
    });
    let conflicts = seen.conflicts.iter().map(|(tenant, profiles)| (tenant.clone(), conflict(profiles)));
    Decided { writes, view: QueueView { tenants: queues.chain(conflicts).collect(), pools: pools::states(seen) } }
}

/// The key of a team's queue.
fn cluster_queue(team: &str) -> Key {
    (Kind::ClusterQueue, String::new(), render::name(team))
}

/// The keys of a team's queues in its namespaces.
fn local_queues(tenant: &QueuedTenant) -> impl Iterator<Item = Key> {
    tenant.namespaces.keys().map(|ns| (Kind::LocalQueue, ns.clone(), render::LOCAL_QUEUE.to_owned()))
}

impl Observed {
    /// The tenant of this name; they are in the order of names.
    fn tenant(&self, name: &str) -> Option<&QueuedTenant> {
        let at = self.tenants.binary_search_by(|tenant| tenant.team.name.as_str().cmp(name)).ok()?;
        self.tenants.get(at)
    }

    /// Is there an object of this name that the operator has not written?
    fn is_foreign(&self, key: &Key) -> bool {
        self.live.get(key).is_some_and(|live| !is_ours(live))
    }

    /// Objects of the operator that are not wanted.
    fn unwanted(&self, wanted: &Objects) -> Vec<Key> {
        let gone = self.live.iter().filter(|(key, live)| is_ours(live) && !wanted.contains_key(*key));
        // deleted once: Kueue removes its finalizer when no work needs the object
        gone.filter(|(_, live)| live.metadata.deletion_timestamp.is_none()).map(|(key, _)| key.clone()).collect()
    }
}

/// Has the object all that is wanted?
fn is_as_wanted(live: &DynamicObject, wanted: &Value) -> bool {
    let labels = serde_json::to_value(live.labels()).unwrap_or_default();
    let same = |live: Option<&Value>, path| {
        wanted.pointer(path).is_none_or(|wanted| live.is_some_and(|l| includes(l, wanted)))
    };
    same(live.data.get("spec"), "/spec") && same(Some(&labels), "/metadata/labels")
}

/// The limits that Kueue has, of queues of teams and of the spare devices.
fn limits_in_force(seen: &Observed) -> BTreeMap<Key, Table> {
    let has_limits = |key: &Key| key.0 == Kind::ClusterQueue || key.0 == Kind::Cohort && key.2 == render::SPARE;
    let ours = seen.live.iter().filter(|(key, live)| has_limits(key) && is_ours(live));
    ours.map(|(key, live)| (key.clone(), limits::table(live.data.get("spec")))).collect()
}

fn by_team(live: &BTreeMap<Key, Table>) -> BTreeMap<String, Table> {
    let of_teams = live.iter().filter(|((kind, ..), _)| *kind == Kind::ClusterQueue);
    of_teams.filter_map(|((_, _, name), table)| Some((name.strip_prefix(PREFIX)?.to_owned(), table.clone()))).collect()
}

/// The limits as they should be, complete as Kueue has them.
fn wanted_limits(seen: &Observed, shares: &Shares) -> BTreeMap<Key, Table> {
    let of_team = |tenant: &QueuedTenant| {
        let table = shares.teams.get(&tenant.team.name).map(complete).unwrap_or_default();
        (cluster_queue(&tenant.team.name), table)
    };
    let teams = seen.tenants.iter().map(of_team);
    let spare = shares.spare.iter().map(|(cell, n)| (cell.clone(), Limits { nominal: *n, ..Limits::default() }));
    let spare: Table = complete(&spare.collect());
    let spare = ((Kind::Cohort, String::new(), render::SPARE.to_owned()), spare);
    teams.chain((!seen.pools.is_empty()).then_some(spare)).collect()
}

/// All objects as they should be.
fn wanted_objects(seen: &Observed, limits: &BTreeMap<Key, Table>) -> Objects {
    let mut objects = Objects::new();
    for (name, pool) in &seen.pools {
        objects.extend(render::topology(name, pool));
        objects.extend([render::flavor(name, pool), render::admission_check()]);
    }
    let mut groups: BTreeMap<&str, BTreeSet<Cell>> = BTreeMap::new();
    for tenant in &seen.tenants {
        let key = cluster_queue(&tenant.team.name);
        let cells = limits.get(&key).into_iter().flat_map(|table| table.keys().cloned());
        groups.entry(&tenant.group).or_default().extend(cells);
        for (namespace, listed) in &tenant.namespaces {
            objects.extend([render::local_queue(&tenant.team.name, namespace, *listed)]);
        }
    }
    objects.extend(groups.into_iter().map(|(group, cells)| render::group(group, &cells)));
    objects.extend(limits.iter().map(|(key, table)| (key.clone(), with_limits(seen, key, table))));
    objects
}

/// An object with these limits: a team's queue, that of a team that is gone, or the spare devices.
fn with_limits(seen: &Observed, key: &Key, table: &Table) -> Value {
    let (kind, _, name) = key;
    if *kind == Kind::Cohort {
        return render::spare(table).1;
    }
    let team = name.strip_prefix(PREFIX).unwrap_or(name);
    match seen.tenant(team) {
        Some(tenant) => render::cluster_queue(tenant, table).1,
        None => render::with_limits(seen.live.get(key).map(|live| &**live), key, table),
    }
}

/// The state of a tenant's queue.
fn tenant_queue(
    seen: &Observed,
    tenant: &QueuedTenant,
    (objects, foreign): (&Objects, &BTreeSet<Key>),
    shares: &Shares,
) -> TenantQueue {
    let state = TenantQueue::of;
    let team = &tenant.team.name;
    let queue = cluster_queue(team);
    let keys: Vec<Key> = [queue.clone()].into_iter().chain(local_queues(tenant)).collect();
    if let Some((kind, namespace, name)) = keys.iter().find(|key| foreign.contains(*key)) {
        let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
        let message = format!(
            "{} {name}{place} was not written by the operator, which leaves it as it is: delete it, or take the tenant's profiles out of \
             pools with spec.queueing",
            kind.name()
        );
        return state(false, reasons::QUEUE_FOREIGN, message);
    }
    if let Some(profiles) = seen.conflicts.get(team) {
        return conflict(profiles);
    }
    let lacking = |key: &&Key| match (objects.get(*key), seen.live.get(*key)) {
        (Some(wanted), Some(live)) => !is_as_wanted(live, wanted),
        _ => true,
    };
    if let Some((kind, ..)) = keys.iter().find(lacking) {
        let message =
            format!("{} is being written: if this stays, see that Kueue 0.16 or later is installed", kind.name());
        return state(false, reasons::QUEUE_PENDING, message);
    }
    if seen.live.get(&queue).is_none_or(|live| !has_condition(live, "Active")) {
        let message = format!(
            "Kueue does not say that ClusterQueue {} is active: see that it runs, and kubectl describe clusterqueue {}",
            queue.2, queue.2
        );
        return state(false, reasons::QUEUE_NOT_ACTIVE, message);
    }
    let missing: Vec<String> = shares
        .missing
        .range((team.clone(), String::new())..)
        .take_while(|((name, _), _)| name == team)
        .map(|((_, resource), n)| format!("{n} of {resource}"))
        .collect();
    let message = match missing.as_slice() {
        [] => "jobs are admitted by Kueue within the guarantees and what may be borrowed".to_owned(),
        missing => format!(
            "jobs are admitted by Kueue; of the guarantees {} do not exist yet, or pods that Kueue has not admitted have them",
            missing.join(", ")
        ),
    };
    state(true, reasons::QUEUED, message)
}

/// The state of a tenant with profiles whose pools have different systems.
fn conflict(profiles: &[String]) -> TenantQueue {
    let message = format!(
        "pools with different spec.queueing.system offer {}, so that jobs for it have no queue: write the same system in all pools that offer it",
        profiles.join(", ")
    );
    TenantQueue::of(false, reasons::QUEUE_CONFLICT, message)
}
