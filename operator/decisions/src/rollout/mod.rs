//! Staged rollout: what is new in a pool is served by a few nodes first, and by the others after the soak time, or never.
//!
//! A *definition* is what a GPU's layout is made from: a profile, or the pool's fixed layout. It is new until nodes have served it through
//! a soak time. [`stage`] is pure: the state is in the pool's status, and a node may begin only once the status names it, so that a
//! restart at any step leaves no more nodes with something new than the pool permits.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{ProvenDefinition, Rollout, RolloutStatus, StoppedRollout};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::fingerprint::fingerprint;

/// So many proven definitions are remembered, also of profiles that the pool does not list at the moment.
const MOST_PROVEN: usize = 64;
/// Most nodes that a message names.
const MOST_NAMED: usize = 5;

/// Names of definitions.
pub type Names<'a> = BTreeSet<&'a str>;

/// A GPU of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutGpu<'a> {
    /// Its node.
    pub node: &'a str,
    /// The definitions that its next layout is made from; of a marked GPU also those of a change that the mark suspends.
    pub uses: Names<'a>,
    /// It does not have that layout yet.
    pub wanted: bool,
    /// A change to that layout is in progress.
    pub begun: bool,
    /// It cannot begin for another reason.
    pub blocked: bool,
    /// Others have marked it or its node, as a clause: it keeps its layout, whatever that is made from.
    pub marked: Option<&'a str>,
    /// Order of the plan.
    pub rank: u8,
    /// A change that has failed, also if the plan wants something else now.
    pub failed: Option<FailedChange<'a>>,
}

/// A change that is being rolled back, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedChange<'a> {
    /// The definitions of the layout that was not reached.
    pub uses: Names<'a>,
    /// Since when.
    pub at: Timestamp,
    /// Why.
    pub why: String,
}

/// A node of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutNode {
    /// Its agent reports, and makes progress.
    Works,
    /// Its agent has not reported for a while: what happens there is not known.
    Silent,
    /// Others have marked it, as a clause: no change begins or proceeds there, and other nodes do not wait for it.
    Marked(String),
    /// It has failed: its agent is stalled, or has been silent for long.
    Fails(String),
}

/// A pool with rules for rollouts.
#[derive(Clone, Debug)]
pub struct RolloutInput<'a> {
    /// The rules.
    pub rules: &'a Rollout,
    /// Generation of the pool: an edit begins a stopped rollout again.
    pub generation: i64,
    /// The present definitions.
    pub definitions: Vec<ProvenDefinition>,
    /// The GPUs.
    pub gpus: Vec<RolloutGpu<'a>>,
    /// The nodes with GPUs.
    pub nodes: BTreeMap<&'a str, RolloutNode>,
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
    /// The first nodes, for messages: those that are not marked.
    first: String,
    /// The first nodes that are marked, as a clause; empty: there are none.
    marked: String,
    /// What GPUs of other nodes wait for.
    waiting: Arc<str>,
}

