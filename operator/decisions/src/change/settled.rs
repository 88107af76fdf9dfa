//! GPUs without a change in progress: begin one when the plan wants it, and retry changes that failed.

use std::time::Duration;

use gputenancy_crds::{AgentStep, Change, ChangePhase, Layout, backoff::Backoff, reasons};
use gputenancy_plan::plain;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    context::{ChangeContext, Device},
    draft::Draft,
    drain,
    failure::fault,
    partition,
    policy::Policy,
    rollback::{plain_target, stick},
    types::ChangeDecision,
};
use crate::duration::stamp;

/// No change is in progress, and none failed.
pub(super) fn steady(ctx: &ChangeContext<'_>) -> ChangeDecision {
    let mut draft = Draft::of(ctx);
    if ctx.spec.is_some_and(|s| !s.hold.is_empty() || !s.trial.is_empty()) {
        draft.finish();
        return draft.done("");
    }
    if is_lost(ctx) {
        return lost(ctx);
    }
    match plain_target(ctx) {
        Some(target) if ctx.spec.is_none() || ctx.present() != target => begin(ctx, &target),
        _ if ctx.spec.is_some() && ctx.observation.recreate.is_some() => begin(ctx, &ctx.present()),
        _ => ChangeDecision::default(),
    }
}

fn is_lost(ctx: &ChangeContext<'_>) -> bool {
    ctx.spec.is_some() && ctx.fresh && ctx.state.step == AgentStep::Failed && !ctx.shows(&ctx.present())
}

/// The layout does not exist and the agent cannot restore it, as after a power cycle: reported, and retried later.
fn lost(ctx: &ChangeContext<'_>) -> ChangeDecision {
    let mut draft = Draft::of(ctx);
    draft.begin(change(ctx, ChangePhase::Verifying, ctx.present(), 0, ""));
    stick(draft, reasons::LAYOUT_LOST, &fault(ctx.state.error.as_ref()))
}

/// A change from the present layout that begins now.
fn change(ctx: &ChangeContext<'_>, phase: ChangePhase, to: Layout, failures: i32, reason: &str) -> Change {
    let now = stamp(ctx.observation.now);
    Change {
        phase,
        from: ctx.present(),
        to,
        started_at: now.clone(),
        phase_since: now,
        evict_after: None,
        intent: ctx.observation.intent.to_owned(),
        failures,
        reason: reason.to_owned(),
    }
}

/// A change failed and the old layout is back.
pub(super) fn rolled_back(ctx: &ChangeContext<'_>, change: &Change) -> ChangeDecision {
    if is_lost(ctx) {
        return lost(ctx);
    }
    if ctx.observation.recreate.is_some() && !ctx.shows(&ctx.present()) {
        // the old layout has disappeared again
        return begin(ctx, &ctx.present());
    }
    let retry = retry_at(change, ctx.observation.policy);
    let due = retry.is_none_or(|at| at <= ctx.observation.now);
    let mut draft = Draft::of(ctx);
    // a canary pod after a fault may have been given up
    draft.hold([]).trial([]).requeue_at(retry);
    match plain_target(ctx) {
        Some(target) if target == ctx.present() => {
            // after an edit the failed layout is of no interest any more
            if due || change.intent != ctx.observation.intent {
                draft.finish();
            }
            draft.done(&change.reason)
        }
        Some(target) if due || is_another(ctx, change, &target) => begin(ctx, &target),
        _ => draft.done(with_retry(ctx, change, retry)),
    }
}

/// The failure, and where the node is partitioned as a whole, the time of the retry.
fn with_retry(ctx: &ChangeContext<'_>, change: &Change, retry: Option<Timestamp>) -> String {
    let again = retry.filter(|_| ctx.whole_node().is_some());
    again.map_or_else(|| change.reason.clone(), |at| format!("{}; retried at {at}", change.reason))
}

