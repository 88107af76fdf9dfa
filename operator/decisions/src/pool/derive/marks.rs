//! Nodes of pools that others have cordoned, tainted or marked as unhealthy, for the plan and for the pools' status.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use gputenancy_crds::{
    condition::{self, ConditionUpdate},
    ids::NodeName,
    reasons::{self, Reason},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::gpu_marks::GpuMarks;
use crate::{
    event::EventMessage,
    fleet::Fleet,
    pool::read::{dirty_nodes::DirtyNodes, tolerated::Tolerated},
    verdict::{Settled, settle},
};

/// Nodes of the pool are no supply for new demand, because others say so.
pub const NODES_MARKED: &str = "NodesMarked";

/// Most nodes that a message names.
const MOST_NAMED: usize = 16;

/// Verdicts of others by node.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    nodes: BTreeMap<String, Known>,
    /// When the last verdict on a node ended, of nodes that exist.
    ended: BTreeMap<String, Timestamp>,
    /// Verdicts on single GPUs, by node.
    gpus: BTreeMap<String, GpuMarks>,
}

/// A verdict, and when it ends if its marks stay away.
#[derive(Clone, Debug, Default)]
struct Known {
    settled: Settled,
    /// The verdict as a clause for messages: with a remedy, or with the time at which it ends.
    text: String,
    /// The verdict as far as it is a fault.
    fault: Settled,
    /// When it may say something else although nothing is written: a fault ends, or planned maintenance begins.
    turns: Option<Timestamp>,
}

impl Marks {
    /// Brings the verdicts on these nodes up to date with the fleet. Nodes with a verdict are to be visited until it has ended.
    pub fn update(&mut self, fleet: &Fleet, tolerated: &Tolerated, now: Timestamp, visited: &DirtyNodes) {
        // the clock may have been set back
        self.ended.values_mut().for_each(|at| *at = (*at).min(now));
        self.gpus.values_mut().for_each(|gpus| gpus.ended_by(now));
        for name in visited.iter() {
            let before = self.nodes.remove(name).unwrap_or_default();
            let gpus = self.gpus.remove(name).unwrap_or_default();
            if !fleet.nodes.contains_key(name) {
                self.ended.remove(name);
                continue;
            }
            let gpus = gpus.update(fleet, name, now);
            if !gpus.is_empty() {
                self.gpus.insert(name.clone(), gpus);
            }
            let marked = fleet.marked(name, tolerated.key(), now);
            if marked.is_none() && before.settled.why.is_none() {
                continue;
            }
            let clear_after = fleet.clear_after(name);
            let fault = marked.as_ref().filter(|verdict| verdict.fault).map(|verdict| verdict.why.clone());
            let fault = settle(&before.fault, fault, clear_after, now);
            let settled = settle(&before.settled, marked.map(|verdict| verdict.why), clear_after, now);
            if let Some(why) = settled.why.as_deref() {
                let ends = settled.ends(clear_after);
                let maintenance = fleet.maintenance.get(name).into_iter().flatten();
                let begins = maintenance.filter_map(|maintenance| maintenance.begins_after(now)).min();
                let turns = begins.into_iter().chain(ends).chain(fault.ends(clear_after)).min();
                let text = ends.map_or_else(|| with_remedy(name, why), |ends| gone(why, ends));
                self.nodes.insert(name.clone(), Known { settled, text, fault, turns });
            } else {
                self.ended.insert(name.clone(), now);
            }
        }
    }

    /// Those of nodes that exist, as after a visit of all nodes that have gone.
    #[cfg(test)]
    pub(super) fn of_existing(&self, fleet: &Fleet) -> Self {
        let mut kept = self.clone();
        kept.nodes.retain(|name, _| fleet.nodes.contains_key(name));
        kept.ended.retain(|name, _| fleet.nodes.contains_key(name));
        kept.gpus.retain(|name, _| fleet.nodes.contains_key(name));
        kept
    }

    /// What others say about a node, as a clause.
    pub fn of(&self, node: &str) -> Option<&str> {
        self.nodes.get(node).map(|known| known.text.as_str())
    }

