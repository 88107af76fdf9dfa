//! From an idle GPU to a verified layout: new devices stay withdrawn until NVML shows the whole layout, and the change ends when
//! kubelet and the node's allocatable agree.

use gputenancy_crds::{Change, ChangePhase, Layout, reasons};
use gputenancy_plan::plain;

use super::{
    canary,
    context::{ChangeContext, Device},
    draft::Draft,
    failure::{Failure, activity},
    rollback::{fall_back, partition_deadline, progress, stick, timeout},
    types::ChangeDecision,
};

/// Requests the new layout of the GPU, or of the whole node.
pub(super) fn request(ctx: &ChangeContext<'_>, mut draft: Draft<'_>, to: &Layout) -> ChangeDecision {
    if !ctx.observation.others_idle {
        draft.phase(ChangePhase::Idle);
        let shares = || "NVIDIA's device plugin shares".to_owned();
        let component = ctx.whole_node().map_or_else(shares, |name| format!("{name} partitions"));
        return draft.done(format!(
            "idle; {component} the node as a whole: waiting until its other changing GPUs are idle too"
        ));
    }
    draft.layout(to).hold(ctx.added(to)).phase(ChangePhase::Partitioning).requeue_at(partition_deadline(ctx));
    draft.done("the agent is partitioning the GPU")
}

pub(super) fn partitioning(ctx: &ChangeContext<'_>, change: &Change) -> ChangeDecision {
    let mut draft = Draft::of(ctx);
    let timeout = timeout(ctx, change);
    match progress(ctx) {
        Some(Ok(progress)) => return draft.done(progress),
        Some(Err(failure)) => return fall_back(ctx, draft, change, &failure),
        None => {}
    }
    if ctx.reached(&change.to) {
        return canary::begin(ctx, draft, change);
    }
    if let Some(failure) = Failure::of(ctx, timeout, "partition the GPU") {
        return fall_back(ctx, draft, change, &failure);
    }
    draft.requeue_at(timeout);
    draft.done(activity(ctx))
}

pub(super) fn verifying(ctx: &ChangeContext<'_>, change: &Change) -> ChangeDecision {
    let mut draft = Draft::of(ctx);
    draft.hold([]).trial([]);
    let timeout = timeout(ctx, change);
    let missing = if ctx.reached(&change.to) {
        ctx.advertised(&change.to).map_err(|missing| missing.to_string())
    } else {
        Err(activity(ctx))
    };
    let missing = match missing {
        Ok(()) if ctx.spec.is_some_and(|s| s.hold.is_empty() && s.trial.is_empty()) => {
            draft.finish().event(false, reasons::CHANGED, &format!("has its new layout; {}", change.reason));
            return draft.done("");
        }
        Ok(()) => String::from("advertising devices"),
        Err(missing) => missing,
    };
    let Some(failure) = Failure::of(ctx, timeout, "verify the layout") else {
        draft.requeue_at(timeout);
        return draft.done(missing);
    };
    let removed = ctx.removed(&change.from);
    let withdrawn = removed.iter().all(|device| ctx.is_withdrawn(device));
    // what is missing is read before the devices are withdrawn
    let message = if withdrawn && !removed.is_empty() {
        change.reason.clone()
    } else {
        format!("{}; {missing}", failure.message)
    };
    let failure = Failure { message, ..failure };
    let in_use = removed.iter().any(|d| d.owned() || d.state.clients > 0);
    // pods have got new devices already, or there is no other layout to go back to
    if in_use || plain(change.from.clone()) == plain(change.to.clone()) {
        return stick(draft, failure.reason, &failure.message);
    }
    // a pod may get a new device until all are withdrawn
    if !withdrawn {
        draft.hold(removed.iter().map(Device::start)).journal(|c| c.reason.clone_from(&failure.message));
        return draft.done(format!("withdrawing the new devices, to restore the old layout: {}", failure.message));
    }
    fall_back(ctx, draft, change, &failure)
}
