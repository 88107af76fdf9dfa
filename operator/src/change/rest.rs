//! A GPU that is not changing: begin when the plan wants it, and look after changes that failed.

use gputenancy_crds::{AgentStep, Change, ChangePhase, Layout};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    carve,
    draft::{Draft, stamp},
    drain,
    model::{Decision, Policy},
    outcome,
    view::{Device, View, starts},
};
use crate::plan::plain;

/// No change is under way, and none failed.
pub(super) fn steady(view: &View<'_>) -> Decision {
    let mut draft = Draft::of(view);
    if view.spec.is_some_and(|s| !s.hold.is_empty() || !s.trial.is_empty()) {
        draft.finish();
        return draft.done("");
    }
    if is_lost(view) {
        return lost(view);
    }
    match view.observation.target {
        Some(target) if view.spec.is_none() || view.present() != plain(target.clone()) => begin(view, target),
        _ if view.spec.is_some() && anew(view).is_some() => begin(view, &view.present()),
        _ => Decision::default(),
    }
}

/// Why NVIDIA's MIG manager has to carve the GPU anew though its layout stays.
fn anew<'v>(view: &'v View<'_>) -> Option<&'v str> {
    view.observation.managed.as_ref().and_then(|m| m.anew)
}

fn is_lost(view: &View<'_>) -> bool {
    view.spec.is_some() && view.fresh && view.state.step == AgentStep::Failed && !view.shows(&view.present())
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
        intent: view.observation.intent.to_owned(),
        failures: 0,
        reason: String::new(),
    });
    let fault = view.state.error.as_ref().map(outcome::fault);
    let fault = fault.unwrap_or_else(|| "the agent failed and did not say why: read its log".to_owned());
    carve::stick(draft, "LayoutLost", &fault)
}

/// A change failed and the old layout is back.
pub(super) fn rolled_back(view: &View<'_>, change: &Change) -> Decision {
    if is_lost(view) {
        return lost(view);
    }
    if anew(view).is_some() && !view.shows(&view.present()) {
        // the old layout has gone again
        return begin(view, &view.present());
    }
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
        Some(target) if over || another(view, change, &target) => begin(view, &target),
        _ => draft.done(patiently(view, change, retry)),
    }
}

/// What failed, and where NVIDIA's MIG manager is asked again, when.
fn patiently(view: &View<'_>, change: &Change, retry: Option<Timestamp>) -> String {
    let again = retry.filter(|_| view.observation.managed.is_some());
    again.map_or_else(|| change.reason.clone(), |at| format!("{}; it is asked again at {at}", change.reason))
}

/// Is it another layout than the one that failed? What NVIDIA's MIG manager could not do has seldom to do with the layout: unless
/// people have written something else it is given time.
fn another(view: &View<'_>, change: &Change, target: &Layout) -> bool {
    let written = view.observation.managed.is_none() || change.intent != view.observation.intent;
    written && *target != plain(change.to.clone())
}

/// Neither layout could be reached. When the agent succeeds after all the GPU is well again; now and then it is asked anew,
/// because an agent gives up on a spec that NVML refuses.
pub(super) fn stuck(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    let present = view.present();
    let forward = present == plain(change.to.clone());
    let retry = after(change, view.observation.policy);
    if view.reached(&present) {
        if view.healthy() && view.spec.is_some_and(|s| !s.trial.is_empty()) {
            // what canaries have yet to prove is not released
            draft.phase(ChangePhase::Trying);
            return draft.done("the new layout is there after all; canary pods have yet to prove it");
        }
        draft.hold([]);
        if view.spec.is_some_and(|s| s.hold.is_empty() && s.trial.is_empty()) && view.offered(&present).is_ok() {
            if forward {
                draft.finish().event(false, "Recovered", "the new layout is there after all");
            } else {
                draft.phase(ChangePhase::RolledBack).event(false, "Recovered", "the old layout is back");
            }
            return draft.done(&change.reason);
        }
    }
    if view.fresh && view.healthy() && retry.is_none_or(|at| at <= view.observation.now) {
        let managed = view.observation.managed.is_some();
        let phase = match forward {
            false => ChangePhase::RollingBack,
            true if managed && !view.shows(&present) => ChangePhase::Partitioning,
            true if view.spec.is_some_and(|s| !s.trial.is_empty()) => ChangePhase::Trying,
            true => ChangePhase::Verifying,
        };
        if phase == ChangePhase::Partitioning {
            // what NVIDIA's MIG manager is asked to carve nobody may be given meanwhile
            draft.hold(starts(&present));
        }
        draft.phase(phase);
    }
    draft.wake(retry);
    draft.done(patiently(view, change, retry.filter(|at| *at > view.observation.now)))
}

/// Longest time until a change that failed is tried again.
const PATIENCE: SignedDuration = SignedDuration::from_hours(24);

