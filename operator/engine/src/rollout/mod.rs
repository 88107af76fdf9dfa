//! Staged rollout: what is new in a pool is served by a few nodes first, and by the others after the soak time, or never.
//!
//! A *definition* is what a GPU's layout is made from: a profile, or the pool's fixed layout. It is new until nodes have served it through
//! a soak time. [`stage`] is pure: the state is in the pool's status, and a node may begin only once the status names it, so that a
//! restart at any step leaves no more nodes with something new than the pool permits.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gputenancy_crds::{ProvenDefinition, Rollout, RolloutStatus, StoppedRollout};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::fingerprint::fingerprint;

/// A GPU of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutGpu<'a> {
    /// Its node.
    pub node: &'a str,
    /// Names of the definitions that its next layout is made from.
    pub uses: BTreeSet<&'a str>,
    /// It does not have that layout yet.
    pub wanted: bool,
    /// A change is in progress.
    pub changing: bool,
    /// It cannot begin for another reason.
    pub blocked: bool,
    /// Order of the plan.
    pub rank: u8,
    /// When and why its change to that layout failed.
    pub failed: Option<(Timestamp, String)>,
}

/// A pool with rules for rollouts.
#[derive(Clone, Debug)]
pub struct RolloutInput<'a> {
    /// The rules.
    pub rules: &'a Rollout,
    /// Generation of the pool: an edit begins a stopped rollout again.
    pub generation: i64,
    /// The definitions of now.
    pub definitions: Vec<ProvenDefinition>,
    /// The GPUs.
    pub gpus: Vec<RolloutGpu<'a>>,
    /// Nodes whose agent is stalled, and why.
    pub stalled: BTreeMap<&'a str, String>,
    /// The time.
    pub now: Timestamp,
}

/// The stage of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The state to be written.
    pub status: RolloutStatus,
    /// When the soak time ends.
    pub ends: Option<Timestamp>,
    /// Names of new definitions, used or not.
    new: BTreeSet<String>,
    /// Nodes that may begin.
    admitted: BTreeSet<String>,
    soak: Duration,
}

/// Decides the next stage from the one in the pool's status; `None`: the pool had no rules until now.
pub fn stage(old: Option<&RolloutStatus>, input: &RolloutInput<'_>) -> Stage {
    let before = old.cloned().unwrap_or_default();
    let proven = if old.is_some() { carried(&before.proven, &input.definitions) } else { in_use(input) };
    let new = unproven(&input.definitions, &proven);
    let staged: Vec<&RolloutGpu<'_>> =
        input.gpus.iter().filter(|gpu| gpu.uses.iter().any(|name| new.contains(*name))).collect();
    let trying: BTreeSet<&str> =
        staged.iter().flat_map(|gpu| &gpu.uses).copied().filter(|name| new.contains(*name)).collect();

    let key = fingerprint(&(tried(&input.definitions, &new), input.generation));
    let known = before.stopped.filter(|stopped| stopped.definitions == key);
    let mut nodes = first_nodes(&before.nodes, &staged);
    let admitted = nodes.clone();
    if known.is_none() {
        choose(&mut nodes, &staged, input);
    }
    let resumed = old.is_some_and(|old| old.stopped.is_some()) && known.is_none();
    let since = if nodes.is_empty() {
        None
    } else if resumed {
        Some(Time(input.now))
    } else {
        before.since.or(Some(Time(input.now)))
    };
    let failure = || failure(&nodes, &staged, input, since.as_ref());
    let stopped = known.or_else(|| failure().map(|cause| StoppedRollout { definitions: key, cause }));
    let stopped = stopped.filter(|_| !trying.is_empty());

    let at_work = staged.iter().any(|gpu| nodes.contains(gpu.node) && (gpu.wanted || gpu.changing));
    let settled_at = (!nodes.is_empty() && !at_work).then(|| before.settled_at.unwrap_or(Time(input.now)));
    let soak = input.rules.soak.get().unwrap_or_default();
    let ends = settled_at.as_ref().filter(|_| stopped.is_none()).and_then(|at| at.0.checked_add(soak).ok());
    let trying = trying.into_iter().map(str::to_owned).collect();
    let mut status = RolloutStatus { proven, trying, nodes: nodes.into_iter().collect(), since, settled_at, stopped };
    if ends.is_some_and(|ends| ends <= input.now) {
        status = passed(status, &input.definitions);
    }
    let ends = ends.filter(|ends| *ends > input.now);
    Stage { status, ends, new, admitted, soak }
}

/// What was proven before, of the definitions that the pool still has.
fn carried(proven: &[ProvenDefinition], definitions: &[ProvenDefinition]) -> Vec<ProvenDefinition> {
    proven.iter().filter(|p| definitions.iter().any(|d| d.name == p.name)).cloned().collect()
}

/// Definitions that GPUs serve already when the rules are new, and none waits for.
fn in_use(input: &RolloutInput<'_>) -> Vec<ProvenDefinition> {
    let uses = |gpu: &RolloutGpu<'_>, d: &ProvenDefinition| gpu.uses.contains(d.name.as_str());
    let served = |d: &&ProvenDefinition| {
        let mut users = input.gpus.iter().filter(|gpu| uses(gpu, d)).peekable();
        users.peek().is_some() && users.all(|gpu| !gpu.wanted && !gpu.changing)
    };
    input.definitions.iter().filter(served).cloned().collect()
}