    /// What others say about a node or about this GPU of it, as a clause.
    pub fn of_gpu(&self, node: &str, uuid: &str) -> Option<&str> {
        self.of(node).or_else(|| self.gpus.get(node)?.of(uuid))
    }

    /// GPUs of a node that others have withdrawn, each with a clause that names it.
    pub fn withdrawn(&self, node: &str) -> BTreeMap<&str, Cow<'_, str>> {
        self.gpus.get(node).map(GpuMarks::clauses).unwrap_or_default()
    }

    /// When the last verdict on a node or on this GPU of it ended: time limits of a change that it suspended begin again then.
    pub fn ended(&self, node: &str, uuid: &str) -> Option<Timestamp> {
        let gpu = self.gpus.get(node).and_then(|gpus| gpus.ended(uuid));
        self.ended.get(node).copied().max(gpu)
    }

    /// Nodes to visit again though nothing of them changes.
    pub fn visited_again(&self) -> impl Iterator<Item = &String> {
        let ending = self.gpus.iter().filter(|(_, gpus)| gpus.ends().is_some());
        self.nodes.keys().chain(ending.map(|(name, _)| name))
    }

    /// The nodes with a verdict.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    /// GPUs that are lost to a fault, as far as one takes no new work: all of a faulty node, and those that others have withdrawn.
    pub fn is_faulty(&self, node: &str, uuid: &str) -> bool {
        let whole = self.nodes.get(node).is_some_and(|known| known.fault.why.is_some());
        whole || self.gpus.get(node).is_some_and(|gpus| gpus.of(uuid).is_some())
    }

    /// The nodes with a verdict that is a fault, and no maintenance that is planned for later; those with a withdrawn GPU as well.
    pub fn faulty(&self) -> impl Iterator<Item = &String> {
        let nodes = self.nodes.iter().filter(|(_, known)| known.fault.why.is_some()).map(|(name, _)| name);
        let gpus = self.gpus.iter().filter(|(_, gpus)| gpus.any()).map(|(name, _)| name);
        nodes.chain(gpus).collect::<BTreeSet<_>>().into_iter()
    }

    /// When the next verdict ends or turns.
    pub fn next_turn(&self, now: Timestamp) -> Option<Timestamp> {
        let gpus = self.gpus.values().filter_map(GpuMarks::ends);
        self.nodes.values().filter_map(|known| known.turns).chain(gpus).filter(|at| *at > now).min()
    }

    /// Of these nodes those with a verdict, with what it says.
    fn among<'a>(&'a self, nodes: &'a BTreeSet<NodeName>) -> impl Iterator<Item = (&'a NodeName, &'a str)> {
        nodes.iter().filter_map(|node| Some((node, self.of(node.as_str())?)))
    }
}

/// A verdict that holds. A cordon alone has one remedy; behind others is a program or a person who knows why.
fn with_remedy(node: &str, why: &str) -> String {
    let uncordon = if why == "it is cordoned" { format!(" (kubectl uncordon {node} lifts it)") } else { String::new() };
    format!("{why}{uncordon}")
}

/// A verdict whose marks are gone, and which counts until `ends`.
fn gone(why: &str, ends: Timestamp) -> String {
    let past = |mark: &str| {
        let past = [("it is ", "it was "), ("it has ", "it had "), (" names it", " named it")];
        let mark = past.iter().fold(mark.to_owned(), |text, (now, then)| text.replacen(now, then, 1));
        if mark.starts_with("its condition ") { mark.replacen(" is ", " was ", 1) } else { mark }
    };
    let marks: Vec<String> = why.split(", ").map(past).collect();
    format!("{}; its free devices count again at {ends} (spec.health.clearAfter)", marks.join(", "))
}

/// Verdicts on single GPUs of these nodes, and what is wrong with annotations.
fn of_gpus(marks: &Marks, nodes: &BTreeSet<NodeName>) -> (Vec<String>, Vec<String>) {
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for (node, gpus) in nodes.iter().filter_map(|node| Some((node, marks.gpus.get(node.as_str())?))) {
        texts.extend(gpus.texts().map(|text| format!("node {node}: {text}")));
        problems.extend(gpus.problem().map(|problem| format!("node {node}: {problem}")));
    }
    (texts, problems)
}

