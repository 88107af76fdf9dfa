//! From an idle device to a verified layout, or back: new devices stay withdrawn until NVML shows the whole layout, and the
//! change ends when kubelet and the node's allocatable agree.

use gputenancy_crds::{Change, ChangePhase, Health, Layout};
use k8s_openapi::jiff::Timestamp;

use super::{
    canary,
    draft::Draft,
    model::Decision,
    outcome::{Trouble, doing, lost, trouble},
    view::{View, starts},
};
use crate::{migmanager::Word, plan::plain};

/// Asks for the new layout: the agent, or all at once for the whole node NVIDIA's MIG manager.
pub(super) fn partition(view: &View<'_>, mut draft: Draft<'_>, to: &Layout) -> Decision {
    if view.observation.managed.as_ref().is_some_and(|m| !m.together) {
        draft.phase(ChangePhase::Idle);
        return draft
            .done("idle; the node is carved as a whole, so it waits until the other GPUs that change are idle too");
    }
    draft.layout(to).hold(view.arriving(to)).phase(ChangePhase::Partitioning);
    let timeout = view.observation.now.checked_add(view.observation.policy.carve_timeout).ok();
    draft.wake(timeout);
    draft.done("the agent is carving")
}

/// What NVIDIA's MIG manager says about it, unless it has finished.
fn by_manager(view: &View<'_>) -> Option<Result<String, Trouble>> {
    let managed = view.observation.managed.as_ref()?;
    if view.fresh && view.state.health == Health::Lost {
        return Some(Err(lost()));
    }
    match managed.word {
        Word::Done => None,
        Word::Working(words) => Some(Ok(words.clone())),
        Word::Failed { name, words } => Some(Err(Trouble { name, words: words.clone(), hopeless: false })),
    }
}

pub(super) fn partitioning(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    let timeout = timeout(view, change);
    match by_manager(view) {
        Some(Ok(words)) => return draft.done(words),
        Some(Err(trouble)) => return fall_back(view, draft, change, &trouble),
        None => {}
    }
    if view.reached(&change.to) {
        return canary::carved(view, draft, change);
    }
    if let Some(trouble) = trouble(view, timeout, "carve") {
        return fall_back(view, draft, change, &trouble);
    }
    draft.wake(timeout);
    draft.done(doing(view))
}

pub(super) fn verifying(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    draft.hold([]).trial([]);
    let timeout = timeout(view, change);
    let missing = if view.reached(&change.to) { view.offered(&change.to) } else { Err(doing(view)) };
    let missing = match missing {
        Ok(()) if view.spec.is_some_and(|s| s.hold.is_empty() && s.trial.is_empty()) => {
            draft.finish().event(false, "Changed", &format!("has its new layout; {}", change.reason));
            return draft.done("");
        }
        Ok(()) => String::from("giving devices back"),
        Err(missing) => missing,
    };
    let Some(trouble) = trouble(view, timeout, "verify") else {
        draft.wake(timeout);
        return draft.done(missing);
    };
    let back = view.leaving(&change.from);
    if view.shows(&change.to) || back.iter().any(|d| d.owned() || d.state.clients > 0) {
        return stick(draft, trouble.name, &format!("{}; {missing}", trouble.words));
    }
    fall_back(view, draft, change, &trouble)
}

pub(super) fn rolling_back(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    let timeout = timeout(view, change);
    match by_manager(view) {
        Some(Ok(words)) => return draft.done(format!("restoring the old layout: {words}")),
        Some(Err(trouble)) => return stick(draft, trouble.name, &both(&change.reason, &trouble.words)),
        None => {}
    }
    if view.reached(&change.from) {
        if view.spec.is_some_and(|s| !s.hold.is_empty()) {
            draft.hold([]).wake(timeout);
            return draft.done("NVML shows the old layout; giving devices back");
        }
        if view.offered(&change.from).is_ok() {
            if change.from == change.to {
                // there is no other layout that failed
                draft.finish().event(true, "RolledBack", &change.reason);
                return draft.done("");
            }
            draft.phase(ChangePhase::RolledBack).event(true, "RolledBack", &change.reason);
            draft.wake(view.observation.now.checked_add(view.observation.policy.retry_after).ok());
            return draft.done(&change.reason);
        }
    }
    if let Some(Trouble { name, words, .. }) = trouble(view, timeout, "restore the old layout") {
        return stick(draft, name, &both(&change.reason, &words));
    }
    draft.wake(timeout);
    draft.done(format!("restoring the old layout: {}", doing(view)))
}

/// The new layout cannot be had: back to the old one, if the GPU can be carved at all.
pub(super) fn fall_back(view: &View<'_>, mut draft: Draft<'_>, change: &Change, trouble: &Trouble) -> Decision {
    if trouble.hopeless {
        return stick(draft, trouble.name, &trouble.words);
    }
    draft.event(true, trouble.name, &trouble.words);
    roll_back(view, draft, change, trouble.words.clone())
}

/// Asks for the old layout. Devices that are still there are given back at once.
pub(super) fn roll_back(view: &View<'_>, mut draft: Draft<'_>, change: &Change, reason: String) -> Decision {
    let from = plain(change.from.clone());
    // NVIDIA's MIG manager may carve at any time once it was asked
    let asked = view.observation.managed.is_some() && change.phase >= ChangePhase::Partitioning;
    let hold = if asked { starts(&from) } else { view.arriving(&from) };
    draft.layout(&from).hold(hold).phase(ChangePhase::RollingBack);
    draft.event(true, "RollingBack", &reason);
    let message = reason.clone();
    draft.journal(|c| (c.reason, c.failures) = (reason, c.failures.saturating_add(1)));
    draft.wake(view.observation.now.checked_add(view.observation.policy.carve_timeout).ok());
    draft.done(message)
}

/// What failed first, and what then; what fails again and again is said once.
fn both(first: &str, then: &str) -> String {
    if first != then && first.contains(then) { first.to_owned() } else { format!("{first}; then {then}") }
}

/// Neither layout can be had for now.
pub(super) fn stick(mut draft: Draft<'_>, name: &'static str, reason: &str) -> Decision {
    draft.phase(ChangePhase::Stuck).event(true, name, reason).event(true, "Stuck", reason);
    draft.journal(|c| (c.reason, c.failures) = (reason.to_owned(), c.failures.saturating_add(1)));
    draft.done(reason)
}

/// `None` while NVIDIA's MIG manager carves, whose time is measured elsewhere.
fn timeout(view: &View<'_>, change: &Change) -> Option<Timestamp> {
    if view.observation.managed.is_some() && change.phase != ChangePhase::Verifying {
        return None;
    }
    change.phase_since.0.checked_add(view.observation.policy.carve_timeout).ok()
}