/// The target is another layout than the one that failed. A failure about the whole node seldom depends on the layout: there only an edit
/// of profiles, pools or tenants counts.
fn is_another(ctx: &ChangeContext<'_>, change: &Change, target: &Layout) -> bool {
    let edited = ctx.whole_node().is_none() || change.intent != ctx.observation.intent;
    edited && *target != plain(change.to.clone())
}

/// Neither layout was reached. The GPU recovers when the agent succeeds after all, or when a third layout is wanted; now and then the
/// request is repeated, because an agent gives up on a spec that NVML refuses.
pub(super) fn stuck(ctx: &ChangeContext<'_>, change: &Change) -> ChangeDecision {
    let mut draft = Draft::of(ctx);
    let present = ctx.present();
    let forward = present == plain(change.to.clone());
    let on_trial = ctx.spec.is_some_and(|s| !s.trial.is_empty());
    let retry = retry_at(change, ctx.observation.policy);
    if ctx.reached(&present) {
        if ctx.healthy() && on_trial {
            draft.phase(ChangePhase::Canary);
            return draft.done("NVML shows the new layout after all; canary pods have not verified it yet");
        }
        draft.hold([]);
        if !on_trial && ctx.spec.is_some_and(|s| s.hold.is_empty()) && ctx.advertised(&present).is_ok() {
            if forward {
                draft.finish().event(false, reasons::RECOVERED, "NVML shows the new layout after all");
            } else {
                draft.phase(ChangePhase::RolledBack).event(
                    false,
                    reasons::RECOVERED,
                    "NVML shows the old layout again",
                );
            }
            return draft.done(&change.reason);
        }
    }
    let due = retry.is_none_or(|at| at <= ctx.observation.now);
    let another = plain_target(ctx).filter(|target| *target != present && *target != plain(change.to.clone()));
    if let Some(target) = another.filter(|_| ctx.healthy() && (due || change.intent != ctx.observation.intent)) {
        return begin(ctx, &target);
    }
    if ctx.fresh && ctx.healthy() && due {
        let phase = match forward {
            false => ChangePhase::RollingBack,
            true if ctx.whole_node().is_some() && !ctx.shows(&present) => ChangePhase::Partitioning,
            true if on_trial => ChangePhase::Canary,
            true => ChangePhase::Verifying,
        };
        if phase == ChangePhase::Partitioning {
            // no pod may get what is about to be recreated
            draft.hold(present.starts());
        }
        draft.phase(phase);
    }
    draft.requeue_at(retry);
    draft.done(with_retry(ctx, change, retry.filter(|at| *at > ctx.observation.now)))
}

/// Longest time until a failed change is retried.
const LONGEST_RETRY: Duration = Duration::from_hours(24);

/// A change failed and is not to be retried yet, nor is another layout wanted than the one that failed.
pub fn waits_to_retry(change: &Change, target: Option<&Layout>, policy: &Policy, now: Timestamp) -> bool {
    let failed = matches!(change.phase, ChangePhase::RolledBack | ChangePhase::Stuck);
    let same = target.is_none_or(|t| plain(t.clone()) == plain(change.to.clone()));
    failed && same && retry_at(change, policy).is_some_and(|at| at > now)
}

/// When a failed change is retried: with exponential back-off.
fn retry_at(change: &Change, policy: &Policy) -> Option<Timestamp> {
    let first = policy.retry_after.unsigned_abs();
    let wait = Backoff::new(first, LONGEST_RETRY.max(first)).after(u32::try_from(change.failures).unwrap_or_default());
    change.phase_since.0.checked_add(wait).ok()
}

/// Failed changes on other GPUs of the same node, where it is partitioned as a whole and the intent is the same: what failed there would
/// fail here.
fn failed_on_node<'c>(ctx: &'c ChangeContext<'_>) -> impl Iterator<Item = &'c Change> {
    let seen = ctx.observation;
    let others = seen.node.spec.gpus.iter().filter(|g| ctx.whole_node().is_some() && g.uuid != seen.uuid);
    let failed = |c: &&Change| c.phase >= ChangePhase::RolledBack && c.failures > 0 && c.intent == seen.intent;
    others.filter_map(|g| g.change.as_ref()).filter(failed)
}

