//! Nodes of a pool whose agent does not report, for the pool's status.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    condition::{self, ConditionUpdate},
    ids::{NodeName, PoolName},
    reasons,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::{node_states::NodeStates, ownership::Ownership};
use crate::{
    event::EventMessage,
    liveness::{AgentState, GRACE_PERIOD, Liveness, SLOT_TIMEOUT},
    pool::read::dirty_nodes::DirtyNodes,
};

/// Agents of the pool's nodes do not report.
pub const AGENT_SILENT: &str = "AgentSilent";

/// Most nodes that a message names.
const MOST_NAMED: usize = 16;

/// Nodes of the fleet whose agent does not report, with why.
#[derive(Clone, Debug, Default)]
pub struct Silent(BTreeMap<String, Liveness>);

impl Silent {
    /// Brings the silent ones of these nodes up to date. Only an agent is silent that is expected to report.
    pub fn update(&mut self, states: &NodeStates, ownership: &Ownership, visited: &DirtyNodes) {
        for name in visited.iter() {
            let liveness = states.expected_agent(name, ownership.is_pooled(name));
            match liveness.filter(|liveness| !liveness.is_alive()) {
                Some(liveness) => drop(self.0.insert(name.clone(), liveness)),
                None => drop(self.0.remove(name)),
            }
        }
    }

    /// Does the agent of this node not report?
    pub fn contains(&self, node: &str) -> bool {
        self.0.contains_key(node)
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }
}

/// Those of these nodes.
fn among<'a>(silent: &'a Silent, nodes: &BTreeSet<NodeName>) -> Vec<(&'a str, Liveness)> {
    let here = silent.0.iter().filter(|(node, _)| nodes.contains(node.as_str()));
    here.map(|(node, liveness)| (node.as_str(), *liveness)).collect()
}

/// Those that reported once, after the grace period. While the condition is True all count if no grace period is over: the time for which
/// a pod is absent starts again with the operator.
fn lost<'a>(
    silent: &'a Silent,
    nodes: &BTreeSet<NodeName>,
    old: &[Condition],
    now: Timestamp,
) -> Vec<(&'a str, Liveness)> {
    let mut silent = among(silent, nodes);
    silent.retain(|(_, l)| l.state != AgentState::NeverReported);
    let over = |(_, l): &(&str, Liveness)| l.is_silent_for(GRACE_PERIOD, now);
    if silent.iter().any(over) {
        silent.retain(over);
    } else if !condition::is_true(old, AGENT_SILENT) {
        silent.clear();
    }
    silent
}

/// The condition `AgentSilent`. Nodes that have never reported have the reason `NoAgent` or `NodeNotReady` of `Ready`.
pub fn update(silent: &Silent, nodes: &BTreeSet<NodeName>, old: &[Condition], now: Timestamp) -> ConditionUpdate {
    let silent = lost(silent, nodes, old, now);
    if silent.is_empty() {
        return ConditionUpdate::no(
            AGENT_SILENT,
            reasons::REPORTING,
            "every agent that has reported before still reports, or is silent for less than a minute",
        );
    }
    let effect = "devices that no pod holds are not available there, and no change starts or proceeds; after 5 minutes a change in \
                  progress no longer counts for spec.disruption.maxUnavailable";
    ConditionUpdate::yes(AGENT_SILENT, reasons::SILENT, format!("{}: {effect}", by_cause(&silent)))
}

/// Why no change begins on nodes whose agent has not reported for longer than the grace period, or never, for `Ready`; `None`: there are
/// none.
pub fn not_ready(silent: &Silent, nodes: &BTreeSet<NodeName>, old: &[Condition], now: Timestamp) -> Option<String> {
    let mut found = lost(silent, nodes, old, now);
    found.extend(among(silent, nodes).into_iter().filter(|(_, l)| l.state == AgentState::NeverReported));
    (!found.is_empty()).then(|| format!("no change begins on {}", by_cause(&found)))
}

/// Nodes by cause, each with its remedy, such as `node a (the Node is not Ready: repair the node)`.
fn by_cause(silent: &[(&str, Liveness)]) -> String {
    let mut causes: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (node, liveness) in silent {
        let (cause, remedy) = (liveness.cause().unwrap_or_default(), liveness.remedy().unwrap_or_default());
        causes.entry((cause, remedy)).or_default().push(node);
    }
    let one = |((cause, remedy), nodes): (&(&str, &str), &Vec<&str>)| {
        let named = nodes.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
        let more = nodes.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{} {named}{more} ({cause}: {remedy})", if nodes.len() == 1 { "node" } else { "nodes" })
    };
    causes.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The event about a condition that has changed, if any.
pub fn event(before: &[Condition], now: &[Condition]) -> Option<EventMessage> {
    let of = |all: &[Condition]| all.iter().find(|c| c.type_ == AGENT_SILENT).cloned();
    let (old, new) = (of(before).filter(|c| c.status == "True"), of(now)?);
    if new.status != "True" {
        return old.map(|_| EventMessage::normal(reasons::AGENT_RETURNED, new.message));
    }
    let differs = old.is_none_or(|old| old.message != new.message);
    differs.then(|| EventMessage::warning(reasons::AGENT_SILENT, new.message))
}

/// When the next grace period of a silent node ends, or the time after which a change there no longer counts for the pool's limit and a
/// rollout stops.
pub fn next_deadline(silent: &Silent, now: Timestamp) -> Option<Timestamp> {
    let deadlines = |liveness: &Liveness| [GRACE_PERIOD, SLOT_TIMEOUT].map(|limit| liveness.until(limit));
    silent.0.values().flat_map(deadlines).flatten().filter(|end| *end > now).min()
}

/// The pool of each node that its condition names after the grace period.
pub fn pools<'a>(
    silent: &'a Silent,
    members: &'a BTreeMap<NodeName, Vec<PoolName>>,
    now: Timestamp,
) -> impl Iterator<Item = &'a PoolName> {
    silent.0.iter().filter_map(move |(node, liveness)| {
        let [pool] = members.get(node.as_str())?.as_slice() else { return None };
        let named = liveness.state != AgentState::NeverReported && liveness.is_silent_for(GRACE_PERIOD, now);
        named.then_some(pool)
    })
}
