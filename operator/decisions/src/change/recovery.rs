//! GPUs that may return after a fault: the agent awaits a canary pod, which gets a free device before anybody else. Its outcome is written into
//! the spec as a verdict on the fault; the agent carries it out.

use gputenancy_crds::{FaultFinding, FaultVerdict, GpuState, RecoveryState, names, reasons};

use super::{
    canary::{CanaryDevice, drive, limit},
    context::{ChangeContext, Device},
    draft::Draft,
    types::{CanaryOutcome, ChangeDecision},
};
use crate::fingerprint::fingerprint;

/// Most characters of a verdict's reason.
const LONGEST_REASON: usize = 1024;

/// The agent awaits a canary pod on this GPU.
pub(super) fn is_awaited(state: &GpuState) -> bool {
    state.recovery.as_ref().is_some_and(|recovery| recovery.state == RecoveryState::AwaitingCanary)
}

/// Decides about a GPU without a change in progress; `None`: nothing to do, because no canary is awaited, or the pool has none.
pub(super) fn step(ctx: &ChangeContext<'_>) -> Option<ChangeDecision> {
    let fault = ctx.state.recovery.as_ref().filter(|_| is_awaited(ctx.state))?.latest()?;
    let (rules, spec) = (ctx.observation.policy.canary.as_ref()?, ctx.spec?);
    if spec.fault_verdict.as_ref().is_some_and(|verdict| verdict.covers(fault)) {
        return None;
    }
    // a device on trial may have the canary pod as its owner
    let devices = ctx.devices();
    let tried = devices.iter().find(|d| spec.trial.contains(&d.start()));
    let chosen = tried.or_else(|| devices.iter().find(|d| is_free(d)))?;
    let start = chosen.start();
    let node = ctx.observation.node.metadata.name.as_deref().unwrap_or_default();
    let pod = format!("gputenancy-canary-{}", fingerprint(&(node, &ctx.state.uuid, fault.0.as_second(), start)));
    let resource = names::canary_resource(ctx.state.index, start);
    let device = CanaryDevice { place: chosen.place, profile: chosen.profile, pod, resource };
    let mut draft = Draft::of(ctx);
    draft.decision.kept_canaries.insert(device.pod.clone());
    // nothing begins on a node that others have marked, or whose agent does not report
    if !ctx.fresh {
        return Some(draft.done(""));
    }
    let others: Vec<i32> = spec.trial.iter().copied().filter(|s| *s != start).collect();
    draft.trial(others.iter().copied().chain([start]));
    if !draft.is_written() {
        return Some(draft.done(""));
    }
    let on = format!("canary pod {} on {}", device.pod, device.place);
    let verdict = |finding, reason: String| FaultVerdict {
        until: fault.clone(),
        finding,
        reason: reason.chars().take(LONGEST_REASON).collect(),
    };
    match device.outcome(ctx) {
        Some(CanaryOutcome::Passed) => {
            let reason = format!("the driver asks for nothing, and {on} has passed");
            draft.event(false, reasons::CANARY_PASSED, &reason);
            draft.trial(others).verdict(verdict(FaultFinding::CanaryPassed, reason)).decision.kept_canaries.clear();
        }
        Some(CanaryOutcome::Failed(why)) => {
            let reason = format!("{on} has failed: {why}");
            draft.event(true, reasons::CANARY_FAILED, &format!("{reason}; the GPU stays out: reset or replace it"));
            draft.trial(others).verdict(verdict(FaultFinding::CanaryFailed, reason)).decision.kept_canaries.clear();
        }
        outcome => {
            let waits = matches!(outcome, Some(CanaryOutcome::Pending(_) | CanaryOutcome::Inconclusive(_)));
            // no time limit ends this: one pod each time
            let text = drive(ctx, &mut draft, (rules, limit(rules)), &device).filter(|_| waits);
            let why = ctx.state.fault.as_deref().unwrap_or("a fault");
            draft.decision.pending = text.map(|text| format!("Pending: after {why} {text}"));
        }
    }
    Some(draft.done(""))
}

/// No pod or process has the device.
fn is_free(device: &Device<'_>) -> bool {
    let state = device.state;
    !device.owned() && state.clients == 0 && state.former_owner.is_none() && state.unexplained_memory.is_none()
}
