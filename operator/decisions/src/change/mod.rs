//! The change machine: one GPU from one layout to another under running work, without I/O, clock or own state.
//!
//! It derives everything from `GpuNode.spec` (the journal), `GpuNode.status` and the pods. A change drains devices ([`drain`]), waits for
//! the new layout ([`partition`]), verifies it with canary pods ([`canary`]) and ends, or returns to the old layout ([`rollback`]).
//! GPUs without a change in progress, and failed changes, are handled in [`settled`], and GPUs that return after a fault in [`recovery`].

mod admission;
mod canary;
mod context;
mod draft;
mod drain;
mod failure;
mod partition;
mod policy;
mod recovery;
mod rollback;
mod schedule;
mod settled;
mod types;
mod window;

use gputenancy_crds::{AgentStep, ChangePhase, GpuNode, GpuState, Layout};
use gputenancy_plan::has_layout;

pub use admission::{ChangeCandidate, LIMIT_REACHED, admit, admit_node, limit};
use context::ChangeContext;
pub use draft::REASON_LIMIT;
pub use policy::Policy;
pub use settled::waits_to_retry;
pub use types::{
    CanaryOutcome, CanaryPod, CanaryRequest, ChangeDecision, ChangeObservation, ChangeProgress, Eviction,
    EvictionNotice, PodController, PodFacts, Refusal,
};
pub use window::{Window, WindowError, Windows};

/// Whether [`step`] decides nothing for this GPU while its target stays the same and its node is not partitioned as a whole. Most GPUs are
/// at rest, and this is cheaper than to gather what a step is decided from.
pub fn is_at_rest(node: &GpuNode, uuid: &str, target: Option<&Layout>) -> bool {
    let Some(spec) = node.spec.gpus.iter().find(|g| g.uuid == uuid) else { return false };
    let state = node.status.iter().flat_map(|s| &s.gpus).find(|g| g.uuid == uuid);
    let idle = spec.change.is_none() && spec.hold.is_empty() && spec.trial.is_empty();
    let rests = |s: &GpuState| s.step != AgentStep::Failed && !recovery::is_awaited(s);
    idle && state.is_none_or(rests) && target.is_none_or(|t| has_layout(spec, t))
}

/// Decides what to do now for one GPU.
///
/// ```
/// use gputenancy_crds::{GpuNode, Layout};
/// use gputenancy_decisions::{change::{ChangeObservation, Policy, step}, partitioner};
/// # use gputenancy_crds::Partitioner;
///
/// // an idle GPU, and a plan that turns MIG on
/// let node: GpuNode = serde_json::from_str(r#"{
///     "metadata": {"name": "gpu-1", "generation": 1},
///     "spec": {"gpus": [{"uuid": "GPU-1"}]},
///     "status": {
///         "observedGeneration": 1,
///         "gpus": [{"uuid": "GPU-1", "index": 0, "board": 0, "health": "Healthy", "mig": {"enabled": false},
///                   "whole": {"resource": "nvidia.com/gpu", "allocatable": true}}]
///     }
/// }"#)?;
/// let target = Layout { mig: true, ..Layout::default() };
/// # let (allocatable, canaries, pods, policy) = (Default::default(), Default::default(), Default::default(), Policy::default());
/// let decision = step(&ChangeObservation {
///     uuid: "GPU-1",
///     node: &node,
///     target: Some(&target),
///     reason: "team-a needs an instance",
/// #   now: Default::default(),
/// #   allocatable: &allocatable,
/// #   cordoned: None,
/// #   intent: "",
/// #   canaries: &canaries,
/// #   pods: &pods,
/// #   policy: &policy,
/// #   agent_alive: true,
/// #   alive_since: None,
/// #   others_idle: true,
/// #   partitioner: partitioner::of(Partitioner::Agent),
/// #   request: None,
/// #   recreate: None,
/// #   staged: false,
/// #   waits: None,
///     // and what else is observed
/// });
/// let change = decision.spec.and_then(|spec| spec.change).expect("a change begins");
/// assert_eq!((change.to, change.reason.as_str()), (target, "team-a needs an instance"));
/// assert!(decision.evictions.is_empty());
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn step(observation: &ChangeObservation<'_>) -> ChangeDecision {
    let Some(ctx) = ChangeContext::of(observation) else { return ChangeDecision::default() };
    let Some(change) = ctx.change() else { return recovery::step(&ctx).unwrap_or_else(|| settled::steady(&ctx)) };
    // a failed change does not keep its GPU from returning
    let failed = change.phase >= ChangePhase::RolledBack;
    if let Some(decision) = failed.then(|| recovery::step(&ctx)).flatten() {
        return decision;
    }
    match change.phase {
        ChangePhase::Noticed | ChangePhase::Held | ChangePhase::Evicting | ChangePhase::Idle => {
            drain::step(&ctx, change)
        }
        ChangePhase::Partitioning => partition::partitioning(&ctx, change),
        ChangePhase::Canary => canary::step(&ctx, change),
        ChangePhase::Verifying => partition::verifying(&ctx, change),
        ChangePhase::RollingBack => rollback::rolling_back(&ctx, change),
        ChangePhase::RolledBack => settled::rolled_back(&ctx, change),
        ChangePhase::Stuck => settled::stuck(&ctx, change),
    }
}