/// The condition `NodesMarked`; `over`: more GPUs are marked than the pool allows.
pub fn update(marks: &Marks, nodes: &BTreeSet<NodeName>, over: Option<&String>) -> ConditionUpdate {
    let mut marked: Vec<String> = marks.among(nodes).map(|(node, why)| format!("node {node}: {why}")).collect();
    let (gpus, problems) = of_gpus(marks, nodes);
    marked.extend(gpus);
    let invalid = problems.into_iter().take(MOST_NAMED).collect::<Vec<_>>().join("; ");
    if marked.is_empty() {
        if !invalid.is_empty() {
            return ConditionUpdate::no(NODES_MARKED, reasons::INVALID_MARK, invalid);
        }
        let message = "no node of the pool is cordoned, tainted or marked as unhealthy";
        return ConditionUpdate::no(NODES_MARKED, reasons::UNMARKED, message);
    }
    let more = marked.len().saturating_sub(MOST_NAMED);
    let named = marked.into_iter().take(MOST_NAMED).collect::<Vec<_>>().join("; ");
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let effect =
        "devices that no pod holds do not count there, and no change starts or proceeds; running pods keep theirs";
    let (reason, over) = match over {
        Some(over) => (
            reasons::TOO_MANY_MARKED,
            format!(
                ". No pod of the pool is evicted: {over}. If they are faulty indeed, raise spec.health.maxUnavailable"
            ),
        ),
        None => (reasons::MARKED, String::new()),
    };
    let invalid = if invalid.is_empty() { invalid } else { format!(". {invalid}") };
    ConditionUpdate::yes(NODES_MARKED, reason, format!("{named}{more}: {effect}{over}{invalid}"))
}

/// The event about a condition that has changed, if any.
pub fn event(before: &[Condition], now: &[Condition]) -> Option<EventMessage> {
    let new = now.iter().find(|c| c.type_ == NODES_MARKED)?;
    let old = before.iter().find(|c| c.type_ == NODES_MARKED);
    let is_new = |reason: Reason| reason == new.reason.as_str() && old.is_none_or(|old| old.reason != new.reason);
    if is_new(reasons::INVALID_MARK) {
        return Some(EventMessage::warning(reasons::INVALID_MARK, new.message.clone()));
    }
    if new.status != "True" {
        let was = condition::is_true(before, NODES_MARKED);
        return was.then(|| EventMessage::normal(reasons::UNMARKED, new.message.clone()));
    }
    let differs = old.is_none_or(|old| (&old.status, &old.reason) != (&new.status, &new.reason));
    let reason = Reason::listed(&new.reason).unwrap_or(reasons::MARKED);
    differs.then(|| EventMessage::warning(reason, new.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_whose_marks_are_gone_is_in_the_past_tense_with_its_end() {
        let ends = Timestamp::from_second(120).unwrap();
        for (why, then) in [
            ("it is cordoned", "it was cordoned"),
            ("it is cordoned, also by NVSentinel", "it was cordoned, also by NVSentinel"),
            ("it has the taint a=b:NoSchedule", "it had the taint a=b:NoSchedule"),
            ("its condition GpuBad is True (R)", "its condition GpuBad was True (R)"),
            ("it is cordoned, its condition X is False", "it was cordoned, its condition X was False"),
            ("MaintenanceRequest m of NVSentinel names it", "MaintenanceRequest m of NVSentinel named it"),
        ] {
            let expected =
                format!("{then}; its free devices count again at 1970-01-01T00:02:00Z (spec.health.clearAfter)");
            assert_eq!(gone(why, ends), expected);
        }
        assert_eq!(with_remedy("n", "it is cordoned"), "it is cordoned (kubectl uncordon n lifts it)");
        assert_eq!(with_remedy("n", "it is cordoned, also by NVSentinel"), "it is cordoned, also by NVSentinel");
    }
}
