//! From the notice to an idle device: free devices are withdrawn at once, one in use only right before its owner is evicted, because
//! an early hold hides free neighbours from the scheduler. A device is withdrawn when the scheduler no longer counts it.

use std::{borrow::Cow, collections::BTreeSet};

use gputenancy_crds::{
    Change, ChangePhase, DoNotEvict, Health, Layout, OnTimeout, UnmanagedPods, ids::PodName, reasons, words::counted,
};
use gputenancy_plan::plain;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    context::{ChangeContext, Device},
    draft::Draft,
    failure::Failure,
    partition,
    rollback::{plain_target, roll_back},
    types::{ChangeDecision, Eviction, EvictionNotice, PodController, PodFacts},
};
use crate::duration::stamp;

/// Most pods and processes that a message names, and most processes of a device: an agent reports them without limit.
const MOST_NAMED: usize = 16;
/// Longest message about what holds up a change, in characters.
const LONGEST_MESSAGE: usize = 4096;
/// A notice that ended so long ago, with no eviction begun, ended while operator or agent was away.
const STALL: SignedDuration = SignedDuration::from_mins(1);

pub(super) fn step(ctx: &ChangeContext<'_>, change: &Change) -> ChangeDecision {
    let (now, policy) = (ctx.observation.now, ctx.observation.policy);
    let mut draft = Draft::of(ctx);
    let mut to = plain(change.to.clone());
    // a target that the stage of a rollout forbids counts as the present layout: the change is cancelled, and another one begins when the
    // stage permits it
    let target = if ctx.observation.staged { Some(plain(change.from.clone())) } else { plain_target(ctx) };
    match target.filter(|_| may_revise(ctx, change)) {
        Some(target) if target == plain(change.from.clone()) && !is_recreation(ctx, change) => {
            draft.finish().event(false, reasons::CHANGE_CANCELLED, "the plan wants the present layout again");
            return draft.done("");
        }
        Some(target) if target != to && notice_fits(ctx, change, &target) => {
            to = target.clone();
            let (reason, intent) = (ctx.observation.reason.to_owned(), ctx.observation.intent.to_owned());
            draft.journal(|c| (c.to, c.reason, c.intent, c.failures) = (target, reason, intent, 0));
            draft.event(false, reasons::CHANGE_REVISED, ctx.observation.reason);
        }
        _ => {}
    }
    let removed = ctx.removed(&to);
    draft.always_hold(ctx.absent(&to));
    if ctx.fresh && ctx.state.health == Health::Lost {
        let Failure { reason, message, .. } = Failure::lost();
        draft.finish().event(true, reason, &message);
        return draft.done("");
    }
    let owners: Vec<(PodName, &PodFacts)> = owners(ctx, &removed).collect();
    let names: Vec<PodName> = owners.iter().map(|(pod, _)| pod.clone()).collect();
    if !names.is_empty() && !policy.window.is_open() {
        return postpone(ctx, draft, &names);
    }
    draft.decision.notified.extend(names);
    let revised = to != plain(change.to.clone());
    let evict_after = evictions_begin(ctx, change, &owners, revised);
    let began = change.evict_after.as_ref().map(|at| at.0);
    let began = if revised || is_stalled(ctx, change) { evict_after } else { began };
    if revised && change.evict_after.is_some() {
        draft.journal(|c| c.evict_after = evict_after.map(stamp));
    }
    if !ctx.observation.agent_alive {
        return draft.done("waiting for the agent to report");
    }
    let deadline = ctx.counted_from(began.unwrap_or(change.started_at.0));
    let deadline = deadline.checked_add(policy.drain_timeout).ok();
    if deadline.is_some_and(|at| at <= now) && policy.on_timeout == OnTimeout::Rollback {
        let blockers = blockers(ctx, &removed);
        let reason = format!("devices did not become free within spec.disruption.drainTimeout: {blockers}");
        return roll_back(ctx, draft, change, &reason);
    }
    draft.requeue_at(deadline);
    if !ctx.fresh {
        // no eviction on a status that may be outdated; requested holds stay
        return draft.done("waiting for the agent to report the device owners");
    }
    if !ctx.healthy() {
        return draft.done("the GPU is unhealthy: no pod is evicted before it is reset");
    }
    draft.journal(|c| c.evict_after = evict_after.map(stamp));
    match evict_after {
        Some(at) if at > now && !owners.is_empty() => notice(ctx, draft, &removed, at),
        _ => withdraw(ctx, draft, change, &removed, &to),
    }
}

