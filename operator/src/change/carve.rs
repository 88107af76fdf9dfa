//! From an idle device to a verified layout, or back: new devices stay withdrawn until NVML shows the whole layout, and the
//! change ends when kubelet and the node's allocatable agree.

use gputenancy_crds::{AgentStep, Change, ChangePhase, Layout};
use k8s_openapi::jiff::Timestamp;

use super::{
    draft::Draft,
    model::Decision,
    view::{Device, View},
};
use crate::plan::plain;

/// Asks the agent for the new layout.
pub(super) fn partition(view: &View<'_>, mut draft: Draft<'_>, to: &Layout) -> Decision {
    draft.layout(to).hold(view.arriving(to)).phase(ChangePhase::Partitioning);
    let timeout = view.observation.now.checked_add(view.observation.policy.carve_timeout).ok();
    draft.wake(timeout);
    draft.done("the agent is carving")
}

pub(super) fn partitioning(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    let timeout = timeout(view, change);
    if view.reached(&change.to) {
        draft
            .hold([])
            .phase(ChangePhase::Verifying)
            .wake(view.observation.now.checked_add(view.observation.policy.carve_timeout).ok());
        return draft.done("NVML shows the new layout; waiting for kubelet and the node's allocatable");
    }
    if let Some(reason) = failure(view, timeout, "carve") {
        return roll_back(view, draft, change, reason);
    }
    draft.wake(timeout);
    draft.done(doing(view))
}

pub(super) fn verifying(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    draft.hold([]);
    let timeout = timeout(view, change);
    let missing = if view.reached(&change.to) { view.offered(&change.to) } else { Err(doing(view)) };
    let missing = match missing {
        Ok(()) if view.spec.is_some_and(|s| s.hold.is_empty()) => {
            draft.finish().event(false, "Changed", &format!("has its new layout; {}", change.reason));
            return draft.done("");
        }
        Ok(()) => String::from("giving devices back"),
        Err(missing) => missing,
    };
    let Some(reason) = failure(view, timeout, "verify") else {
        draft.wake(timeout);
        return draft.done(missing);
    };
    let back = view.leaving(&change.from);
    if view.shows(&change.to) || back.iter().any(|d| d.owned() || d.state.clients > 0) {
        return stick(draft, &format!("{reason}; {missing}"));
    }
    roll_back(view, draft, change, reason)
}

pub(super) fn rolling_back(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    let timeout = timeout(view, change);
    if view.reached(&change.from) {
        if view.spec.is_some_and(|s| !s.hold.is_empty()) {
            draft.hold([]).wake(timeout);
            return draft.done("NVML shows the old layout; giving devices back");
        }
        if view.offered(&change.from).is_ok() {
            draft.phase(ChangePhase::RolledBack).event(true, "RolledBack", &change.reason);
            draft.wake(view.observation.now.checked_add(view.observation.policy.retry_after).ok());
            return draft.done(&change.reason);
        }
    }
    if let Some(reason) = failure(view, timeout, "restore the old layout") {
        return stick(draft, &format!("{}; then {reason}", change.reason));
    }
    draft.wake(timeout);
    draft.done(format!("restoring the old layout: {}", doing(view)))
}

/// Asks for the old layout. Devices that are still there are given back at once.
pub(super) fn roll_back(view: &View<'_>, mut draft: Draft<'_>, change: &Change, reason: String) -> Decision {
    let from = plain(change.from.clone());
    draft.layout(&from).hold(view.arriving(&from)).phase(ChangePhase::RollingBack);
    draft.event(true, "RollingBack", &reason);
    let message = reason.clone();
    draft.journal(|c| c.reason = reason);
    draft.wake(view.observation.now.checked_add(view.observation.policy.carve_timeout).ok());
    draft.done(message)
}

pub(super) fn stick(mut draft: Draft<'_>, reason: &str) -> Decision {
    draft.phase(ChangePhase::Stuck).event(true, "Stuck", reason);
    draft.journal(|c| reason.clone_into(&mut c.reason));
    draft.done(reason)
}

fn timeout(view: &View<'_>, change: &Change) -> Option<Timestamp> {
    change.phase_since.0.checked_add(view.observation.policy.carve_timeout).ok()
}

/// Why the present phase cannot end well. While the agent is away nothing is known to have failed, and nothing could be undone.
fn failure(view: &View<'_>, timeout: Option<Timestamp>, task: &str) -> Option<String> {
    if !view.fresh {
        return None;
    }
    if !view.healthy() {
        return Some(format!("the GPU is {:?}: it needs a reset or a replacement", view.state.health));
    }
    if view.state.step == AgentStep::Failed {
        return Some(fault(view));
    }
    let late = timeout.is_some_and(|at| at <= view.observation.now);
    late.then(|| format!("the agent did not {task} in time: {}", doing(view)))
}

/// The call that failed, in words.
pub(super) fn fault(view: &View<'_>) -> String {
    view.state.error.as_ref().map_or_else(
        || "the agent failed and did not say why: read its log".to_owned(),
        |e| format!("{} returned {}: {}", e.call, e.code, e.message),
    )
}

/// What the agent is doing, in words.
fn doing(view: &View<'_>) -> String {
    if !view.fresh {
        return "waiting for the agent to report".to_owned();
    }
    let busy: Vec<Device<'_>> = view.devices().into_iter().filter(|d| d.state.clients > 0).collect();
    match view.state.step {
        AgentStep::Steady | AgentStep::Unmanaged => "waiting for kubelet to list the devices".to_owned(),
        AgentStep::WaitingForClients => {
            let places: Vec<String> = busy.iter().map(|d| format!("{} at {}", d.name(), d.start)).collect();
            format!("a process still uses {}", places.join(", "))
        }
        AgentStep::SettingMode => "the agent is setting the MIG mode".to_owned(),
        AgentStep::WaitingForReset => {
            "the MIG mode is pending until the GPU is reset: reset it or restart the node".to_owned()
        }
        AgentStep::Destroying => "the agent is destroying instances".to_owned(),
        AgentStep::Creating => "the agent is creating instances".to_owned(),
        AgentStep::Failed => "the agent failed".to_owned(),
    }
}