/// When a change that failed may be tried again: what has failed often is tried seldom.
fn after(change: &Change, policy: &Policy) -> Option<Timestamp> {
    let doublings = u32::try_from(change.failures.saturating_sub(1)).unwrap_or(0).min(16);
    let wait = policy.retry_after.checked_mul(1 << doublings).unwrap_or(PATIENCE);
    change.phase_since.0.checked_add(wait.min(PATIENCE.max(policy.retry_after))).ok()
}

/// Changes that failed on other GPUs of a node that NVIDIA's MIG manager carves, and for which nobody has written anything else since:
/// what it could not do there it can hardly do here.
fn failed_beside<'v>(view: &'v View<'_>) -> impl Iterator<Item = &'v Change> {
    let seen = view.observation;
    let others = seen.node.spec.gpus.iter().filter(|g| seen.managed.is_some() && g.uuid != seen.uuid);
    let failed = |c: &&Change| c.phase >= ChangePhase::RolledBack && c.failures > 0 && c.intent == seen.intent;
    others.filter_map(|g| g.change.as_ref()).filter(failed)
}

fn begin(view: &View<'_>, target: &Layout) -> Decision {
    let seen = view.observation;
    let mut draft = Draft::of(view);
    let target = plain(target.clone());
    if let Some(why) = unsettled(view) {
        return draft.waits(why);
    }
    if view.spec.is_none() && view.shows(&target) {
        draft.layout(&target);
        return draft.done("");
    }
    let leaving = view.leaving(&target);
    let busy = leaving.iter().any(|d| d.owned() || d.state.clients > 0);
    let now = stamp(seen.now);
    let evict_after = now.0.checked_add(if busy { seen.policy.notice } else { SignedDuration::ZERO }).unwrap_or(now.0);
    // nobody misses what is not advertised yet
    if (busy || view.spec.is_some()) && !seen.policy.window.lasts(evict_after) {
        draft.wake(seen.policy.window.next());
        let next = seen.policy.window.next().map_or_else(|| "never".to_owned(), |at| at.to_string());
        let late = if seen.policy.window.is_open() { ", because the notice would outlast the present one" } else { "" };
        return draft.waits(format!("Pending: nextWindow={next}{late}"));
    }
    let beside = failed_beside(view).max_by_key(|c| (after(c, seen.policy), c.failures));
    if let Some(at) = beside.and_then(|c| after(c, seen.policy)).filter(|at| *at > seen.now && target != view.present())
    {
        draft.wake(Some(at));
        return draft.waits(format!(
            "Pending: NVIDIA's MIG manager changes the node as a whole, and its last change failed: it is asked again at {at}, or as soon \
             as a profile, pool or tenant is changed"
        ));
    }
    if !seen.may_start {
        return draft
            .waits("Pending: its turn comes when fewer than spec.disruption.maxUnavailable GPUs of the pool change");
    }
    let reason = anew(view).filter(|_| target == view.present()).unwrap_or(seen.reason);
    let own = view.change().filter(|c| !another(view, c, &target));
    let failures = own.into_iter().chain(failed_beside(view)).map(|c| c.failures).max().unwrap_or(0);
    draft.begin(Change {
        phase: if busy && !seen.policy.notice.is_zero() { ChangePhase::Noticed } else { ChangePhase::Held },
        from: view.present(),
        to: target.clone(),
        started_at: now.clone(),
        phase_since: now.clone(),
        evict_after: None,
        intent: seen.intent.to_owned(),
        failures,
        reason: reason.to_owned(),
    });
    draft.event(false, "ChangeStarted", reason);
    draft.keep_back(view.absent(&target));
    if leaving.is_empty() && draft.keeps_back() {
        return carve::partition(view, draft, &target);
    }
    // without a notice everybody's time comes at once
    let next = |d: &Device<'_>| seen.policy.notice.is_zero() && drain::is_next(view, d);
    if busy {
        draft.journal(|c| c.evict_after = Some(stamp(evict_after))).wake(Some(evict_after));
        // kubelet, which has just looked at a pod whose annotations changed, ends it up to a second later
        drain::notify(view, &mut draft, &leaving, evict_after, |d| !next(d));
    }
    draft.hold(leaving.iter().filter(|d| !d.owned() || next(d)).map(|d| d.start));
    draft.done("withdrawing free devices that must go")
}

/// Why no change can begin on this GPU now, whatever the plan wants.
fn unsettled(view: &View<'_>) -> Option<&'static str> {
    if !view.fresh {
        return Some("Pending: waiting for the agent to report");
    }
    if !view.healthy() {
        return Some("Pending: the GPU is not healthy; reset or replace it");
    }
    let settled =
        matches!(view.state.step, AgentStep::Steady | AgentStep::Unmanaged | AgentStep::Failed | AgentStep::LeftAlone);
    (!settled).then_some("Pending: waiting for the agent to finish what it does")
}
