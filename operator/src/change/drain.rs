//! From the notice to an idle device: free devices are withdrawn at once, one in use only when its owner is evicted next,
//! because an early hold hides free neighbours from the scheduler. Withdrawn is what the scheduler no longer counts on.

use gputenancy_crds::{Change, ChangePhase, Health, Layout, OnTimeout, UnmanagedPods};
use k8s_openapi::jiff::Timestamp;

use super::{
    carve,
    draft::{Draft, stamp},
    model::{Controller, Decision, Eviction, Notice, PodFacts},
    outcome,
    view::{Device, View},
};
use crate::{
    migmanager::Shape,
    plan::{PodName, plain},
};

pub(super) fn step(view: &View<'_>, change: &Change) -> Decision {
    let seen = view.observation;
    let mut draft = Draft::of(view);
    let mut to = plain(change.to.clone());
    match seen.target.map(|t| plain(t.clone())).filter(|_| may_revise(view, change)) {
        Some(target) if target == plain(change.from.clone()) && !goes_anew(view, change) => {
            draft.finish().event(false, "ChangeCancelled", "the plan wants the present layout again");
            return draft.done("");
        }
        Some(target) if target != to => {
            let reason = seen.reason.to_owned();
            to = target.clone();
            let intent = seen.intent.to_owned();
            draft.journal(|c| (c.to, c.reason, c.intent, c.failures) = (target, reason, intent, 0));
            draft.event(false, "ChangeRevised", seen.reason);
        }
        _ => {}
    }
    let leaving = view.leaving(&to);
    draft.keep_back(view.absent(&to));
    if view.fresh && view.state.health == Health::Lost {
        let outcome::Trouble { name, words, .. } = outcome::lost();
        draft.finish().event(true, name, &words);
        return draft.done("");
    }
    let staying: Vec<PodName> = owners(view, &leaving).map(|(pod, _)| pod).collect();
    if !staying.is_empty() && !seen.policy.window.is_open() {
        return postpone(view, draft, &staying);
    }
    draft.decision.told.extend(staying);
    let deadline = change.evict_after.as_ref().unwrap_or(&change.started_at).0;
    let deadline = deadline.checked_add(seen.policy.drain_timeout).ok();
    if deadline.is_some_and(|at| at <= seen.now) && seen.policy.on_timeout == OnTimeout::Rollback {
        let blockers = waiting_for(view, &leaving);
        let reason = format!("devices did not become free within spec.disruption.drainTimeout: {blockers}");
        return carve::roll_back(view, draft, change, reason);
    }
    draft.wake(deadline);
    if !view.fresh {
        // No eviction on the word of a status that may be old; holds that are asked for stay.
        return draft.done("waiting for the agent to report what it holds");
    }
    if !view.healthy() {
        return draft.done("the GPU is unhealthy: nobody is evicted for it until it is reset");
    }
    let revised = to != plain(change.to.clone());
    let owners: Vec<&PodFacts> = owners(view, &leaving).map(|(_, facts)| facts).collect();
    let told = owners.iter().all(|p| p.noticed) || (change.phase == ChangePhase::Noticed && !revised);
    let evict_after = match &change.evict_after {
        Some(at) if told || seen.policy.notice.is_zero() => Some(at.0),
        at if owners.is_empty() => at.as_ref().map(|at| at.0),
        _ => seen.now.checked_add(seen.policy.notice).ok(),
    };
    draft.journal(|c| c.evict_after = evict_after.map(stamp));
    match evict_after {
        Some(at) if at > seen.now && !owners.is_empty() => noticed(view, draft, &leaving, at),
        _ => withdraw(view, draft, change, &leaving, &to),
    }
}

/// May another plan replace this change? Once owners are being evicted only what people have written can: that a pod has left
/// makes other plans look better, and following them would undo what it has left for.
fn may_revise(view: &View<'_>, change: &Change) -> bool {
    change.phase < ChangePhase::Evicting || change.intent != view.observation.intent
}

/// The layout stays and is carved anew, because NVIDIA's MIG manager cannot do without.
fn goes_anew(view: &View<'_>, change: &Change) -> bool {
    let gone = Shape::of(&change.to) != Shape::seen(view.state);
    change.from == change.to && view.observation.managed.as_ref().is_some_and(|m| m.anew.is_some() || gone)
}

