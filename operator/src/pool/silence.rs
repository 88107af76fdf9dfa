//! Nodes of a pool whose agent does not report, for the pool's status.

use std::collections::BTreeSet;

use gputenancy_crds::{
    condition::{self, ConditionUpdate},
    reasons::{self, Reason},
};
use gputenancy_engine::{
    fleet::Fleet,
    liveness::{AgentState, GRACE_PERIOD, Liveness},
};
use gputenancy_service::events::EventType;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

/// Agents of the pool's nodes do not report.
pub const AGENT_SILENT: &str = "AgentSilent";

/// Most nodes that a message names.
const MOST_NAMED: usize = 16;

/// Nodes whose agent does not report, with why.
fn silent<'a>(fleet: &Fleet, nodes: &BTreeSet<&'a str>) -> Vec<(&'a str, Liveness)> {
    let found = nodes.iter().map(|node| (*node, fleet.liveness(node)));
    found.filter(|(_, liveness)| !liveness.is_alive()).collect()
}

/// The condition `AgentSilent`. It is True only after the grace period, and then stays True until all agents report: the time for which a
/// pod is absent counts from the start after a restart of the operator. Nodes that have never reported have the reason `NoAgent` of
/// `Ready`.
pub fn update(fleet: &Fleet, nodes: &BTreeSet<&str>, old: &[Condition], now: Timestamp) -> ConditionUpdate {
    let known = condition::is_true(old, AGENT_SILENT);
    let mut silent = silent(fleet, nodes);
    silent.retain(|(_, l)| l.state != AgentState::NeverReported && (known || l.is_silent_for(GRACE_PERIOD, now)));
    let Some((_, first)) = silent.first() else {
        return ConditionUpdate::no(AGENT_SILENT, reasons::REPORTING, "the agents of all nodes report");
    };
    let remedy = first.remedy().unwrap_or_default();
    let effect = "their devices do not count as free, and no change starts there; after 5 minutes a change in progress \
                  no longer counts for spec.disruption.maxUnavailable";
    ConditionUpdate::yes(AGENT_SILENT, reasons::SILENT, format!("nodes {}: {effect}; {remedy}", named(&silent)))
}

/// Why no change begins on nodes whose agent does not report, for `Ready`; `None`: all report.
pub fn not_ready(fleet: &Fleet, nodes: &BTreeSet<&str>) -> Option<String> {
    let silent = silent(fleet, nodes);
    let (_, first) = silent.first()?;
    let remedy = first.remedy().unwrap_or_default();
    Some(format!("no change begins on nodes {}; {remedy}; see conditions of Node and GpuNode", named(&silent)))
}

/// Nodes with why, such as `gpu-1 (its agent has stopped)`.
fn named(silent: &[(&str, Liveness)]) -> String {
    let one = |(node, liveness): &(&str, Liveness)| format!("{node} ({})", liveness.cause().unwrap_or_default());
    let named: Vec<String> = silent.iter().take(MOST_NAMED).map(one).collect();
    let more = silent.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

/// The event about a condition that has changed, if any.
pub fn event(before: &[Condition], now: &[Condition]) -> Option<(EventType, Reason, String)> {
    let of = |all: &[Condition]| all.iter().find(|c| c.type_ == AGENT_SILENT).cloned();
    let (old, new) = (of(before).filter(|c| c.status == "True"), of(now)?);
    if new.status != "True" {
        return old.map(|_| (EventType::Normal, reasons::AGENT_RETURNED, new.message));
    }
    let differs = old.is_none_or(|old| old.message != new.message);
    differs.then_some((EventType::Warning, reasons::AGENT_SILENT, new.message))
}

/// Nodes of pools whose agent has been silent for longer than the grace period.
pub fn count<'a>(fleet: &Fleet, nodes: impl Iterator<Item = &'a str>, now: Timestamp) -> usize {
    nodes.filter(|node| fleet.liveness(node).is_silent_for(GRACE_PERIOD, now)).count()
}
