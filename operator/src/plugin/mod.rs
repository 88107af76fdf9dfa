//! NVIDIA's device plugin on a node whose GPUs change: it reads them once when it starts and withdraws nothing, so the node is
//! cordoned meanwhile and the plugin's pod started anew.
//!
//! Everything is derived from the node, its agreement and the mark that our cordon carries: there is nothing to lose.

use gputenancy_crds::{Advertiser, AgentStep, Change, ChangePhase, GpuNode, GpuState};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A pod that was bound just before the cordon has reached kubelet after this time.
const LANDING: SignedDuration = SignedDuration::from_secs(5);
/// A plugin that does not show what NVML shows is started again after this time.
const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// What is looked at, for one node.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// The time.
    pub now: Timestamp,
    /// The agreement.
    pub node: &'a GpuNode,
    /// A pool has the node: without one nothing is changed there any more, and no cordon is needed.
    pub pooled: bool,
    /// `spec.unschedulable` of the Node.
    pub unschedulable: bool,
    /// The mark on the Node: when we cordoned it.
    pub mark: Option<&'a str>,
}

/// What to do with the node's place in scheduling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cordon {
    /// Cordon it, and mark that it was us.
    Set,
    /// Take our cordon back, and the mark.
    Lift,
    /// Somebody has lifted our cordon: only the mark goes.
    Unmark,
}

/// What to do now. Doing it twice does no harm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// About the cordon.
    pub cordon: Option<Cordon>,
    /// The plugin's pods on this node go if they were made at this time or before: they have not seen the present layout.
    pub restart: Option<Timestamp>,
    /// Look again at this time even if nothing changed.
    pub wake: Option<Timestamp>,
}

/// Can nobody be sent to the node any more, and have all who were sent arrived? `None`: our agent advertises, and withdraws
/// devices one by one.
pub fn closed(seen: &Seen<'_>) -> Option<bool> {
    (seen.node.spec.advertiser == Advertiser::NvidiaDevicePlugin)
        .then(|| seen.unschedulable && landed(seen) <= seen.now)
}

/// When whoever was bound before the cordon has arrived. Somebody else's cordon is not of this moment.
fn landed(seen: &Seen<'_>) -> Timestamp {
    let since = seen.mark.and_then(|mark| mark.parse::<Timestamp>().ok());
    since.and_then(|at| at.checked_add(LANDING).ok()).unwrap_or(seen.now)
}

/// Decides.
pub fn step(seen: &Seen<'_>) -> Steps {
    let theirs = seen.pooled && seen.node.spec.advertiser == Advertiser::NvidiaDevicePlugin;
    let changes: Vec<(&str, &Change)> = (seen.node.spec.gpus.iter())
        .filter_map(|g| Some((g.uuid.as_str(), g.change.as_ref()?)))
        .filter(|(_, change)| theirs && change.phase < ChangePhase::RolledBack)
        .collect();
    let cordon = match (changes.is_empty(), seen.unschedulable, seen.mark) {
        (false, false, _) => Some(Cordon::Set),
        (true, true, Some(_)) => Some(Cordon::Lift),
        (true, false, Some(_)) => Some(Cordon::Unmark),
        _ => None,
    };
    if cordon.is_some() || changes.is_empty() {
        return Steps { cordon, ..Steps::default() };
    }
    let landing = Some(landed(seen)).filter(|at| *at > seen.now);
    let stale = changes.iter().filter_map(|(uuid, change)| stale(seen, uuid, change)).max();
    let again = stale.and_then(|_| seen.now.checked_add(PATIENCE).ok());
    Steps { cordon: None, restart: stale.filter(|_| landing.is_none()), wake: landing.or(again) }
}

/// Pods of the plugin made until then have not seen this GPU's layout.
fn stale(seen: &Seen<'_>, uuid: &str, change: &Change) -> Option<Timestamp> {
    if !matches!(change.phase, ChangePhase::Verifying | ChangePhase::RollingBack) {
        return None;
    }
    let status = seen.node.status.as_ref()?;
    let fresh = status.observed_generation.is_some_and(|g| Some(g) == seen.node.metadata.generation);
    let gpu = status.gpus.iter().find(|g| g.uuid == uuid).filter(|g| fresh && g.step == AgentStep::Steady)?;
    let since = change.phase_since.0;
    let late = seen.now.checked_sub(PATIENCE).unwrap_or(seen.now);
    Some(if unknown(gpu) { since.max(late) } else { since })
}

/// NVML shows a device that kubelet does not list.
fn unknown(gpu: &GpuState) -> bool {
    gpu.instances.iter().map(|i| &i.device).chain(&gpu.whole).any(|d| !d.allocatable)
}

/// Are these the labels of a pod of NVIDIA's device plugin, by the GPU Operator's manifest or by the plugin's own chart?
pub fn is_plugin(label: impl Fn(&str) -> Option<String>) -> bool {
    label("app").as_deref() == Some("nvidia-device-plugin-daemonset")
        || label("app.kubernetes.io/name").as_deref() == Some("nvidia-device-plugin")
}

#[cfg(test)]
mod tests;
