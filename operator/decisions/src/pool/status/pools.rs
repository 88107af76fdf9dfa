//! The status of pools.

use std::collections::BTreeSet;

use gputenancy_crds::{
    ChangePhase, GpuPool, GpuPoolStatus, Health, PendingChange, PoolChange, PoolProfile, WindowTimes,
    condition::{ConditionUpdate, Overall, READY, merge},
    ids::{GpuKey, NodeName},
    reasons::{self, Reason},
};
use gputenancy_plan::{Problem, membership, resource_name};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

use super::queue;
use crate::{
    change::{ChangeDecision, Window},
    event::EventMessage,
    pool::{
        decide::{decided::Decided, node_specs::is_releasable, rollout},
        derive::{enforcement, flapping, marks, silence, sums::PoolSums},
    },
};

/// Most GPUs with a fault that a message names.
const MOST_FAULTY: usize = 4;

/// Most profiles in the line for `kubectl get`.
const MOST_IN_SHORT: usize = 4;

/// So many GPUs that wait for their change are listed; a status is no inventory.
const MOST_PENDING: usize = 32;

/// How long a deleted pool waits for its GPUs to become idle before it is deleted; GPUs are released once idle, also afterwards.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// Demand that the pool cannot serve is a condition of its own: the pool itself is in order.
const DEMAND_MET: &str = "DemandMet";

/// Another product owns GPUs of the pool's nodes.
const FOREIGN: &str = "ForeignPartitioner";

/// Status of one pool.
pub fn pool(decided: &Decided<'_>, pool: &GpuPool) -> GpuPoolStatus {
    let name = pool.name_any();
    let generation = pool.metadata.generation;
    let old = pool.status.clone().unwrap_or_default();
    let (no_nodes, no_sums) = (BTreeSet::new(), PoolSums::default());
    let nodes = decided.ownership.nodes_of(&name).unwrap_or(&no_nodes);
    let sums = decided.views.sums().of_pool(&name).unwrap_or(&no_sums);
    let profiles = profiles(decided, pool, sums);
    let changes = changes(decided, &name);
    let mut pending = pending(decided, &name);
    let unsatisfied: Vec<String> = unsatisfied(decided, &name);
    let deleted = pool.metadata.deletion_timestamp.is_some();
    let overall = if deleted { deletion(decided, pool) } else { overall(decided, pool, nodes, &changes, &pending) };
    pending.truncate(MOST_PENDING);
    let mut updates = overall.updates();
    updates.push(match unsatisfied.first() {
        None if deleted => ConditionUpdate::no(
            DEMAND_MET,
            reasons::DELETING,
            "the pool is being deleted: no guarantee is planned on it",
        ),
        None => ConditionUpdate::yes(
            DEMAND_MET,
            reasons::SERVED,
            "every guarantee that asks for this pool's profiles is served",
        ),
        Some(first) => ConditionUpdate::no(DEMAND_MET, reasons::SHORTAGE, first),
    });
    updates.push(foreign(decided, &name));
    let mine = decided.plan.problems.iter().filter(|p| p.concerns_pool(&name));
    updates.extend(enforcement::condition(pool.spec.enforcement.minimum, mine));
    updates.push(silence::update(decided.silent, nodes, &old.conditions, decided.now()));
    updates.push(marks::update(decided.marks, nodes, decided.overruns.of(&name)));
    let (flapping, update) = flapping::report(pool, decided.demands, decided.now());
    updates.push(update);
    updates.extend(queue::condition(pool, decided.fleet().queues.as_ref()));
    let (rollout, rolled_out) = decided.stages.report(&name).unzip();
    updates.extend(rolled_out);
    GpuPoolStatus {
        observed_generation: generation,
        conditions: merge(&old.conditions, updates, generation, decided.now()),
        nodes: Some(sums.nodes),
        gpus: Some(sums.gpus),
        stranded: decided.plan.plan.stranded.get(name.as_str()).copied(),
        changing: Some(number(changes.iter().filter(|c| c.phase < ChangePhase::RolledBack).count())),
        changes,
        pending,
        next_window: next_window(decided, &name),
        tolerated_taint: decided.inventory().tolerated.unusual(),
        unmet: Some(unmet(decided, &name)),
        unsatisfied,
        flapping,
        summary: Some(in_short(&profiles)),
        profiles,
        rollout,
    }
}