/// Pods that have to leave and have not begun to.
fn owners<'v>(view: &'v View<'_>, leaving: &'v [Device<'_>]) -> impl Iterator<Item = (PodName, &'v PodFacts)> {
    let facts = leaving.iter().filter_map(|d| view.owner(d)).filter_map(|(pod, facts)| Some((pod, facts?)));
    facts.filter(|(_, facts)| !facts.terminating)
}

/// The window has closed and pods would still have to be evicted: they stay, and the change begins anew in the next window.
fn postpone(view: &View<'_>, mut draft: Draft<'_>, staying: &[PodName]) -> Decision {
    let next = view.observation.policy.window.next();
    let who: Vec<String> = staying.iter().map(ToString::to_string).collect();
    let when = next.map_or_else(|| "no other one comes".to_owned(), |at| format!("the next one opens at {at}"));
    let message = format!("the window has closed and pods {} are still there; {when}", who.join(", "));
    draft.finish().event(true, "ChangePostponed", &message).wake(next);
    draft.decision.pending = next.map(|at| format!("Pending: nextWindow={at}"));
    draft.done("")
}

fn noticed(view: &View<'_>, mut draft: Draft<'_>, leaving: &[Device<'_>], at: Timestamp) -> Decision {
    let going = |d: &Device<'_>| view.owner(d).is_none_or(|(_, facts)| facts.is_none_or(|f| f.terminating));
    draft.phase(ChangePhase::Noticed).hold(leaving.iter().filter(|d| going(d)).map(|d| d.start)).wake(Some(at));
    notify(view, &mut draft, leaving, at, |_| true);
    draft.done(format!("owners have been told; they are evicted from {at} on"))
}

/// Tells owners that do not know yet, those of the devices that are `meant`.
pub(super) fn notify(
    view: &View<'_>,
    draft: &mut Draft<'_>,
    leaving: &[Device<'_>],
    at: Timestamp,
    meant: impl Fn(&Device<'_>) -> bool,
) {
    let why = draft.reason();
    for device in leaving {
        let Some((pod, Some(facts))) = view.owner(device) else { continue };
        if facts.terminating {
            continue;
        }
        draft.decision.told.insert(pod.clone());
        if !facts.noticed && meant(device) {
            let (reason, resource) = (why.clone(), device.resource.clone());
            let (uid, elsewhere) = (facts.uid.clone(), String::new());
            draft.decision.notices.insert(Notice { pod, uid, deadline: at, reason, resource, elsewhere });
        }
    }
}

/// The notice is over: evict owners; when none is left, wait for NVML's word.
fn withdraw(view: &View<'_>, mut draft: Draft<'_>, change: &Change, leaving: &[Device<'_>], to: &Layout) -> Decision {
    let free = leaving.iter().filter(|d| !d.owned());
    if change.phase <= ChangePhase::Held {
        draft.phase(ChangePhase::Held);
    }
    // whoever replaces an evicted pod is placed by the scheduler: when that counts on nothing that goes, kubelet may learn it while
    // the owners use their grace
    let owned = leaving.iter().any(Device::owned);
    let closed = |d: &Device<'_>| held(view, d) || (owned && view.uncounted(d));
    if free.clone().any(|d| !closed(d)) || !draft.keeps_back() {
        let asked = |d: &Device<'_>| view.spec.is_some_and(|s| s.hold.contains(&d.start));
        draft.hold(leaving.iter().filter(|d| !d.owned() || asked(d) || is_next(view, d)).map(|d| d.start));
        return draft.done("withdrawing free devices that must go");
    }
    if owned {
        return evict(view, draft, change, leaving);
    }
    draft.phase(ChangePhase::Idle).hold(leaving.iter().map(|d| d.start));
    if leaving.iter().all(|d| d.state.clients == 0 && view.holders(d).is_empty()) {
        return carve::partition(view, draft, to);
    }
    let blockers = waiting_for(view, leaving);
    draft.done(blockers)
}

/// The hold is asked for, the agent has seen it, and nobody new can get the device any more.
fn held(view: &View<'_>, device: &Device<'_>) -> bool {
    let withdrawn = view.observation.closed.unwrap_or(!device.state.allocatable);
    view.fresh && withdrawn && view.spec.is_some_and(|s| s.hold.contains(&device.start))
}

fn evict(view: &View<'_>, mut draft: Draft<'_>, change: &Change, leaving: &[Device<'_>]) -> Decision {
    let seen = view.observation;
    if seen.policy.notice.is_zero() {
        let at = change.evict_after.as_ref().map_or(seen.now, |at| at.0);
        notify(view, &mut draft, leaving, at, |_| true);
    }
    let mut hold: Vec<i32> = leaving.iter().filter(|d| !d.owned()).map(|d| d.start).collect();
    for device in leaving.iter().filter(|d| d.owned()) {
        let Some((pod, facts)) = view.owner(device) else { continue };
        let Some(facts) = facts.filter(|f| !f.terminating) else {
            hold.push(device.start);
            continue;
        };
        if blocked(view, facts).is_some() {
            continue;
        }
        let due = match &facts.refused {
            None => {
                hold.push(device.start);
                held(view, device) || view.uncounted(device)
            }
            Some(refusal) => {
                let again = refusal.at.checked_add(seen.policy.eviction_retry).unwrap_or(seen.now);
                draft.wake(Some(again));
                again <= seen.now
            }
        };
        if due {
            let reason = format!("{} at {} of {} goes: {}", device.name(), device.start, view.title(), draft.reason());
            draft.decision.evictions.insert(Eviction { pod, uid: facts.uid.clone(), reason });
        }
    }
    draft.phase(ChangePhase::Evicting).hold(hold);
    let blockers = waiting_for(view, leaving);
    draft.done(blockers)
}

/// Will the owner be evicted as soon as the device is withdrawn? Not one that is waited for, nor one that a budget keeps.
pub(super) fn is_next(view: &View<'_>, device: &Device<'_>) -> bool {
    let goes = |facts: &PodFacts| facts.terminating || (blocked(view, facts).is_none() && facts.refused.is_none());
    view.owner(device).is_some_and(|(_, facts)| facts.is_none_or(goes))
}

/// Why a pod is waited for and not evicted.
fn blocked(view: &View<'_>, pod: &PodFacts) -> Option<&'static str> {
    if pod.do_not_evict {
        return Some("it is annotated gputenancy.io/do-not-evict: delete it or remove the annotation");
    }
    match pod.controller {
        Controller::None if view.observation.policy.unmanaged_pods == UnmanagedPods::Wait => {
            Some("no controller would replace it: delete it when it can go")
        }
        Controller::DaemonSet => Some("its DaemonSet would put it back: change the DaemonSet"),
        Controller::Static => Some("it is a static pod: remove its manifest from the node"),
        Controller::None | Controller::Replaces => None,
    }
}

/// Names every pod and process that is waited for.
fn waiting_for(view: &View<'_>, leaving: &[Device<'_>]) -> String {
    let mut sentences = Vec::new();
    for device in leaving {
        let place = format!("{} at {}", device.name(), device.start);
        if let Some((pod, facts)) = view.owner(device) {
            sentences.push(owner_sentence(view, &pod, facts, &place));
            continue;
        }
        let holders = view.holders(device);
        for holder in &holders {
            sentences.push(format!("{holder} uses {place} and {}", holder.uninvited()));
        }
        if holders.is_empty() && device.state.clients > 0 {
            sentences.push(format!("{} processes still use {place}", device.state.clients));
        }
    }
    sentences.sort();
    sentences.dedup();
    if sentences.is_empty() { "waiting for the agent".to_owned() } else { sentences.join("; ") }
}

fn owner_sentence(view: &View<'_>, pod: &PodName, facts: Option<&PodFacts>, place: &str) -> String {
    let Some(facts) = facts else { return format!("pod {pod} is gone, kubelet has yet to give {place} back") };
    if facts.terminating {
        return format!("pod {pod} on {place} is terminating");
    }
    match (blocked(view, facts), &facts.refused) {
        (Some(why), _) => format!("pod {pod} on {place} is waited for, {why}"),
        (None, Some(refusal)) => format!("pod {pod} on {place} may not be evicted yet: {}", refusal.message),
        (None, None) => format!("pod {pod} on {place} is being evicted"),
    }
}