fn unproven(definitions: &[ProvenDefinition], proven: &[ProvenDefinition]) -> BTreeSet<String> {
    let is_proven = |d: &ProvenDefinition| proven.iter().any(|p| p.name == d.name && p.hash == d.hash);
    definitions.iter().filter(|d| !is_proven(d)).map(|d| d.name.clone()).collect()
}

fn tried<'a>(definitions: &'a [ProvenDefinition], new: &BTreeSet<String>) -> BTreeMap<&'a str, &'a str> {
    definitions.iter().filter(|d| new.contains(&d.name)).map(|d| (d.name.as_str(), d.hash.as_str())).collect()
}

/// Nodes that have begun, or were chosen before and still use something new.
fn first_nodes(before: &[String], staged: &[&RolloutGpu<'_>]) -> BTreeSet<String> {
    let begun = staged.iter().filter(|gpu| gpu.changing || before.iter().any(|node| node == gpu.node));
    begun.map(|gpu| gpu.node.to_owned()).collect()
}

/// Adds nodes up to the limit: the first of the plan's order that can begin.
fn choose(nodes: &mut BTreeSet<String>, staged: &[&RolloutGpu<'_>], input: &RolloutInput<'_>) {
    let limit = usize::try_from(input.rules.canary_nodes).unwrap_or(1).max(1);
    let can = |gpu: &&&RolloutGpu<'_>| {
        gpu.wanted && !gpu.blocked && !input.stalled.contains_key(gpu.node) && !nodes.contains(gpu.node)
    };
    let mut ranks: BTreeMap<&str, u8> = BTreeMap::new();
    for gpu in staged.iter().filter(can) {
        let rank = ranks.entry(gpu.node).or_insert(gpu.rank);
        *rank = gpu.rank.min(*rank);
    }
    let mut order: Vec<(u8, &str)> = ranks.into_iter().map(|(node, rank)| (rank, node)).collect();
    order.sort_unstable();
    let free = limit.saturating_sub(nodes.len());
    nodes.extend(order.into_iter().take(free).map(|(_, node)| node.to_owned()));
}

/// Node and cause of a failure since the stage began.
fn failure(
    nodes: &BTreeSet<String>,
    staged: &[&RolloutGpu<'_>],
    input: &RolloutInput<'_>,
    since: Option<&Time>,
) -> Option<String> {
    let here = staged.iter().filter(|gpu| nodes.contains(gpu.node));
    let recent = |at: Timestamp| since.is_some_and(|since| at >= since.0);
    let mut causes = here.filter_map(|gpu| match (&gpu.failed, input.stalled.get(gpu.node)) {
        (Some((at, why)), _) if recent(*at) => Some(format!("node {}: {why}", gpu.node)),
        (_, Some(why)) => Some(format!("node {}: {why}", gpu.node)),
        _ => None,
    });
    causes.next()
}

/// The soak time is over: what the first nodes serve is proven.
fn passed(status: RolloutStatus, definitions: &[ProvenDefinition]) -> RolloutStatus {
    let RolloutStatus { mut proven, trying, nodes: _, since: _, settled_at: _, stopped: _ } = status;
    proven.retain(|p| !trying.contains(&p.name));
    proven.extend(definitions.iter().filter(|d| trying.contains(&d.name)).cloned());
    proven.sort_by(|a, b| a.name.cmp(&b.name));
    RolloutStatus { proven, ..RolloutStatus::default() }
}

impl Stage {
    /// Whether a layout made from these definitions has anything new.
    pub fn is_staged(&self, uses: &BTreeSet<&str>) -> bool {
        uses.iter().any(|name| self.new.contains(*name))
    }

    /// Why a GPU with such a layout may not begin; `None`: it may.
    pub fn waits(&self, node: &str, uses: &BTreeSet<&str>) -> Option<String> {
        if !self.is_staged(uses) {
            return None;
        }
        let names = uses.iter().copied().filter(|name| self.new.contains(*name)).collect::<Vec<_>>().join(", ");
        if let Some(stopped) = &self.status.stopped {
            return Some(format!("Pending: the rollout of {names} has stopped: {}", stopped.cause));
        }
        if self.admitted.contains(node) {
            return None;
        }
        let first = self.status.nodes.join(", ");
        Some(match self.ends {
            Some(at) => format!("Pending: {first} serves {names} first; other nodes follow at {at}"),
            None if first.is_empty() => format!("Pending: no node can serve {names} first now"),
            None => format!(
                "Pending: {first} serves {names} first; other nodes follow {:?} after it is complete",
                self.soak
            ),
        })
    }

    /// How to go back to what was proven, for a message.
    pub fn way_back(&self) -> String {
        let trying = |p: &&ProvenDefinition| self.status.trying.contains(&p.name);
        let back = |p: &ProvenDefinition| match p.replicas {
            Some(replicas) => format!("GpuProfile {} to {replicas} replicas", p.name),
            None => format!("{} to what it was", p.name),
        };
        let all = self.status.proven.iter().filter(trying).map(back).collect::<Vec<_>>().join(", ");
        if all.is_empty() { String::new() } else { format!("; to go back at once, set {all}") }
    }
}

#[cfg(test)]
mod tests;
