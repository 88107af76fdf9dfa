//! Verdicts of others on a node: a cordon, a taint or a condition by which people, clouds and health products say that it should take no new
//! work. What is ours, or Kubernetes' own way to say that a node does not report, is none.
//!
//! `presets` has the conditions of known products. [`settle`] keeps a verdict for a while after its last mark is gone.

mod presets;
mod settle;

use std::collections::BTreeSet;

use gputenancy_crds::{Mark, NodeHealth, names};
use k8s_openapi::api::core::v1::Taint;

use crate::projection::{SlimCondition, SlimNode};
pub use settle::{Settled, settle};

/// Taint by which tenants' pods get GPUs, unless the pool or the chart names another one.
const GPU_TAINT: &str = "nvidia.com/gpu";

/// Taints that say nothing about the health of a node: the first is the cordon itself, [liveness](crate::liveness) decides about the next
/// two, and Kubernetes makes every pod with a request tolerate the last.
const NOT_VERDICTS: [&str; 4] = [
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
];

/// Most marks that a message names.
const MOST_NAMED: usize = 4;

/// Does the node carry anything that could be a verdict, whatever a pool counts? Most nodes do not, and this is cheap.
pub fn is_suspect(node: &SlimNode) -> bool {
    let bad = |c: &SlimCondition| c.type_ != "Ready";
    is_cordoned(node) || node.spec.taints.iter().any(forbids) || node.status.conditions.iter().any(bad)
}

/// What others say about the node, by a pool's rules, as a clause such as `it is cordoned`; `None`: nothing that counts. `tolerated`: keys
/// of the taints that pods of tenants tolerate.
pub fn verdict(node: &SlimNode, health: &NodeHealth, tolerated: &BTreeSet<&str>) -> Option<String> {
    let NodeHealth { cordons, taints, tolerated_taints, presets, conditions, clear_after: _, max_unavailable: _ } =
        health;
    let mut marks = Vec::new();
    if *cordons == Mark::Count && is_cordoned(node) {
        marks.push("it is cordoned".to_owned());
    }
    if *taints == Mark::Count {
        let ours = |key: &str| {
            key == GPU_TAINT || tolerated.contains(key) || tolerated_taints.iter().any(|tolerated| tolerated == key)
        };
        let counts = |taint: &&Taint| forbids(taint) && !ours(&taint.key);
        marks.extend(node.spec.taints.iter().filter(counts).map(taint_text));
    }
    let mut bad: BTreeSet<(&str, &str)> =
        conditions.iter().map(|bad| (bad.type_.as_str(), bad.status.as_str())).collect();
    let known = presets.iter().flat_map(|preset| presets::conditions(*preset));
    bad.extend(known.map(|(type_, status)| (type_, status.as_str())));
    let is_bad = |c: &&SlimCondition| bad.contains(&(c.type_.as_str(), c.status.as_str()));
    marks.extend(node.status.conditions.iter().filter(is_bad).map(condition_text));
    let more = marks.len().saturating_sub(MOST_NAMED);
    marks.truncate(MOST_NAMED);
    if more > 0 {
        marks.push(format!("{more} more"));
    }
    (!marks.is_empty()).then(|| marks.join(", "))
}

/// Cordoned by somebody else: a cordon of ours has an annotation.
fn is_cordoned(node: &SlimNode) -> bool {
    let ours = node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::CORDONED));
    node.spec.unschedulable && !ours
}

/// A taint that keeps pods away and is no sign of something else.
fn forbids(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") && !NOT_VERDICTS.contains(&taint.key.as_str())
}

fn taint_text(taint: &Taint) -> String {
    let value = taint.value.as_deref().filter(|value| !value.is_empty());
    let value = value.map(|value| format!("={value}")).unwrap_or_default();
    format!("it has the taint {}{value}:{}", taint.key, taint.effect)
}

fn condition_text(condition: &SlimCondition) -> String {
    let SlimCondition { type_, status, reason, .. } = condition;
    let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    format!("its condition {type_} is {status}{reason}")
}

#[cfg(test)]
mod tests;
