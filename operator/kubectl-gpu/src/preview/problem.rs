//! Problems to fix, and notes.

use std::collections::BTreeSet;

use gputenancy_crds::{ChangePhase, FlappingGuarantee, GpuPool};
use gputenancy_decisions::verdict::withdrawn_gpus;
use kube::ResourceExt as _;

use super::{
    estimate,
    model::{Finding, GpuChange},
    planned::PlannedWorld,
    window,
};

/// Everything that is refused or unmet; `refused` comes from applying the manifests.
pub(super) fn findings(old: &PlannedWorld<'_>, new: &PlannedWorld<'_>, refused: &[Finding]) -> Vec<Finding> {
    let known: BTreeSet<String> = messages(old).into_iter().map(|(_, message)| message).collect();
    let found = messages(new).into_iter().map(|(reason, message)| Finding {
        reason: reason.to_owned(),
        known: known.contains(&message),
        message,
    });
    let mut findings: Vec<Finding> = found.chain(refused.iter().cloned()).collect();
    // new problems come first
    findings.sort_by(|a, b| (a.known, &a.reason, &a.message).cmp(&(b.known, &b.reason, &b.message)));
    findings.dedup();
    findings
}

fn messages(planned: &PlannedWorld<'_>) -> Vec<(&'static str, String)> {
    let mut found: Vec<_> = planned.problems.iter().map(|p| (p.reason().as_str(), p.to_string())).collect();
    let selected: BTreeSet<&str> =
        planned.members.values().flatten().map(gputenancy_crds::ids::PoolName::as_str).collect();
    for pool in planned.world.fleet.pools.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
        let name = pool.name_any();
        if let Some(error) = window::of(pool, planned.world.taken_at).error {
            found.push(("InvalidWindow", format!("pool {name}: no change begins: {error}")));
        }
        if !selected.contains(name.as_str()) {
            let remedy = "label the nodes of this pool, or correct the selector";
            found.push(("NoNodes", format!("pool {name}: no node matches spec.nodeSelector: {remedy}")));
        }
    }
    found
}

/// Guarantees of the pool that wait because they flap: this plan follows them at once, and the operator's later.
fn flapping(pool: &GpuPool) -> impl Iterator<Item = String> {
    let waits = |flapping: &FlappingGuarantee| {
        let FlappingGuarantee { tenant, profile, writers, changes, wanted, planned, planned_at } = flapping;
        let at = planned_at.as_ref()?.0;
        let by = if writers.is_empty() { String::new() } else { format!(", written by {}", writers.join(", ")) };
        Some(format!(
            "pool {}: the guarantee of tenant {tenant} for {profile} has changed {changes} times up and down{by}: the operator plans {planned} devices, and {wanted} from {at} on if it stays",
            pool.name_any(),
        ))
    };
    pool.status.iter().flat_map(|status| &status.flapping).filter_map(waits)
}

/// What others say about a node of a pool and about single GPUs of it.
fn marked(new: &PlannedWorld<'_>, node: &str) -> Vec<String> {
    let fleet = &new.world.fleet;
    let whole = fleet.reported_mark(node, new.world.taken_at.unwrap_or_default()).map(|verdict| verdict.why);
    let gpus = fleet.nodes.get(node).map(|node| withdrawn_gpus(node).gpus).unwrap_or_default();
    let sentence = |why| format!("node {node}: {why}: free devices there do not count, and no change starts");
    whole.into_iter().chain(gpus.into_values()).map(sentence).collect()
}

/// Sentences without need for action.
pub(super) fn notes(new: &PlannedWorld<'_>, changes: &[GpuChange], more: &[String]) -> Vec<String> {
    let mut notes: Vec<String> = more.to_vec();
    for pool in &new.world.fleet.pools {
        let mine: Vec<&GpuChange> = changes.iter().filter(|c| c.pool.as_deref() == Some(&pool.name_any())).collect();
        if !mine.is_empty() {
            notes.extend(window::of(pool, new.world.taken_at).note(pool, estimate::total(&mine)));
        }
    }
    notes.extend(new.world.fleet.pools.iter().flat_map(flapping));
    let unchanged = new.plan.gpus.iter().filter(|(key, gpu)| gpu.target.is_none() && new.in_progress(key).is_none());
    notes.extend(unchanged.filter_map(|(key, _)| new.plan.reason(key)));
    for node in new.members.keys().filter(|n| !new.world.fleet.gpu_nodes.contains_key(n.as_str())) {
        notes.push(format!("node {node} belongs to a pool and has no GpuNode: no agent has reported from it"));
    }
    for node in new.members.keys() {
        notes.extend(marked(new, node.as_str()));
    }
    for (name, node) in &new.world.fleet.gpu_nodes {
        for spec in &node.spec.gpus {
            let Some(change) = spec.change.as_ref().filter(|c| c.phase >= ChangePhase::RolledBack) else { continue };
            let index = new.world.gpu(name, &spec.uuid).map_or(-1, |(_, state)| state.index);
            let what = if change.phase == ChangePhase::Stuck { "is stuck" } else { "was rolled back" };
            notes.push(format!("{name} GPU {index}: the last change {what}: {}", change.reason));
        }
    }
    notes
}