/// Decides the next stage from the one in the pool's status; `None`: the pool had no rules until now.
pub fn stage(old: Option<&RolloutStatus>, input: &RolloutInput<'_>) -> Stage {
    let before = old.cloned().unwrap_or_default();
    let proven = if old.is_some() { before.proven } else { in_use(input) };
    let new = unproven(&input.definitions, &proven);
    let is_new = |uses: &Names<'_>| uses.iter().any(|name| new.contains(*name));
    let staged: Vec<&RolloutGpu<'_>> = input.gpus.iter().filter(|gpu| is_new(&gpu.uses)).collect();
    let trying = names(staged.iter().copied(), &new);

    let key = fingerprint(&(hashes(&input.definitions, &new), input.generation));
    let known = before.stopped.clone().filter(|stopped| stopped.definitions == key);
    let marked = marked_nodes(&staged, input);
    let mut nodes = first_nodes(&before.nodes, &staged, input);
    drop_surplus(&mut nodes, (&staged, &marked), input);
    let admitted = nodes.clone();
    let resumed = before.stopped.is_some() && known.is_none();
    let since = if resumed { None } else { before.since }.unwrap_or(Time(input.now));
    let failed = known.or_else(|| {
        let cause = failure(&nodes, input, &new, since.0)?;
        Some(StoppedRollout { definitions: key, cause })
    });
    // without a node that wants it there is nothing to stop
    let stopped = failed.filter(|_| !trying.is_empty());
    if stopped.is_none() {
        choose(&mut nodes, (&staged, &marked), input);
    }

    // what these nodes serve, at rest; a marked GPU keeps its layout, and proves nothing
    let is_here = |gpu: &&RolloutGpu<'_>| gpu.marked.is_none() && nodes.contains(gpu.node);
    let here: Vec<&RolloutGpu<'_>> = staged.iter().copied().filter(is_here).collect();
    let served = names(here.iter().copied(), &new);
    let served = hashes(&input.definitions, &served);
    let definitions = if served.is_empty() { String::new() } else { fingerprint(&served) };
    let works = |node: &String| marked.contains_key(node.as_str()) || works(input, node);
    let settled = !served.is_empty() && here.iter().all(|gpu| !gpu.wanted && !gpu.begun) && nodes.iter().all(works);
    let settled_before = before.settled_at.filter(|_| before.definitions == definitions);
    let settled_at = settled.then(|| settled_before.unwrap_or(Time(input.now)));
    let soak = input.rules.soak.get().unwrap_or_default();
    let ends = settled_at.as_ref().filter(|_| stopped.is_none()).and_then(|at| at.0.checked_add(soak).ok());
    let passed: BTreeSet<&str> =
        if ends.is_some_and(|ends| ends <= input.now) { served.keys().copied().collect() } else { BTreeSet::new() };

    let (proven, since) = (remember(proven, &input.definitions, &passed), (!nodes.is_empty()).then_some(since));
    let trying = trying.into_iter().filter(|name| !passed.contains(name.as_str())).collect();
    let status = if passed.is_empty() {
        RolloutStatus { proven, trying, nodes: nodes.into_iter().collect(), definitions, since, settled_at, stopped }
    } else {
        RolloutStatus { proven, trying, ..RolloutStatus::default() }
    };
    let ends = ends.filter(|ends| *ends > input.now);
    let first = first(&status, &marked);
    let marked = set_aside(&status, &marked, limit(input));
    let waiting = waiting((&status, &first, &marked), ends, &input.rules.soak.to_string());
    Stage { status, ends, new, admitted, first, marked, waiting }
}

/// Definitions that GPUs serve already when the rules are new, and none waits for.
fn in_use(input: &RolloutInput<'_>) -> Vec<ProvenDefinition> {
    let uses = |gpu: &RolloutGpu<'_>, d: &ProvenDefinition| gpu.uses.contains(d.name.as_str());
    let served = |d: &&ProvenDefinition| {
        let mut found = input.gpus.iter().filter(|gpu| uses(gpu, d)).peekable();
        found.peek().is_some() && found.all(|gpu| !gpu.wanted && !gpu.begun)
    };
    input.definitions.iter().filter(served).cloned().collect()
}

fn unproven(definitions: &[ProvenDefinition], proven: &[ProvenDefinition]) -> BTreeSet<String> {
    let is_proven = |d: &ProvenDefinition| proven.iter().any(|p| p.name == d.name && p.hash == d.hash);
    definitions.iter().filter(|d| !is_proven(d)).map(|d| d.name.clone()).collect()
}

/// New definitions that GPUs use.
fn names<'g>(gpus: impl Iterator<Item = &'g RolloutGpu<'g>>, new: &BTreeSet<String>) -> BTreeSet<String> {
    gpus.flat_map(|gpu| &gpu.uses).filter(|name| new.contains(**name)).map(|name| (*name).to_owned()).collect()
}

fn hashes<'a>(definitions: &'a [ProvenDefinition], of: &BTreeSet<String>) -> BTreeMap<&'a str, &'a str> {
    definitions.iter().filter(|d| of.contains(&d.name)).map(|d| (d.name.as_str(), d.hash.as_str())).collect()
}

