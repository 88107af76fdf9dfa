//! Back to the old layout after a failure, or `Stuck` when neither layout is reachable.

use gputenancy_crds::{
    Change, ChangePhase, Health, Layout,
    reasons::{self, Reason},
};
use gputenancy_plan::plain;
use k8s_openapi::jiff::Timestamp;

use super::{
    context::ChangeContext,
    draft::Draft,
    failure::{Failure, activity},
    types::ChangeDecision,
};
use crate::partitioner::RequestState;

pub(super) fn rolling_back(ctx: &ChangeContext<'_>, change: &Change) -> ChangeDecision {
    let mut draft = Draft::of(ctx);
    let timeout = timeout(ctx, change);
    match progress(ctx) {
        Some(Ok(progress)) => return draft.done(format!("restoring the old layout: {progress}")),
        Some(Err(failure)) => return stick(draft, failure.reason, &both(&change.reason, &failure.message)),
        None => {}
    }
    if ctx.reached(&change.from) {
        if ctx.spec.is_some_and(|s| !s.hold.is_empty()) {
            draft.hold([]).requeue_at(timeout);
            return draft.done("NVML shows the old layout; advertising its devices again");
        }
        if ctx.advertised(&change.from).is_ok() {
            draft.event(true, reasons::ROLLED_BACK, &change.reason);
            if change.from == change.to {
                // no other layout has failed
                draft.finish();
                return draft.done("");
            }
            draft.phase(ChangePhase::RolledBack);
            draft.requeue_at(ctx.observation.now.checked_add(ctx.observation.policy.retry_after).ok());
            return draft.done(&change.reason);
        }
    }
    if let Some(failure) = Failure::of(ctx, timeout, "restore the old layout") {
        return stick(draft, failure.reason, &both(&change.reason, &failure.message));
    }
    draft.requeue_at(timeout);
    draft.done(format!("restoring the old layout: {}", activity(ctx)))
}

/// The new layout failed: back to the old one, unless the GPU cannot be partitioned at all.
pub(super) fn fall_back(
    ctx: &ChangeContext<'_>,
    mut draft: Draft<'_>,
    change: &Change,
    failure: &Failure,
) -> ChangeDecision {
    if failure.fatal {
        return stick(draft, failure.reason, &failure.message);
    }
    draft.event(true, failure.reason, &failure.message);
    roll_back(ctx, draft, change, &failure.message)
}

/// Requests the old layout. Devices that still exist are advertised again at once.
pub(super) fn roll_back(
    ctx: &ChangeContext<'_>,
    mut draft: Draft<'_>,
    change: &Change,
    reason: &str,
) -> ChangeDecision {
    let from = plain(change.from.clone());
    // a node as a whole may be partitioned at any time after a request
    let requested = ctx.observation.request.is_some() && change.phase >= ChangePhase::Partitioning;
    let hold = if requested { from.starts() } else { ctx.added(&from) };
    draft
        .layout(&from)
        .hold(hold)
        .phase(ChangePhase::RollingBack)
        .event(true, reasons::ROLLING_BACK, reason)
        .fail(reason);
    draft.requeue_at(partition_deadline(ctx));
    draft.done(reason)
}

/// Neither layout is reachable for now.
pub(super) fn stick(mut draft: Draft<'_>, event: Reason, reason: &str) -> ChangeDecision {
    draft.phase(ChangePhase::Stuck).event(true, event, reason).event(true, reasons::STUCK, reason).fail(reason);
    draft.done(reason)
}

/// Both failures; a repeated one is not repeated.
fn both(first: &str, then: &str) -> String {
    if first != then && first.contains(then) { first.to_owned() } else { format!("{first}; then {then}") }
}

/// Progress of the request for the whole node unless it is done, or its failure.
pub(super) fn progress(ctx: &ChangeContext<'_>) -> Option<Result<String, Failure>> {
    let request = ctx.observation.request?;
    if ctx.fresh && ctx.state.health == Health::Lost {
        return Some(Err(Failure::lost()));
    }
    match request {
        RequestState::Done => None,
        RequestState::InProgress(message) => Some(Ok(message.clone())),
        RequestState::Failed { reason, message } => {
            Some(Err(Failure { reason: *reason, message: message.clone(), fatal: false }))
        }
    }
}

/// End of the present phase; `None` while a request for the whole node is open, which has timeouts of its own.
pub(super) fn timeout(ctx: &ChangeContext<'_>, change: &Change) -> Option<Timestamp> {
    if ctx.observation.request.is_some() && change.phase != ChangePhase::Verifying {
        return None;
    }
    ctx.counted_from(change.phase_since.0).checked_add(ctx.observation.policy.partition_timeout).ok()
}

/// When a phase that begins now times out.
pub(super) fn partition_deadline(ctx: &ChangeContext<'_>) -> Option<Timestamp> {
    ctx.observation.now.checked_add(ctx.observation.policy.partition_timeout).ok()
}

/// The target of a step, without what the default resource implies.
pub(super) fn plain_target(ctx: &ChangeContext<'_>) -> Option<Layout> {
    ctx.observation.target.map(|t| plain(t.clone()))
}
