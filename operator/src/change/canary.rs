//! From carved devices to proven ones: one canary pod for each profile that a change has created. A new device is offered to its
//! canary alone, under a resource that nothing else has, so that the pod can have got no other device and nobody else this one;
//! the other new devices stay withdrawn until all canaries have passed.

use std::collections::BTreeSet;

use gputenancy_crds::{Canary as Rules, Change, ChangePhase, InstanceSpec, names};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    carve,
    draft::Draft,
    model::{Canary, CanaryPod, Decision, Fate},
    outcome::{self, Trouble, doing},
    view::View,
};
use crate::cache::digest;

/// A pod that told nothing about its device is replaced after this time.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// One device that is tried, for all new ones of its profile.
struct Trial<'a> {
    start: i32,
    profile: Option<&'a str>,
    /// Name of the pod; another one whenever the phase begins anew, so that no old verdict counts.
    name: String,
    resource: String,
}

/// NVML shows the new layout: try it, or release it.
pub(super) fn carved(view: &View<'_>, mut draft: Draft<'_>, change: &Change) -> Decision {
    let tried = trials(view, change);
    match &view.observation.policy.canary {
        Some(rules) if !tried.is_empty() => {
            offer(view, &mut draft, change, &tried);
            draft.phase(ChangePhase::Trying).wake(view.observation.now.checked_add(limit(rules)).ok());
            draft.done("NVML shows the new layout; offering a new device of each profile to a canary pod")
        }
        _ => release(view, draft, "NVML shows the new layout"),
    }
}

pub(super) fn trying(view: &View<'_>, change: &Change) -> Decision {
    let mut draft = Draft::of(view);
    let tried = trials(view, change);
    let Some(rules) = view.observation.policy.canary.as_ref().filter(|_| !tried.is_empty()) else {
        return release(view, draft, "no canary is asked for any more");
    };
    offer(view, &mut draft, change, &tried);
    draft.decision.kept.extend(tried.iter().map(|t| t.name.clone()));
    let until = change.phase_since.0.checked_add(limit(rules)).ok();
    draft.wake(until);
    if !view.fresh {
        return draft.done(doing(view));
    }
    if let Some(trouble) = trouble(view, rules, &tried, until) {
        draft.decision.kept.clear();
        return carve::fall_back(view, draft, change, &trouble);
    }
    if tried.iter().all(|t| view.pod(t).is_some_and(|p| p.fate == Fate::Passed)) {
        draft.decision.kept.clear();
        let who: Vec<String> = tried.iter().map(Trial::place).collect();
        draft.event(false, "CanaryPassed", &format!("canary pods have proven {}", who.join(", ")));
        return release(view, draft, "the canary pods have passed");
    }
    if !draft.stands() || !view.reached(&change.to) {
        return draft.done(doing(view));
    }
    let waits: Vec<String> = tried.iter().filter_map(|t| go_on(view, &mut draft, rules, t)).collect();
    draft.done(waits.join("; "))
}

/// Gives the devices to everybody; whether kubelet and allocatable follow is seen next.
fn release(view: &View<'_>, mut draft: Draft<'_>, why: &str) -> Decision {
    let timeout = view.observation.now.checked_add(view.observation.policy.carve_timeout).ok();
    draft.hold([]).trial([]).phase(ChangePhase::Verifying).wake(timeout);
    draft.done(format!("{why}; waiting for kubelet and the node's allocatable"))
}