/// Nodes that others have marked, or all of whose GPUs with something new, with what they say.
fn marked_nodes<'a>(staged: &[&'a RolloutGpu<'_>], input: &'a RolloutInput<'_>) -> BTreeMap<&'a str, &'a str> {
    let mut by_gpu: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for gpu in staged {
        let known = by_gpu.entry(gpu.node).or_insert(gpu.marked);
        *known = known.and(gpu.marked);
    }
    let by_gpu = by_gpu.into_iter().filter(|(node, _)| works(input, node));
    let of_node = input.nodes.iter().filter_map(|(name, node)| match node {
        RolloutNode::Marked(why) => Some((*name, why.as_str())),
        _ => None,
    });
    by_gpu.filter_map(|(node, why)| Some((node, why?))).chain(of_node).collect()
}

fn works(input: &RolloutInput<'_>, node: &str) -> bool {
    input.nodes.get(node) == Some(&RolloutNode::Works)
}

fn limit(input: &RolloutInput<'_>) -> usize {
    usize::try_from(input.rules.canary_nodes).unwrap_or(1).max(1)
}

/// Nodes that have begun, and those chosen before as long as they use something new, or are not seen to work.
fn first_nodes(before: &[String], staged: &[&RolloutGpu<'_>], input: &RolloutInput<'_>) -> BTreeSet<String> {
    let begun = staged.iter().filter(|gpu| gpu.begun).map(|gpu| gpu.node.to_owned());
    let stays = |node: &&String| match input.nodes.get(node.as_str()) {
        None => false,
        Some(RolloutNode::Works | RolloutNode::Marked(_)) => staged.iter().any(|gpu| gpu.node == node.as_str()),
        Some(RolloutNode::Silent | RolloutNode::Fails(_)) => true,
    };
    // one whose change failed is needed until the failure is seen, although the plan may want something else there
    let failed = |node: &&String| input.gpus.iter().any(|gpu| gpu.node == node.as_str() && gpu.failed.is_some());
    before.iter().filter(|node| stays(node) || failed(node)).cloned().chain(begun).collect()
}

type StagedGpus<'s, 'a> = (&'s [&'s RolloutGpu<'a>], &'s BTreeMap<&'s str, &'s str>);

/// Drops nodes beyond the limit that have nothing new yet: others were chosen in place of those that were marked.
fn drop_surplus(nodes: &mut BTreeSet<String>, (staged, marked): StagedGpus<'_, '_>, input: &RolloutInput<'_>) {
    let here = |node: &String| !marked.contains_key(node.as_str());
    let surplus = nodes.iter().filter(|node| here(node)).count().saturating_sub(limit(input));
    let has_none = |node: &&String| {
        let idle = |gpu: &RolloutGpu<'_>| gpu.wanted && !gpu.begun && gpu.failed.is_none();
        here(node) && works(input, node) && staged.iter().filter(|gpu| gpu.node == node.as_str()).all(|gpu| idle(gpu))
    };
    let dropped: Vec<String> = nodes.iter().rev().filter(has_none).take(surplus).cloned().collect();
    nodes.retain(|node| !dropped.contains(node));
}

/// Adds nodes up to the limit: the first of the plan's order that can begin. Marked ones do not count; but as what is new may be the cause of
/// the marks, only as many nodes again are tried for them.
fn choose(nodes: &mut BTreeSet<String>, (staged, marked): StagedGpus<'_, '_>, input: &RolloutInput<'_>) {
    let limit = limit(input);
    let begins = |gpu: &RolloutGpu<'_>| gpu.wanted && !gpu.blocked && gpu.marked.is_none();
    let can = |gpu: &&&RolloutGpu<'_>| begins(gpu) && works(input, gpu.node) && !nodes.contains(gpu.node);
    let mut ranks: BTreeMap<&str, u8> = BTreeMap::new();
    for gpu in staged.iter().filter(can) {
        let rank = ranks.entry(gpu.node).or_insert(gpu.rank);
        *rank = gpu.rank.min(*rank);
    }
    let mut order: Vec<(u8, &str)> = ranks.into_iter().map(|(node, rank)| (rank, node)).collect();
    order.sort_unstable();
    let aside = nodes.iter().filter(|node| marked.contains_key(node.as_str())).count();
    let free = limit.saturating_sub(nodes.len() - aside).min((2 * limit).saturating_sub(nodes.len()));
    nodes.extend(order.into_iter().take(free).map(|(_, node)| node.to_owned()));
}

/// Node and cause of a failure since the stage began.
fn failure(
    nodes: &BTreeSet<String>,
    input: &RolloutInput<'_>,
    new: &BTreeSet<String>,
    since: Timestamp,
) -> Option<String> {
    let of_node = |node: &String| match input.nodes.get(node.as_str()) {
        Some(RolloutNode::Fails(why)) => Some(format!("node {node}: {why}")),
        _ => None,
    };
    let is_new = |failed: &&FailedChange<'_>| failed.uses.iter().any(|name| new.contains(*name)) && failed.at >= since;
    let of_gpu = |gpu: &RolloutGpu<'_>| {
        let failed = gpu.failed.as_ref().filter(|failed| nodes.contains(gpu.node) && is_new(failed))?;
        Some(format!("node {}: {}", gpu.node, failed.why))
    };
    nodes.iter().find_map(of_node).or_else(|| input.gpus.iter().find_map(of_gpu))
}

