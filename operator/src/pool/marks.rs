//! Nodes of pools that others have cordoned, tainted or marked as unhealthy, for the plan and for the pools' status.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    condition::{self, ConditionUpdate},
    reasons::{self, Reason},
};
use gputenancy_engine::{
    fleet::Fleet,
    verdict::{Settled, settle},
};
use gputenancy_service::events::EventType;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::{tolerated::Tolerated, visits::Names};
use crate::plan::NodeName;

/// Nodes of the pool are no supply for new demand, because others say so.
pub const NODES_MARKED: &str = "NodesMarked";

/// Most nodes that a message names.
const MOST_NAMED: usize = 16;

/// Verdicts of others by node.
#[derive(Debug, Default)]
pub struct Marks {
    nodes: BTreeMap<String, Known>,
    /// When the last verdict on a node ended, of nodes that exist.
    ended: BTreeMap<String, Timestamp>,
}

/// A verdict, and when it ends if its marks stay away.
#[derive(Debug, Default)]
struct Known {
    settled: Settled,
    /// The verdict as far as it is a fault.
    fault: Settled,
    ends: Option<Timestamp>,
    /// When it may say something else although nothing is written: a fault ends, or planned maintenance begins.
    turns: Option<Timestamp>,
}

impl Marks {
    /// Brings the verdicts on these nodes up to date with the fleet. Nodes with a verdict are to be visited until it has ended.
    pub fn update(&mut self, fleet: &Fleet, tolerated: &Tolerated, now: Timestamp, visited: &Names) {
        for name in visited {
            let before = self.nodes.remove(name).unwrap_or_default();
            if !fleet.nodes.contains_key(name) {
                self.ended.remove(name);
                continue;
            }
            let marked = fleet.marked(name, tolerated.key(), now);
            if marked.is_none() && before.settled.why.is_none() {
                continue;
            }
            let clear_after = fleet.clear_after(name);
            let fault = marked.as_ref().filter(|verdict| verdict.fault).map(|verdict| verdict.why.clone());
            let fault = settle(&before.fault, fault, clear_after, now);
            let settled = settle(&before.settled, marked.map(|verdict| verdict.why), clear_after, now);
            if settled.why.is_some() {
                let ends = settled.ends(clear_after);
                let maintenance = fleet.maintenance.get(name).into_iter().flatten();
                let begins = maintenance.filter_map(|maintenance| maintenance.begins_after(now)).min();
                let turns = begins.into_iter().chain(ends).chain(fault.ends(clear_after)).min();
                self.nodes.insert(name.clone(), Known { settled, fault, ends, turns });
            } else {
                self.ended.insert(name.clone(), now);
            }
        }
    }

    /// What others say about a node, as a clause.
    pub fn of(&self, node: &str) -> Option<&str> {
        self.nodes.get(node)?.settled.why.as_deref()
    }

    /// When the last verdict on a node ended: time limits of changes that it suspended begin again then.
    pub fn ended(&self, node: &str) -> Option<Timestamp> {
        self.ended.get(node).copied()
    }

    /// The nodes with a verdict.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    /// The nodes with a verdict that is a fault, and no maintenance that is planned for later.
    pub fn faulty(&self) -> impl Iterator<Item = &String> {
        self.nodes.iter().filter(|(_, known)| known.fault.why.is_some()).map(|(name, _)| name)
    }

    /// When the next verdict ends or turns.
    pub fn next_turn(&self, now: Timestamp) -> Option<Timestamp> {
        self.nodes.values().filter_map(|known| known.turns).filter(|at| *at > now).min()
    }

    /// Of these nodes those with a verdict, with what it says.
    fn among<'a>(&'a self, nodes: &'a BTreeSet<NodeName>) -> impl Iterator<Item = (&'a NodeName, String)> {
        nodes.iter().filter_map(|node| {
            let known = self.nodes.get(node.as_str())?;
            let why = known.settled.why.clone()?;
            Some((
                node,
                match known.ends {
                    Some(ends) => format!("{why}, which is gone and counts until {ends}"),
                    None => why,
                },
            ))
        })
    }
}

/// The condition `NodesMarked`; `over`: more GPUs are marked than the pool allows.
pub fn update(marks: &Marks, nodes: &BTreeSet<NodeName>, over: Option<&String>) -> ConditionUpdate {
    let marked: Vec<String> = marks.among(nodes).map(|(node, why)| format!("node {node}: {why}")).collect();
    if marked.is_empty() {
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
    ConditionUpdate::yes(NODES_MARKED, reason, format!("{named}{more}: {effect}{over}"))
}

/// The event about a condition that has changed, if any.
pub fn event(before: &[Condition], now: &[Condition]) -> Option<(EventType, Reason, String)> {
    let new = now.iter().find(|c| c.type_ == NODES_MARKED)?;
    let old = before.iter().find(|c| c.type_ == NODES_MARKED);
    if new.status != "True" {
        let was = condition::is_true(before, NODES_MARKED);
        return was.then(|| (EventType::Normal, reasons::UNMARKED, new.message.clone()));
    }
    let differs = old.is_none_or(|old| (&old.status, &old.reason) != (&new.status, &new.reason));
    let reason = Reason::listed(&new.reason).unwrap_or(reasons::MARKED);
    differs.then(|| (EventType::Warning, reason, new.message.clone()))
}