fn begin(ctx: &ChangeContext<'_>, target: &Layout) -> ChangeDecision {
    let seen = ctx.observation;
    let mut draft = Draft::of(ctx);
    if let Some(why) = unsettled(ctx) {
        return draft.pending(why);
    }
    if ctx.spec.is_none() && ctx.shows(target) {
        draft.layout(target);
        return draft.done("");
    }
    let removed = ctx.removed(target);
    let busy = removed.iter().any(|d| d.owned() || d.state.clients > 0);
    let now = stamp(seen.now);
    let evict_after = now.0.checked_add(if busy { seen.policy.notice } else { SignedDuration::ZERO }).unwrap_or(now.0);
    // a GPU that is not advertised yet needs no window
    if (busy || ctx.spec.is_some()) && !seen.policy.window.lasts(evict_after) {
        draft.requeue_at(seen.policy.window.next());
        let next = seen.policy.window.next().map_or_else(|| "never".to_owned(), |at| at.to_string());
        let late = if seen.policy.window.is_open() { ", because the notice would outlast the present one" } else { "" };
        return draft.pending(format!("Pending: nextWindow={next}{late}"));
    }
    let latest = failed_on_node(ctx).max_by_key(|c| (retry_at(c, seen.policy), c.failures));
    let retry = latest.and_then(|c| retry_at(c, seen.policy));
    let retry = retry.filter(|at| *at > seen.now && *target != ctx.present());
    if let (Some(component), Some(at)) = (ctx.whole_node(), retry) {
        draft.requeue_at(Some(at));
        return draft.pending(format!(
            "Pending: {component} partitions the node as a whole, and its last change failed: retried at {at}, or as soon as a profile, \
             pool or tenant changes"
        ));
    }
    if let Some(why) = seen.waits {
        return draft.pending(why);
    }
    let reason = seen.recreate.filter(|_| *target == ctx.present()).unwrap_or(seen.reason);
    // what failed for whatever layout is tried more and more seldom
    let own = ctx.change().filter(|c| c.phase == ChangePhase::Stuck || !is_another(ctx, c, target));
    let failures = own.into_iter().chain(failed_on_node(ctx)).map(|c| c.failures).max().unwrap_or(0);
    let phase = if busy && !seen.policy.notice.is_zero() { ChangePhase::Noticed } else { ChangePhase::Held };
    draft.begin(change(ctx, phase, target.clone(), failures, reason)).event(false, reasons::CHANGE_STARTED, reason);
    draft.always_hold(ctx.absent(target));
    if removed.is_empty() && draft.holds_always_held() {
        return partition::request(ctx, draft, target);
    }
    // without a notice all owners are evicted next
    let next = |d: &Device<'_>| seen.policy.notice.is_zero() && drain::is_next(ctx, d);
    if busy {
        draft.journal(|c| c.evict_after = Some(stamp(evict_after))).requeue_at(Some(evict_after));
        // kubelet, which synchronises a pod whose annotations change, would end an evicted pod up to a second later
        drain::notify(ctx, &mut draft, &removed, evict_after, |d| !next(d));
    }
    draft.hold(removed.iter().filter(|d| !d.owned() || next(d)).map(Device::start));
    draft.done("withdrawing free devices of removed instances")
}

/// Why no change can begin on this GPU now.
fn unsettled(ctx: &ChangeContext<'_>) -> Option<&'static str> {
    if !ctx.fresh {
        return Some("Pending: waiting for the agent to report");
    }
    if !ctx.healthy() {
        return Some("Pending: the GPU is not healthy; reset or replace it");
    }
    let settled =
        matches!(ctx.state.step, AgentStep::Steady | AgentStep::Unmanaged | AgentStep::Failed | AgentStep::LeftAlone);
    (!settled).then_some("Pending: waiting for the agent to finish its present step")
}