/// What was proven before, and what has passed now.
fn remember(
    mut proven: Vec<ProvenDefinition>,
    definitions: &[ProvenDefinition],
    passed: &BTreeSet<&str>,
) -> Vec<ProvenDefinition> {
    proven.retain(|p| !passed.contains(p.name.as_str()));
    proven.extend(definitions.iter().filter(|d| passed.contains(d.name.as_str())).cloned());
    // those of the pool last, which are kept
    proven.sort_by_key(|p| (definitions.iter().any(|d| d.name == p.name), p.name.clone()));
    let surplus = proven.len().saturating_sub(MOST_PROVEN);
    proven.drain(..surplus);
    proven.sort_by(|a, b| a.name.cmp(&b.name));
    proven
}

fn waiting((status, first, marked): (&RolloutStatus, &str, &str), ends: Option<Timestamp>, soak: &str) -> Arc<str> {
    let trying = status.trying.join(", ");
    let text = match (&status.stopped, ends) {
        (Some(stopped), _) => format!("Pending: the rollout of {trying} has stopped: {}", stopped.cause),
        (None, Some(at)) => format!("Pending: {first} serves {trying} first; other nodes follow at {at}{marked}"),
        (None, None) if first.is_empty() => format!("Pending: no node can serve {trying} first now{marked}"),
        (None, None) => {
            format!("Pending: {first} serves {trying} first; other nodes follow {soak} after it is complete{marked}")
        }
    };
    text.into()
}

/// The first nodes that are not marked, for messages.
fn first(status: &RolloutStatus, marked: &BTreeMap<&str, &str>) -> String {
    let nodes: Vec<&str> = status.nodes.iter().map(String::as_str).filter(|node| !marked.contains_key(node)).collect();
    named(&nodes, ", ")
}

/// The first nodes that are marked, as a clause.
fn set_aside(status: &RolloutStatus, marked: &BTreeMap<&str, &str>, limit: usize) -> String {
    let of = |node: &String| Some(format!("node {node}: {}", marked.get(node.as_str())?));
    let nodes: Vec<String> = status.nodes.iter().filter_map(of).collect();
    if nodes.is_empty() {
        return String::new();
    }
    let named = named(&nodes.iter().map(String::as_str).collect::<Vec<_>>(), "; ");
    let more = if nodes.len() > limit {
        ", and no further node is tried meanwhile, as what is new may be the cause"
    } else {
        ""
    };
    format!("; a marked node is not waited for{more} ({named})")
}

/// At most five of these, and how many more.
fn named(all: &[&str], separator: &str) -> String {
    let named = all.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(separator);
    match all.len().saturating_sub(MOST_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

impl Stage {
    /// Whether a layout made from these definitions has anything new.
    pub fn is_staged(&self, uses: &Names<'_>) -> bool {
        uses.iter().any(|name| self.new.contains(*name))
    }

    /// Why a GPU with a staged layout may not begin; `None`: it may.
    pub fn waits(&self, node: &str) -> Option<Arc<str>> {
        (self.status.stopped.is_some() || !self.admitted.contains(node)).then(|| self.waiting.clone())
    }

    /// The first nodes that are not marked, at most five of them by name.
    pub fn first_nodes(&self) -> &str {
        &self.first
    }

    /// The first nodes that are marked, as a clause for the end of a message; empty: there are none.
    pub fn marked_nodes(&self) -> &str {
        &self.marked
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