/// When evictions begin. It follows from the journal and from what kubelet reports, never from a pod's annotations, which the pod's
/// owner may write. The time moves for a pod that began to run after the notice, and for one that only the revised target evicts;
/// `latest` bounds both, so that a series of new pods cannot postpone the evictions without end. After a stall it moves once more, for
/// pods whose notice was not written.
fn evictions_begin(
    ctx: &ChangeContext<'_>,
    change: &Change,
    owners: &[(PodName, &PodFacts)],
    revised: bool,
) -> Option<Timestamp> {
    let (now, notice) = (ctx.observation.now, ctx.observation.policy.notice);
    let Some(at) = change.evict_after.as_ref().map(|at| at.0) else {
        return if owners.is_empty() { None } else { now.checked_add(notice).ok() };
    };
    let (stalled, before) = (is_stalled(ctx, change), if revised { notified(ctx, change) } else { BTreeSet::new() });
    let notice_ends = |(pod, facts): &(PodName, &PodFacts)| {
        let unnoticed = revised && !before.contains(pod) || stalled && !facts.noticed;
        let since = if unnoticed { Some(now) } else { facts.started };
        since?.checked_add(notice).ok()
    };
    let latest = latest(ctx, change, revised);
    let latest = if stalled { latest.max(now.checked_add(notice).unwrap_or(Timestamp::MAX)) } else { latest };
    let longest = owners.iter().filter_map(notice_ends).max();
    Some(longest.map_or(at, |end| at.max(end.min(latest))))
}

/// Evictions begin at the latest then, unless the change has stalled.
fn latest(ctx: &ChangeContext<'_>, change: &Change, revised: bool) -> Timestamp {
    let (now, notice) = (ctx.observation.now, ctx.observation.policy.notice);
    // an edit of profiles, pools or tenants is the platform's: its owners get the notice in full
    let counts_from = if revised && change.intent != ctx.observation.intent { now } else { change.started_at.0 };
    ctx.counted_from(counts_from).checked_add(notice * 2).unwrap_or(Timestamp::MAX)
}

/// The notice ended while operator or agent was away: it may not have been written, and pods may have joined since.
fn is_stalled(ctx: &ChangeContext<'_>, change: &Change) -> bool {
    let notified = ctx.fresh && change.phase == ChangePhase::Noticed && !ctx.observation.policy.notice.is_zero();
    let noticed = change.evict_after.as_ref().filter(|_| notified);
    noticed.and_then(|at| at.0.checked_add(STALL).ok()).is_some_and(|late| late <= ctx.observation.now)
}

/// Pods that the change evicts as it is.
fn notified(ctx: &ChangeContext<'_>, change: &Change) -> BTreeSet<PodName> {
    let removed = ctx.removed(&plain(change.to.clone()));
    removed.iter().filter_map(|d| ctx.owner(d)).map(|(pod, _)| pod).collect()
}

/// Every pod that only the revised target evicts gets its notice in full. Where that would be too late the change goes on as it is.
fn notice_fits(ctx: &ChangeContext<'_>, change: &Change, target: &Layout) -> bool {
    if change.evict_after.is_none() || ctx.observation.policy.notice.is_zero() || is_stalled(ctx, change) {
        return true;
    }
    let (removed, before) = (ctx.removed(target), notified(ctx, change));
    let ends = ctx.observation.now.checked_add(ctx.observation.policy.notice).unwrap_or(Timestamp::MAX);
    ends <= latest(ctx, change, true) || owners(ctx, &removed).all(|(pod, _)| before.contains(&pod))
}

/// Once owners are being evicted only an edit of profiles, pools or tenants may replace the change: the evictions themselves make
/// other plans look better, and following those would undo what the pods were evicted for.
fn may_revise(ctx: &ChangeContext<'_>, change: &Change) -> bool {
    change.phase < ChangePhase::Evicting || change.intent != ctx.observation.intent
}

/// The same layout is recreated.
fn is_recreation(ctx: &ChangeContext<'_>, change: &Change) -> bool {
    let differs = ctx.observation.partitioner.recreates(ctx.state, &change.to);
    change.from == change.to && (ctx.observation.recreate.is_some() || differs)
}

/// Pods to evict that are not terminating yet.
fn owners<'c>(ctx: &'c ChangeContext<'_>, removed: &'c [Device<'_>]) -> impl Iterator<Item = (PodName, &'c PodFacts)> {
    let owners = removed.iter().filter_map(|d| ctx.owner(d)).filter_map(|(pod, facts)| Some((pod, facts?)));
    owners.filter(|(_, facts)| !facts.terminating)
}

