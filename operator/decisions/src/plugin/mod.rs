//! NVIDIA's device plugin on a node whose GPUs change. It reads the GPUs once at its start and withdraws no device, so the node is
//! cordoned during a change and the plugin's pod is restarted.
//!
//! Everything is derived from the node, its `GpuNode` and the annotation of our cordon: there is no other state.

mod config;

use gputenancy_crds::{Advertiser, AgentStep, Change, ChangePhase, GpuNode, GpuState};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub use config::{Inexpressible, PluginConfig, PluginConfigs, is_key};

/// A pod that was bound just before the cordon has reached kubelet after this time.
const LANDING: SignedDuration = SignedDuration::from_secs(5);
/// A plugin whose devices differ from NVML's is restarted again after this time.
const RESTART_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// The observed state of one node.
#[derive(Clone, Debug)]
pub struct PluginObservation<'a> {
    /// The time.
    pub now: Timestamp,
    /// Its `GpuNode`.
    pub node: &'a GpuNode,
    /// The node is in a pool; outside of one nothing changes and no cordon is needed.
    pub pooled: bool,
    /// `spec.unschedulable` of the Node.
    pub unschedulable: bool,
    /// Annotation on the Node: the time of our cordon.
    pub mark: Option<&'a str>,
    /// Another component relies on the cordon as well.
    pub shared: bool,
    /// Label of the Node that selects the plugin's config.
    pub config: Option<&'a str>,
}

/// A change of the node's cordon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CordonAction {
    /// Cordon the node and annotate the time.
    Set,
    /// Lift our cordon and remove the annotation.
    Lift,
    /// Our cordon was lifted by an administrator: remove the annotation only.
    Unmark,
}

/// The actions that are due now; idempotent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginDecision {
    /// Change of the cordon.
    pub cordon: Option<CordonAction>,
    /// Delete the plugin's pods on this node that were created at this time or before: they have not read the present layout.
    pub restart: Option<Timestamp>,
    /// Time of the next decision even if nothing changed.
    pub wake: Option<Timestamp>,
}

/// Whether no further pod can be bound to the node and all bound ones have reached kubelet. `None`: our agent advertises and
/// withdraws single devices.
pub fn closed(seen: &PluginObservation<'_>) -> Option<bool> {
    (seen.node.spec.advertiser == Advertiser::NvidiaDevicePlugin)
        .then(|| seen.unschedulable && landed(seen) <= seen.now)
}

/// When the pods bound before the cordon have reached kubelet; a cordon without our annotation is an earlier one.
fn landed(seen: &PluginObservation<'_>) -> Timestamp {
    let since = seen.mark.and_then(|mark| mark.parse::<Timestamp>().ok());
    since.and_then(|at| at.checked_add(LANDING).ok()).unwrap_or(seen.now)
}

/// Decides what to do for one node.
pub fn step(seen: &PluginObservation<'_>) -> PluginDecision {
    let theirs = seen.pooled && seen.node.spec.advertiser == Advertiser::NvidiaDevicePlugin;
    let changes: Vec<(&str, &Change)> = (seen.node.spec.gpus.iter())
        .filter_map(|g| Some((g.uuid.as_str(), g.change.as_ref()?)))
        .filter(|(_, change)| theirs && change.phase < ChangePhase::RolledBack)
        .collect();
    let cordon = match (changes.is_empty(), seen.unschedulable, seen.mark) {
        (false, false, _) => Some(CordonAction::Set),
        // a component that found our cordon lifts none itself, and takes an uncordon for one by hand: ours stays until it has finished
        (true, true, Some(_)) if seen.shared => None,
        (true, true, Some(_)) => Some(CordonAction::Lift),
        (true, false, Some(_)) => Some(CordonAction::Unmark),
        _ => None,
    };
    if cordon.is_some() || changes.is_empty() {
        return PluginDecision { cordon, ..PluginDecision::default() };
    }
    let landing = Some(landed(seen)).filter(|at| *at > seen.now);
    // a plugin that restarts before its config is selected would read the last one
    if !PluginConfig::of(seen.node).is_ok_and(|config| config.is_selected(seen.config)) {
        return PluginDecision { wake: landing, ..PluginDecision::default() };
    }
    let stale = changes.iter().filter_map(|(uuid, change)| stale(seen, uuid, change)).max();
    let again = stale.and_then(|_| seen.now.checked_add(RESTART_INTERVAL).ok());
    PluginDecision { cordon: None, restart: stale.filter(|_| landing.is_none()), wake: landing.or(again) }
}

/// Pods of the plugin created until then have not read this GPU's layout.
fn stale(seen: &PluginObservation<'_>, uuid: &str, change: &Change) -> Option<Timestamp> {
    if !matches!(change.phase, ChangePhase::Verifying | ChangePhase::RollingBack) {
        return None;
    }
    let status = seen.node.status.as_ref()?;
    let fresh = status.observed_generation.is_some_and(|g| Some(g) == seen.node.metadata.generation);
    let gpu = status.gpus.iter().find(|g| g.uuid == uuid).filter(|g| fresh && g.step == AgentStep::Steady)?;
    let since = change.phase_since.0;
    let late = seen.now.checked_sub(RESTART_INTERVAL).unwrap_or(seen.now);
    Some(if unknown(gpu) { since.max(late) } else { since })
}

/// NVML shows a device that kubelet does not list.
fn unknown(gpu: &GpuState) -> bool {
    gpu.devices().any(|d| !d.allocatable)
}

/// Are these the labels of a pod of NVIDIA's device plugin, by the GPU Operator's manifest or by the plugin's own chart?
pub fn is_plugin(label: impl Fn(&str) -> Option<String>) -> bool {
    label("app").as_deref() == Some("nvidia-device-plugin-daemonset")
        || label("app.kubernetes.io/name").as_deref() == Some("nvidia-device-plugin")
}

#[cfg(test)]
mod tests;