/// Used and total of the profiles with devices, as many as fit into a column of a terminal.
fn in_short(profiles: &[PoolProfile]) -> String {
    let existing: Vec<&PoolProfile> = profiles.iter().filter(|p| p.total > 0).collect();
    let shown = existing.iter().take(MOST_IN_SHORT).map(|p| format!("{} {}/{}", p.name, p.allocated, p.total));
    let mut words: Vec<String> = shown.collect();
    let more = existing.len().saturating_sub(MOST_IN_SHORT);
    if more > 0 {
        words.push(format!("{more} more"));
    }
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn number(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn profiles(decided: &Decided<'_>, pool: &GpuPool, sums: &PoolSums) -> Vec<PoolProfile> {
    let of = |name: &String| {
        // devices under the resource of a refused profile are those of another one
        let read = &decided.plan.snapshot.profiles;
        let profile = decided.profile(name).filter(|_| read.contains_key(name.as_str()));
        let count = profile.map(|p| sums.capacity(&resource_name(name, &p.spec))).unwrap_or_default();
        PoolProfile { name: name.clone(), total: count.total, allocated: count.allocated, free: count.free }
    };
    pool.spec.profiles.iter().map(of).collect()
}

fn changes(decided: &Decided<'_>, pool: &str) -> Vec<PoolChange> {
    let of = |(key, decision): (&GpuKey, &ChangeDecision)| {
        let progress = decision.progress.clone()?;
        let gpu = decided.plan.plan.gpus.get(key).filter(|g| g.pool.as_str() == pool)?;
        Some(PoolChange {
            node: key.node.to_string(),
            gpu: gpu.index,
            phase: progress.phase,
            message: progress.message,
        })
    };
    let mut changes: Vec<PoolChange> = decided.gpu_changes.iter().filter_map(of).collect();
    changes.sort_by(|a, b| (&a.node, a.gpu).cmp(&(&b.node, b.gpu)));
    changes
}

/// Devices that guarantees for the pool's profiles lack.
fn unmet(decided: &Decided<'_>, pool: &str) -> i32 {
    let lacking = |problem: &Problem| match problem {
        Problem::Shortage { wanted, got, .. } if problem.concerns_pool(pool) => wanted.saturating_sub(*got),
        _ => 0,
    };
    i32::try_from(decided.plan.problems.iter().map(lacking).sum::<u32>()).unwrap_or(i32::MAX)
}

fn unsatisfied(decided: &Decided<'_>, pool: &str) -> Vec<String> {
    let short = decided.plan.problems.iter().filter(|p| p.concerns_pool(pool) && matches!(p, Problem::Shortage { .. }));
    short.map(ToString::to_string).collect()
}

/// Names every node that has another owner, with what was decided and what to do for the first of them.
fn foreign(decided: &Decided<'_>, pool: &str) -> ConditionUpdate {
    let mut theirs = decided.plan.problems.iter().filter(|p| p.concerns_pool(pool)).filter_map(|p| match p {
        Problem::ForeignPartitioner { node, by, .. } => Some((p, format!("{node} ({by})"))),
        _ => None,
    });
    let Some((first, _)) = theirs.next() else {
        return ConditionUpdate::no(FOREIGN, reasons::NONE, "no other product owns GPUs of this pool's nodes");
    };
    let others: Vec<String> = theirs.map(|(_, node)| node).collect();
    let message = if others.is_empty() { first.to_string() } else { format!("{first}; also {}", others.join(", ")) };
    ConditionUpdate::yes(FOREIGN, reasons::FOUND, message)
}

/// The events of a pool whose conditions have changed: a new reason of `Ready`, and other owners, silent agents, marked nodes and
/// guarantees that flap, which come and go.
pub fn events(before: &[Condition], now: &[Condition]) -> Vec<EventMessage> {
    let of = |all: &[Condition], type_: &str| all.iter().find(|c| c.type_ == type_).cloned();
    let mut events = Vec::new();
    let old = of(before, READY).map(|c| c.reason);
    if let Some(ready) = of(now, READY).filter(|c| Some(&c.reason) != old.as_ref() && c.reason != FOREIGN) {
        // what waits for a window, a limit or running pods, as specified, is no warning
        let usual = [reasons::CHANGING, reasons::CHANGE_PLANNED, reasons::DELETING];
        let calm = ready.status == "True" || usual.iter().any(|reason| *reason == ready.reason.as_str());
        events.extend(Reason::listed(&ready.reason).map(|reason| EventMessage {
            warning: !calm,
            reason,
            message: ready.message,
        }));
    }
    let (old, new) = (of(before, FOREIGN), of(now, FOREIGN));
    let found = |c: &Option<Condition>| c.as_ref().is_some_and(|c| c.status == "True");
    match new {
        Some(new)
            if new.status == "True" && old.as_ref().is_none_or(|o| o.status != "True" || o.message != new.message) =>
        {
            events.push(EventMessage::warning(reasons::FOREIGN_PARTITIONER, new.message));
        }
        Some(new) if new.status != "True" && found(&old) => {
            events.push(EventMessage::normal(reasons::FOREIGN_PARTITIONER_GONE, new.message));
        }
        _ => {}
    }
    events.extend(silence::event(before, now));
    events.extend(marks::event(before, now));
    events.extend(flapping::event(before, now));
    events.extend(rollout::event(before, now));
    events
}

fn pending(decided: &Decided<'_>, pool: &str) -> Vec<PendingChange> {
    let of = |(key, decision): (&GpuKey, &ChangeDecision)| {
        let message = decision.pending.clone()?;
        let gpu = decided.plan.plan.gpus.get(key).filter(|g| g.pool.as_str() == pool)?;
        Some(PendingChange { node: key.node.to_string(), gpu: gpu.index, message })
    };
    let mut pending: Vec<PendingChange> = decided.gpu_changes.iter().filter_map(of).collect();
    pending.sort_by(|a, b| (&a.node, a.gpu).cmp(&(&b.node, b.gpu)));
    pending
}

/// The window that is open, or else the next one.
fn next_window(decided: &Decided<'_>, pool: &str) -> Option<WindowTimes> {
    let (start, end) = match decided.windows.get(pool)?.as_ref().ok()? {
        Window::Always => return None,
        Window::Open { since, until, .. } => (*since, *until),
        Window::Closed { next } => (*next)?,
    };
    Some(WindowTimes { start: Time(start), end: Time(end) })
}

fn overall(
    decided: &Decided<'_>,
    pool: &GpuPool,
    nodes: &BTreeSet<NodeName>,
    changes: &[PoolChange],
    pending: &[PendingChange],
) -> Overall {
    let old = pool.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    let (pool, taint) = (pool.name_any(), pool.spec.taint.as_ref());
    let pool = pool.as_str();
    let stalled = |reason: Reason, message: String| Overall::Stalled { reason, message };
    let waiting = |reason: Reason, message: String| Overall::Reconciling { reason, message };
    let mistake =
        decided.plan.problems.iter().find(|p| p.concerns_pool(pool) && !matches!(p, Problem::Shortage { .. }));
    let unreadable = decided
        .plan
        .problems
        .iter()
        .find(|p| matches!(p, Problem::InvalidSpec { object, .. } if *object == format!("GpuPool {pool}")));
    if let Some(problem) = mistake.or(unreadable) {
        return stalled(problem.reason(), problem.to_string());
    }
    if let Some(message) = taint.and_then(|t| decided.inventory().tolerated.refuses(t)) {
        return stalled(reasons::TAINT_NOT_TOLERATED, message);
    }
    if let Some(Err(error)) = decided.windows.get(pool) {
        return stalled(reasons::INVALID_WINDOW, format!("no change begins: {error}"));
    }
    let message = |c: &PoolChange| format!("GPU {} of node {}: {}", c.gpu, c.node, c.message);
    if let Some(failed) = changes.iter().find(|c| c.phase >= ChangePhase::RolledBack) {
        let reason = if failed.phase == ChangePhase::Stuck { reasons::CHANGE_STUCK } else { reasons::CHANGE_FAILED };
        return stalled(reason, message(failed));
    }
    let silent = decided.silent;
    let not_ready = || silence::not_ready(silent, nodes, old, decided.now());
    let proceeds = changes.iter().find(|c| !silent.contains(&c.node));
    if let Some(first) = proceeds.or(changes.first()) {
        let suspended = proceeds.is_none().then(not_ready).flatten();
        if let Some(message) = suspended {
            let gpus = if changes.len() == 1 { "one GPU" } else { "several GPUs" };
            return waiting(reasons::NODE_NOT_READY, format!("{message}; the change of {gpus} there is suspended"));
        }
        let others = if changes.len() > 1 { format!(" (and {} more)", changes.len() - 1) } else { String::new() };
        return waiting(reasons::CHANGING, format!("{}{others}", message(first)));
    }
    if nodes.is_empty() {
        return stalled(
            reasons::NO_NODES,
            "no node matches spec.nodeSelector: label the nodes of this pool, or correct the selector".into(),
        );
    }
    let without = decided.ownership.without_gpu_node.iter().filter(|node| nodes.contains(*node));
    let without: Vec<&str> = without.map(NodeName::as_str).collect();
    if !without.is_empty() {
        return waiting(
            reasons::NO_AGENT,
            format!("no agent has reported from nodes {}: see that the agent's pods run there", without.join(", ")),
        );
    }
    if let Some(message) = not_ready() {
        return waiting(reasons::NODE_NOT_READY, message);
    }
    // Between two changes nothing is under way, and yet the pool is not what it should be.
    if let Some(first) = pending.first() {
        let others = if pending.len() > 1 { format!(" ({} more GPUs wait)", pending.len() - 1) } else { String::new() };
        let message = format!("GPU {} of node {}: {}{others}", first.gpu, first.node, first.message);
        return waiting(reasons::CHANGE_PLANNED, message);
    }
    let ahead = decided.plan.changes.iter().filter_map(|key| Some((key, decided.plan.plan.gpus.get(key)?)));
    let ahead = ahead.filter(|(_, gpu)| gpu.pool.as_str() == pool);
    let ahead: Vec<String> = ahead.map(|(key, gpu)| format!("GPU {} of node {}", gpu.index, key.node)).collect();
    if !ahead.is_empty() {
        return waiting(reasons::CHANGE_PLANNED, format!("to be changed next: {}", ahead.join(", ")));
    }
    let (count, faults) = (nodes.len(), faults(decided, nodes));
    Overall::Ready {
        message: format!("{count} {}, every GPU as planned{faults}", if count == 1 { "node" } else { "nodes" }),
    }
}

/// GPUs of these nodes that get no new pods because of a fault, as a clause.
fn faults(decided: &Decided<'_>, nodes: &BTreeSet<NodeName>) -> String {
    let here =
        nodes.iter().filter_map(|node| Some((node, decided.fleet().gpu_nodes.get(node.as_str())?.status.as_ref()?)));
    let gpus = here.flat_map(|(node, status)| status.gpus.iter().map(move |gpu| (node, gpu)));
    let faulty: Vec<String> = gpus
        .filter(|(_, gpu)| gpu.health != Health::Healthy)
        .map(|(node, gpu)| format!("GPU {} of node {node} ({})", gpu.index, gpu.fault.as_deref().unwrap_or("lost")))
        .collect();
    let more = faulty.len().saturating_sub(MOST_FAULTY);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = faulty.iter().take(MOST_FAULTY).map(String::as_str).collect::<Vec<_>>().join(", ");
    let see = "see status.gpus of the GpuNode";
    if named.is_empty() { named } else { format!(", but faults keep new pods from {named}{more}: {see}") }
}

/// GPUs that a deleted pool still has, as `node/index` with what uses them.
fn left(decided: &Decided<'_>, pool: &GpuPool) -> Vec<String> {
    let labels = decided.fleet().nodes.iter().map(|(name, node)| (name.as_str(), node.labels()));
    let mine = membership(&[pool], labels);
    let mut left = Vec::new();
    for node in mine.keys().filter(|n| !decided.ownership.is_pooled(n.as_str())) {
        let Some(agreement) = decided.fleet().gpu_nodes.get(node.as_str()) else { continue };
        for spec in &agreement.spec.gpus {
            let state = agreement.status.iter().flat_map(|s| &s.gpus).find(|g| g.uuid == spec.uuid);
            let index = state.map_or_else(|| spec.uuid.clone(), |s| s.index.to_string());
            let devices = state.iter().flat_map(|s| s.devices());
            let owners: BTreeSet<String> =
                devices.filter_map(|d| d.owner.as_ref()).map(|o| format!("{}/{}", o.namespace, o.pod)).collect();
            let who = if owners.is_empty() {
                String::new()
            } else {
                format!(" (pods {})", owners.into_iter().collect::<Vec<_>>().join(", "))
            };
            let leaving = is_releasable(decided.fleet(), agreement, &spec.uuid, spec);
            left.push(format!("GPU {index} of node {node}{}", if leaving { String::new() } else { who }));
        }
    }
    left
}

fn deletion(decided: &Decided<'_>, pool: &GpuPool) -> Overall {
    let left = left(decided, pool);
    let message = if left.is_empty() {
        "no GPU is left: the operator's finalizer is removed next".to_owned()
    } else {
        format!(
            "waiting until these GPUs are idle, 5 minutes at most; then the pool is deleted, and each GPU is released once it is idle: {}",
            left.join(", ")
        )
    };
    Overall::Reconciling { reason: reasons::DELETING, message }
}

/// Deleted pools that may go: nothing of theirs is left, or they have waited long enough.
pub fn finished(decided: &Decided<'_>) -> BTreeSet<String> {
    let deleted = |p: &&GpuPool| p.metadata.deletion_timestamp.is_some();
    let done = |p: &&GpuPool| {
        let since = p.metadata.deletion_timestamp.as_ref().map_or(decided.now(), |t| t.0);
        left(decided, p).is_empty() || decided.now().duration_since(since) >= PATIENCE
    };
    decided.fleet().pools.iter().filter(deleted).filter(done).map(ResourceExt::name_any).collect()
}

/// When the patience with a deleted pool ends.
pub fn patience_ends(decided: &Decided<'_>) -> Option<Timestamp> {
    let deleted = decided.fleet().pools.iter().filter_map(|p| p.metadata.deletion_timestamp.as_ref());
    deleted.filter_map(|t| t.0.checked_add(PATIENCE).ok()).filter(|end| *end > decided.now()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_for_kubectl_has_the_first_profiles_with_devices() {
        let profile = |name: &str, total| PoolProfile { name: name.to_owned(), total, allocated: 1, free: 0 };
        let all = ["a", "b", "c", "d", "e", "f"].map(|name| profile(name, i32::from(name != "b") * 2));
        assert_eq!(in_short(&all), "a 1/2, c 1/2, d 1/2, e 1/2, 1 more");
        assert_eq!(in_short(&[profile("gpu", 0)]), "none");
    }
}