/// Holds what is new, but for the devices that canaries get.
fn offer(view: &View<'_>, draft: &mut Draft<'_>, change: &Change, tried: &[Trial<'_>]) {
    let trial: BTreeSet<i32> = tried.iter().map(|t| t.start).collect();
    draft.hold(differing(view, change).into_iter().filter(|s| !trial.contains(s))).trial(trial);
}

/// What is still to be done for one device; answers what is waited for, if anything is.
fn go_on(view: &View<'_>, draft: &mut Draft<'_>, rules: &Rules, trial: &Trial<'_>) -> Option<String> {
    let place = trial.place();
    match view.pod(trial) {
        Some(CanaryPod { fate: Fate::Passed, .. }) => None,
        Some(CanaryPod { fate: Fate::Spoilt(why), created }) => {
            let again = created.checked_add(AGAIN).unwrap_or(view.observation.now);
            if again <= view.observation.now {
                draft.decision.kept.remove(&trial.name);
            }
            draft.wake(Some(again));
            Some(format!("canary pod {} on {place} is tried again: {why}", trial.name))
        }
        Some(CanaryPod { fate: Fate::Runs(words) | Fate::Failed(words), .. }) => {
            Some(format!("canary pod {} on {place}: {words}", trial.name))
        }
        Some(CanaryPod { fate: Fate::Leaves, .. }) => {
            Some(format!("an earlier canary pod {} on {place} is being removed", trial.name))
        }
        None if !view.awaits_canary(trial) => Some(format!("{place} is being offered to its canary pod")),
        None => {
            draft.decision.canaries.push(Canary {
                name: trial.name.clone(),
                device: format!("{place} of {}", view.title()),
                profile: trial.profile.map(str::to_owned),
                resource: trial.resource.clone(),
                seconds: limit(rules).as_secs(),
                rules: rules.clone(),
            });
            Some(format!("starting canary pod {} on {place}", trial.name))
        }
    }
}

/// Why the new layout cannot be released, if it cannot.
fn trouble(view: &View<'_>, rules: &Rules, tried: &[Trial<'_>], until: Option<Timestamp>) -> Option<Trouble> {
    let failed = tried.iter().find_map(|t| match view.pod(t) {
        Some(CanaryPod { fate: Fate::Failed(words), .. }) => Some((t, words)),
        _ => None,
    });
    if let Some((trial, words)) = failed {
        let words = format!("canary pod {} on {} of {} failed: {words}", trial.name, trial.place(), view.title());
        return Some(Trouble { name: "CanaryFailed", words, hopeless: false });
    }
    let late = until.is_some_and(|at| at <= view.observation.now);
    let agents = outcome::trouble(view, until, "carve");
    match agents {
        // the agent's part is done: what is late is the canary
        Some(Trouble { name: "Overdue", .. }) | None if late => {
            let slow = tried.iter().find(|t| view.pod(t).is_none_or(|p| p.fate != Fate::Passed))?;
            let state = match view.pod(slow).map(|p| &p.fate) {
                Some(Fate::Runs(words) | Fate::Spoilt(words) | Fate::Failed(words)) => words.clone(),
                Some(Fate::Leaves) => "an earlier one is being removed".to_owned(),
                Some(Fate::Passed) | None => "it could not be started".to_owned(),
            };
            let words = format!(
                "canary pod {} on {} of {} has not passed within spec.verify.canary.timeout ({}): {state}",
                slow.name,
                slow.place(),
                view.title(),
                rules.timeout
            );
            Some(Trouble { name: "CanaryFailed", words, hopeless: false })
        }
        other => other,
    }
}

/// The first new device of each profile. NVIDIA's MIG manager makes all of them anew.
fn trials<'a>(view: &View<'_>, change: &'a Change) -> Vec<Trial<'a>> {
    let Change { from, to, .. } = change;
    let anew = view.observation.managed.is_some() || from.mig != to.mig;
    let same = |a: &InstanceSpec, b: &InstanceSpec| (a.start, &a.profile) == (b.start, &b.profile);
    let mut fresh: Vec<&InstanceSpec> =
        to.instances.iter().filter(|i| to.mig && (anew || !from.instances.iter().any(|f| same(f, i)))).collect();
    fresh.sort_by_key(|i| (&i.profile, i.start));
    fresh.dedup_by_key(|i| &i.profile);
    let trial = |start: i32, profile: Option<&'a str>| {
        let node = view.observation.node.metadata.name.as_deref().unwrap_or_default();
        let what = (node, &view.state.uuid, change.phase_since.0.as_second(), start, profile);
        let name = format!("gputenancy-canary-{:016x}", digest(&what));
        Trial { start, profile, name, resource: names::canary_resource(view.state.index, start) }
    };
    let whole = (!to.mig && anew).then(|| trial(0, None));
    fresh.into_iter().map(|i| trial(i.start, Some(&i.profile))).chain(whole).collect()
}

/// Starts of devices that the old layout does not have, or has under another resource.
fn differing(view: &View<'_>, change: &Change) -> Vec<i32> {
    let Change { from, to, .. } = change;
    if !to.mig {
        return vec![0];
    }
    let kept = |i: &InstanceSpec| view.observation.managed.is_none() && from.mig && from.instances.contains(i);
    to.instances.iter().filter(|i| !kept(i)).map(|i| i.start).collect()
}

fn limit(rules: &Rules) -> SignedDuration {
    SignedDuration::from_secs(rules.timeout.seconds().unwrap_or(120))
}

impl Trial<'_> {
    fn place(&self) -> String {
        format!("{} at {}", self.profile.unwrap_or("the whole GPU"), self.start)
    }
}

impl<'a> View<'a> {
    fn pod(&self, trial: &Trial<'_>) -> Option<&'a CanaryPod> {
        self.observation.canaries.get(&trial.name)
    }

    /// Kubelet lists the device under its canary's resource, and so does the node.
    fn awaits_canary(&self, trial: &Trial<'_>) -> bool {
        let devices = self.devices();
        let device = devices.iter().find(|d| (d.start, d.profile) == (trial.start, trial.profile));
        let listed =
            device.is_some_and(|d| d.state.allocatable && d.state.resource.as_deref() == Some(trial.resource.as_str()));
        listed && self.observation.allocatable.get(&trial.resource).is_some_and(|n| *n > 0)
    }
}
