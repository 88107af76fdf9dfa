//! A GPU that is not changing: begin when the plan wants it, and look after changes that failed.

use gputenancy_crds::{AgentStep, Change, ChangePhase, Layout};
use k8s_openapi::jiff::Timestamp;

use super::{
    carve,
    draft::{Draft, stamp},
    drain,
    model::{Decision, Policy},
    view::View,
};
use crate::plan::plain;

/// No change is under way, and none failed.
pub(super) fn steady(view: &View<'_>) -> Decision {
    let mut draft = Draft::of(view);
    if view.spec.is_some_and(|s| !s.hold.is_empty()) {
        draft.finish();
        return draft.done("");
    }
    if view.spec.is_some() && view.fresh && view.state.step == AgentStep::Failed && !view.shows(&view.present()) {
        return lost(view);
    }
    match view.observation.target {
        Some(target) if view.spec.is_none() || view.present() != plain(target.clone()) => begin(view, target),
        _ => Decision::default(),
    }
}

/// The layout is not there and the agent cannot restore it, such as after a power cycle: said, and tried again later.
fn lost(view: &View<'_>) -> Decision {
    let now = stamp(view.observation.now);
    let mut draft = Draft::of(view);
    draft.begin(Change {
        phase: ChangePhase::Verifying,
        from: view.present(),
        to: view.present(),
        started_at: now.clone(),
        phase_since: now,
        evict_after: None,
        reason: String::new(),
    });
    carve::stick(draft, &carve::fault(view))
}

/// A change failed and the old layout is back.
pub(super) fn rolled_back(view: &View<'_>, change: &Change) -> Decision {
    let retry = after(change, view.observation.policy);
    let over = retry.is_none_or(|at| at <= view.observation.now);
    let mut draft = Draft::of(view);
    draft.hold([]).wake(retry);
    match view.observation.target.map(|t| plain(t.clone())) {
        Some(target) if target == view.present() => {
            if over {
                draft.finish();
            }
            draft.done(&change.reason)
        }
        Some(target) if target != plain(change.to.clone()) || over => begin(view, &target),
        _ => draft.done(&change.reason),
    }
}

/// Neither layout could be reached. When the agent succeeds after all the GPU is well again; now and then it is asked anew,
/// because an agent gives up on a spec that NVML refuses.
pub(super) fn stuck(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    let present = view.present();
    let forward = present == plain(change.to.clone());
    let retry = after(change, view.observation.policy);
    if view.reached(&present) {
        draft.hold([]);
        if view.spec.is_some_and(|s| s.hold.is_empty()) && view.offered(&present).is_ok() {
            if forward {
                draft.finish().event(false, "Recovered", "the new layout is there after all");
            } else {
                draft.phase(ChangePhase::RolledBack).event(false, "Recovered", "the old layout is back");
            }
            return draft.done(&change.reason);
        }
    }
    if view.fresh && retry.is_none_or(|at| at <= view.observation.now) {
        draft.phase(if forward { ChangePhase::Verifying } else { ChangePhase::RollingBack });
    }
    draft.wake(retry);
    draft.done(&change.reason)
}

/// When a change that failed may be tried again.
fn after(change: &Change, policy: &Policy) -> Option<Timestamp> {
    change.phase_since.0.checked_add(policy.retry_after).ok()
}

fn begin(view: &View<'_>, target: &Layout) -> Decision {
    let seen = view.observation;
    let mut draft = Draft::of(view);
    let settled = matches!(view.state.step, AgentStep::Steady | AgentStep::Unmanaged | AgentStep::Failed);
    if !view.fresh || !view.healthy() || !settled {
        return draft.done("waiting for the agent to report a settled GPU");
    }
    let target = plain(target.clone());
    if view.spec.is_none() && view.shows(&target) {
        let mut draft = Draft::of(view);
        draft.layout(&target);
        return draft.done("");
    }
    if !seen.may_start {
        return draft.done("waiting for its turn: spec.disruption.maxUnavailable GPUs of the pool are changing");
    }
    let leaving = view.leaving(&target);
    let busy = leaving.iter().any(|d| d.owned() || d.state.clients > 0);
    let now = stamp(seen.now);
    draft.begin(Change {
        phase: if busy { ChangePhase::Noticed } else { ChangePhase::Held },
        from: view.present(),
        to: target.clone(),
        started_at: now.clone(),
        phase_since: now.clone(),
        evict_after: None,
        reason: seen.reason.to_owned(),
    });
    draft.event(false, "ChangeStarted", seen.reason);
    if leaving.is_empty() {
        return carve::partition(view, draft, &target);
    }
    if busy {
        let at = now.0.checked_add(seen.policy.notice).unwrap_or(now.0);
        draft.journal(|c| c.evict_after = Some(stamp(at))).wake(Some(at));
        drain::notify(view, &mut draft, &leaving, at);
    }
    draft.hold(leaving.iter().filter(|d| !d.owned()).map(|d| d.start));
    draft.done("withdrawing free devices that must go")
}
