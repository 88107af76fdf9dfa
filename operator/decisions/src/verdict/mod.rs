//! Verdicts of others on a node: a cordon, a taint or a condition by which people, clouds and health products say that it should take no new
//! work. What is ours, or Kubernetes' own way to say that a node does not report, is none.
//!
//! `gpus` reads the verdicts on single GPUs. `presets` has the conditions of known products. [`settle`] keeps a verdict for a while after its last mark is gone.

mod cleared;
mod gpus;
mod presets;
mod settle;

use std::collections::BTreeSet;

use gputenancy_crds::{HealthPreset, Mark, NodeHealth, names};
use k8s_openapi::{api::core::v1::Taint, jiff::Timestamp};
use kube::ResourceExt as _;

use crate::maintenance::Maintenance;
pub use cleared::{ClearedFaults, cleared_faults};
pub use gpus::{WithdrawnGpus, withdrawn_gpus};
use gputenancy_crds::projection::{SlimCondition, SlimNode};
pub use settle::{Settled, settle};

/// Taint by which tenants' pods get GPUs, unless the pool or the chart names another one.
pub const GPU_TAINT: &str = "nvidia.com/gpu";

/// Taints that say nothing about the health of a node: the first is the cordon itself, [liveness](crate::liveness) decides about the next
/// two, and a tenant's pod can cause the others by what it writes and starts, until kubelet evicts it.
const NOT_VERDICTS: [&str; 6] = [
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
];

/// Taints of a node that is starting or joins again: such a node is no supply, and that is no fault. Of Kubernetes and its cloud controllers, of
/// Cilium, Amazon's EBS driver and Karpenter; the last is the prefix of the node readiness controller.
const START_UP: [&str; 5] = [
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.kubernetes.io/network-unavailable",
    "node.cilium.io/agent-not-ready",
    "ebs.csi.aws.com/agent-not-ready",
    "karpenter.sh/unregistered",
];
const READINESS: &str = "readiness.k8s.io/";

/// Most marks that a message names.
const MOST_NAMED: usize = 4;

/// The verdict of other products about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// All marks, as a clause such as `it is cordoned`.
    pub why: String,
    /// One of them is more than a start of the node or maintenance that is planned for later: guarantees are restored at once.
    pub fault: bool,
}

/// Does the node carry anything that could be a verdict, whatever a pool counts? Most nodes do not, and this is cheap.
pub fn is_suspect(node: &SlimNode) -> bool {
    let bad = |c: &SlimCondition| c.type_ != "Ready" && c.type_ != names::NODE_DEVICES_READY;
    is_cordoned(node) || node.spec.taints.iter().any(forbids) || node.status.conditions.iter().any(bad)
}

/// The verdict of other products about the node at `now`, by a pool's rules; `None`: none that counts. `tolerated`: keys of the taints that pods of tenants
/// tolerate.
pub fn verdict(
    node: &SlimNode,
    maintenance: &[Maintenance],
    health: &NodeHealth,
    tolerated: &BTreeSet<&str>,
    now: Timestamp,
) -> Option<Verdict> {
    let NodeHealth {
        cordons,
        taints,
        tolerated_taints,
        presets,
        conditions,
        clear_after: _,
        max_unavailable: _,
        faults_ignore_windows: _,
    } = health;
    let (mut marks, mut starts) = (Vec::new(), Vec::new());
    if *cordons == Mark::Count && is_cordoned(node) {
        let also = if is_cordoned_by_us(node) { ", also by NVSentinel" } else { "" };
        marks.push(format!("it is cordoned{also}"));
    }
    if *taints == Mark::Count {
        let ours = |key: &str| {
            key == GPU_TAINT || tolerated.contains(key) || tolerated_taints.iter().any(|tolerated| tolerated == key)
        };
        let counts = |taint: &&Taint| forbids(taint) && !ours(&taint.key);
        let (starting, others): (Vec<_>, Vec<_>) = node.spec.taints.iter().filter(counts).partition(|t| is_start(t));
        marks.extend(others.into_iter().map(taint_text));
        starts.extend(starting.into_iter().map(taint_text));
    }
    let mut bad: BTreeSet<(&str, &str)> =
        conditions.iter().map(|bad| (bad.type_.as_str(), bad.status.as_str())).collect();
    let known = presets.iter().flat_map(|preset| presets::conditions(*preset));
    bad.extend(known.map(|(type_, status)| (type_, status.as_str())));
    let is_bad = |c: &&SlimCondition| bad.contains(&(c.type_.as_str(), c.status.as_str()));
    let (planned, found): (Vec<_>, Vec<_>) =
        node.status.conditions.iter().filter(is_bad).partition(|c| c.type_ == presets::PLANNED);
    marks.extend(found.into_iter().map(condition_text));
    let requested = maintenance.iter().filter(|_| presets.contains(&HealthPreset::NVSentinel));
    let (later, begun): (Vec<_>, Vec<_>) = requested.partition(|m| m.begins_after(now).is_some());
    marks.extend(begun.into_iter().map(request_text));
    let fault = !marks.is_empty();
    marks.extend(starts.into_iter().chain(planned.into_iter().map(condition_text)));
    marks.extend(later.into_iter().map(request_text));
    let more = marks.len().saturating_sub(MOST_NAMED);
    marks.truncate(MOST_NAMED);
    if more > 0 {
        marks.push(format!("{more} more"));
    }
    (!marks.is_empty()).then(|| Verdict { why: marks.join(", "), fault })
}

/// Does another component rely on the node's cordon, its own or the operator's? A plain `kubectl cordon` of a cordoned node leaves no trace.
pub fn others_cordon(node: &SlimNode) -> bool {
    node.spec.unschedulable
        && node.annotations().get(names::NVSENTINEL_QUARANTINE).is_some_and(|events| !events.is_empty())
}

/// Cordoned by another author, alone or besides the operator.
fn is_cordoned(node: &SlimNode) -> bool {
    node.spec.unschedulable && (!is_cordoned_by_us(node) || others_cordon(node))
}

/// A cordon of the operator has an annotation.
fn is_cordoned_by_us(node: &SlimNode) -> bool {
    node.annotations().contains_key(names::CORDONED)
}

/// A taint that keeps pods away and is no sign of something else.
fn forbids(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") && !NOT_VERDICTS.contains(&taint.key.as_str())
}

fn is_start(taint: &Taint) -> bool {
    START_UP.contains(&taint.key.as_str()) || taint.key.starts_with(READINESS)
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

fn request_text(maintenance: &Maintenance) -> String {
    let starts = maintenance.starts.map(|at| format!(", which starts at {at}")).unwrap_or_default();
    format!("MaintenanceRequest {} of NVSentinel names it{starts}", maintenance.name)
}

#[cfg(test)]
mod tests;