/// The window has closed before all owners were evicted: they stay, and the change begins again in the next window.
fn postpone(ctx: &ChangeContext<'_>, mut draft: Draft<'_>, staying: &[PodName]) -> ChangeDecision {
    let next = ctx.observation.policy.window.next();
    let pods: Vec<String> = staying.iter().map(ToString::to_string).collect();
    let when = next.map_or_else(|| "there is no next one".to_owned(), |at| format!("the next one opens at {at}"));
    let message = format!("the window has closed and pods {} have not left; {when}", pods.join(", "));
    draft.finish().event(true, reasons::CHANGE_POSTPONED, &message).requeue_at(next);
    draft.decision.pending = next.map(|at| format!("Pending: nextWindow={at}"));
    draft.done("")
}

fn notice(ctx: &ChangeContext<'_>, mut draft: Draft<'_>, removed: &[Device<'_>], at: Timestamp) -> ChangeDecision {
    let leaving = |d: &&Device<'_>| ctx.owner(d).is_none_or(|(_, facts)| facts.is_none_or(|f| f.terminating));
    draft.phase(ChangePhase::Noticed).hold(removed.iter().filter(leaving).map(Device::start)).requeue_at(Some(at));
    notify(ctx, &mut draft, removed, at, |_| true);
    draft.done(format!("owners have been notified; evictions begin at {at}"))
}

/// Notifies owners that carry no notice yet, for devices that `selected` accepts.
pub(super) fn notify(
    ctx: &ChangeContext<'_>,
    draft: &mut Draft<'_>,
    removed: &[Device<'_>],
    deadline: Timestamp,
    selected: impl Fn(&Device<'_>) -> bool,
) {
    let reason = draft.reason_for_owner();
    for device in removed {
        let Some((pod, Some(facts))) = ctx.owner(device).filter(|(_, f)| f.is_some_and(|f| !f.terminating)) else {
            continue;
        };
        draft.decision.notified.insert(pod.clone());
        if !facts.noticed && selected(device) {
            let (reason, resource, uid) = (reason.clone(), device.resource.clone(), facts.uid.clone());
            let notice = EvictionNotice { pod, uid, deadline, reason, resource, elsewhere: String::new() };
            draft.decision.notices.insert(notice);
        }
    }
}

/// The notice is over: withdraw free devices, evict owners, and wait until NVML shows no client.
fn withdraw(
    ctx: &ChangeContext<'_>,
    mut draft: Draft<'_>,
    change: &Change,
    removed: &[Device<'_>],
    to: &Layout,
) -> ChangeDecision {
    if change.phase <= ChangePhase::Held {
        draft.phase(ChangePhase::Held);
    }
    // while owners use their grace period it is enough that the scheduler counts no removed device; kubelet may follow later
    let owned = removed.iter().any(Device::owned);
    let closed = |d: &Device<'_>| ctx.is_withdrawn(d) || (owned && ctx.is_uncounted(d));
    if removed.iter().any(|d| !d.owned() && !closed(d)) || !draft.holds_always_held() {
        let requested = |d: &Device<'_>| ctx.spec.is_some_and(|s| s.hold.contains(&d.start()));
        draft.hold(removed.iter().filter(|d| !d.owned() || requested(d) || is_next(ctx, d)).map(Device::start));
        return draft.done("withdrawing free devices of removed instances");
    }
    if owned {
        return evict(ctx, draft, change, removed);
    }
    draft.phase(ChangePhase::Idle).hold(removed.iter().map(Device::start));
    if removed.iter().all(|d| d.state.clients == 0 && ctx.holders(d).is_empty()) {
        return partition::request(ctx, draft, to);
    }
    draft.done(blockers(ctx, removed))
}

fn evict(ctx: &ChangeContext<'_>, mut draft: Draft<'_>, change: &Change, removed: &[Device<'_>]) -> ChangeDecision {
    let (now, policy) = (ctx.observation.now, ctx.observation.policy);
    if policy.notice.is_zero() {
        let at = change.evict_after.as_ref().map_or(now, |at| at.0);
        notify(ctx, &mut draft, removed, at, |_| true);
    }
    let mut hold: Vec<i32> = removed.iter().filter(|d| !d.owned()).map(Device::start).collect();
    for device in removed {
        let Some((pod, facts)) = ctx.owner(device) else { continue };
        let Some(facts) = facts.filter(|f| !f.terminating) else {
            hold.push(device.start());
            continue;
        };
        if blocked(ctx, facts).is_some() {
            // the annotation ends, and nothing else would wake the change then
            draft.requeue_at(protected_until(ctx, facts));
            continue;
        }
        let due = match &facts.refused {
            None => {
                hold.push(device.start());
                ctx.is_withdrawn(device) || ctx.is_uncounted(device)
            }
            Some(refusal) => {
                let again = refusal.at.checked_add(policy.eviction_retry).unwrap_or(now);
                draft.requeue_at(Some(again));
                again <= now
            }
        };
        if due {
            let mut reason = format!("{} of {} is removed: {}", device.place(), ctx.title(), draft.reason_for_owner());
            if facts.do_not_evict && policy.do_not_evict == DoNotEvict::Honor {
                reason.push_str("; the annotation gputenancy.io/do-not-evict held until ");
                reason.push_str(&protection_end(ctx, facts).to_string());
                reason.push_str(", spec.disruption.doNotEvictFor of the GpuPool after the pod's creation");
            }
            draft.decision.evictions.insert(Eviction { pod, uid: facts.uid.clone(), reason });
        }
    }
    draft.phase(ChangePhase::Evicting).hold(hold);
    draft.done(blockers(ctx, removed))
}

/// The owner is evicted as soon as the device is withdrawn: neither an annotation nor a disruption budget prevents it.
pub(super) fn is_next(ctx: &ChangeContext<'_>, device: &Device<'_>) -> bool {
    let leaves = |facts: &PodFacts| facts.terminating || (blocked(ctx, facts).is_none() && facts.refused.is_none());
    ctx.owner(device).is_some_and(|(_, facts)| facts.is_none_or(leaves))
}

/// Why a pod is not evicted, with the remedy.
fn blocked(ctx: &ChangeContext<'_>, pod: &PodFacts) -> Option<Cow<'static, str>> {
    if let Some(until) = protected_until(ctx, pod) {
        return Some(Cow::Owned(format!(
            "it is annotated gputenancy.io/do-not-evict, which holds until {until}: delete it or remove the annotation, or write a shorter doNotEvictFor, or doNotEvict: Ignore, in spec.disruption of the GpuPool"
        )));
    }
    match pod.controller {
        PodController::None if ctx.observation.policy.unmanaged_pods == UnmanagedPods::Wait => {
            Some("no controller would replace it: delete it when it can be spared".into())
        }
        PodController::DaemonSet => Some("its DaemonSet would recreate it here: change the DaemonSet".into()),
        PodController::Static => Some("it is a static pod: remove its manifest from the node".into()),
        PodController::None | PodController::Replaces => None,
    }
}

/// When the annotation of a pod ends that keeps it from eviction now; `None`: no annotation keeps it.
fn protected_until(ctx: &ChangeContext<'_>, pod: &PodFacts) -> Option<Timestamp> {
    let honored = pod.do_not_evict && ctx.observation.policy.do_not_evict == DoNotEvict::Honor;
    honored.then(|| protection_end(ctx, pod)).filter(|end| *end > ctx.observation.now)
}

/// When the annotation of a pod ends. A pod whose creation is not known counts as new.
fn protection_end(ctx: &ChangeContext<'_>, pod: &PodFacts) -> Timestamp {
    let (now, length) = (ctx.observation.now, ctx.observation.policy.do_not_evict_for);
    pod.created.unwrap_or(now).checked_add(length).unwrap_or(Timestamp::MAX)
}

/// Every pod and process that the change waits for.
fn blockers(ctx: &ChangeContext<'_>, removed: &[Device<'_>]) -> String {
    let mut blockers = Vec::new();
    for device in removed {
        let place = device.place();
        if let Some((pod, facts)) = ctx.owner(device) {
            blockers.push(owner_state(ctx, &pod, facts, &place));
            continue;
        }
        let holders = ctx.holders(device);
        blockers.extend(
            holders.iter().take(MOST_NAMED).map(|holder| format!("{holder} uses {place} and {}", holder.remedy())),
        );
        if holders.is_empty() && device.state.clients > 0 {
            blockers.push(format!("{} still on {place}", counted(device.state.clients, "process")));
        }
    }
    blockers.sort();
    blockers.dedup();
    if blockers.is_empty() {
        return "waiting for the agent".to_owned();
    }
    let more = blockers.len().saturating_sub(MOST_NAMED);
    blockers.truncate(MOST_NAMED);
    if more > 0 {
        blockers.push(format!("and {more} more"));
    }
    blockers.join("; ").chars().take(LONGEST_MESSAGE).collect()
}

fn owner_state(ctx: &ChangeContext<'_>, pod: &PodName, facts: Option<&PodFacts>, place: &str) -> String {
    let Some(facts) = facts else { return format!("pod {pod} is deleted; waiting for kubelet to free {place}") };
    if facts.terminating {
        return format!("pod {pod} on {place} is terminating");
    }
    match (blocked(ctx, facts), &facts.refused) {
        (Some(why), _) => format!("pod {pod} on {place} is not evicted, {why}"),
        (None, Some(refusal)) => format!("pod {pod} on {place} may not be evicted yet: {}", refusal.message),
        (None, None) => format!("pod {pod} on {place} is being evicted"),
    }
}
