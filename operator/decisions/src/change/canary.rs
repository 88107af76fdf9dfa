//! From created to verified devices: one canary pod for each profile that a change has created. A new device is advertised to its
//! canary alone, under a resource of its own, so that neither can get anything else; other new devices stay withdrawn until all
//! canaries have passed.

use std::collections::BTreeSet;

use gputenancy_crds::{Canary, Change, ChangePhase, InstanceSpec, Layout, Sharing, names, reasons};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    context::{ChangeContext, Place},
    draft::Draft,
    failure::{Failure, activity},
    rollback::{fall_back, partition_deadline},
    types::{CanaryOutcome, CanaryPod, CanaryRequest, ChangeDecision},
};
use crate::{duration::or_seconds, fingerprint::fingerprint};

/// An inconclusive canary pod of a change is replaced after this time.
const REPLACE_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// A device that is verified: for all new ones of its profile, or for its GPU after a fault.
pub(super) struct CanaryDevice<'a> {
    pub place: Place<'a>,
    /// NVIDIA's profile of the instance that it is, or a time-slice of.
    pub profile: Option<&'a str>,
    /// Name of the pod; a new one whenever the phase begins again, so that no old outcome counts.
    pub pod: String,
    pub resource: String,
}

/// NVML shows the new layout: verify it, or release it.
pub(super) fn begin(ctx: &ChangeContext<'_>, mut draft: Draft<'_>, change: &Change) -> ChangeDecision {
    let devices = canary_devices(ctx, change);
    match &ctx.observation.policy.canary {
        Some(rules) if !devices.is_empty() => {
            advertise(ctx, &mut draft, change, &devices);
            draft.phase(ChangePhase::Canary).requeue_at(ctx.observation.now.checked_add(limit(rules)).ok());
            draft.done("NVML shows the new layout; advertising a new device of each profile to a canary pod")
        }
        _ => release(ctx, draft, "NVML shows the new layout"),
    }
}

pub(super) fn step(ctx: &ChangeContext<'_>, change: &Change) -> ChangeDecision {
    let mut draft = Draft::of(ctx);
    let devices = canary_devices(ctx, change);
    let Some(rules) = ctx.observation.policy.canary.as_ref().filter(|_| !devices.is_empty()) else {
        return release(ctx, draft, "no canary is required any more");
    };
    advertise(ctx, &mut draft, change, &devices);
    draft.decision.kept_canaries.extend(devices.iter().map(|d| d.pod.clone()));
    let until = ctx.counted_from(change.phase_since.0).checked_add(limit(rules)).ok();
    draft.requeue_at(until);
    if !ctx.fresh {
        return draft.done(activity(ctx));
    }
    if let Some(failure) = failure(ctx, rules, &devices, until) {
        draft.decision.kept_canaries.clear();
        return fall_back(ctx, draft, change, &failure);
    }
    if devices.iter().all(|d| d.outcome(ctx) == Some(&CanaryOutcome::Passed)) {
        draft.decision.kept_canaries.clear();
        let places: Vec<String> = devices.iter().map(CanaryDevice::place).collect();
        draft.event(false, reasons::CANARY_PASSED, &format!("canary pods have verified {}", places.join(", ")));
        return release(ctx, draft, "the canary pods have passed");
    }
    if !draft.is_written() || !ctx.reached(&change.to) {
        return draft.done(activity(ctx));
    }
    let waits: Vec<String> = devices.iter().filter_map(|d| drive(ctx, &mut draft, (rules, REPLACE_AFTER), d)).collect();
    draft.done(waits.join("; "))
}

/// Advertises all devices; `Verifying` checks that kubelet and allocatable follow.
fn release(ctx: &ChangeContext<'_>, mut draft: Draft<'_>, why: &str) -> ChangeDecision {
    draft.hold([]).trial([]).phase(ChangePhase::Verifying).requeue_at(partition_deadline(ctx));
    draft.done(format!("{why}; waiting for kubelet and the node's allocatable"))
}

/// Holds what is new, except the devices of canaries.
fn advertise(ctx: &ChangeContext<'_>, draft: &mut Draft<'_>, change: &Change, devices: &[CanaryDevice<'_>]) {
    let trial: BTreeSet<i32> = devices.iter().map(|d| d.place.start()).collect();
    draft.hold(differing(ctx, change).into_iter().filter(|s| !trial.contains(s))).trial(trial);
}

/// Does the next thing for one device and returns what it waits for. `replace_after`: time from the creation of an inconclusive pod to the next one.
pub(super) fn drive(
    ctx: &ChangeContext<'_>,
    draft: &mut Draft<'_>,
    (rules, replace_after): (&Canary, SignedDuration),
    device: &CanaryDevice<'_>,
) -> Option<String> {
    let (place, name) = (device.place(), &device.pod);
    match ctx.observation.canaries.get(name) {
        Some(CanaryPod { outcome: CanaryOutcome::Passed, .. }) => None,
        Some(CanaryPod { outcome: CanaryOutcome::Inconclusive(why), created }) => {
            let again = created.checked_add(replace_after).unwrap_or(ctx.observation.now);
            if again <= ctx.observation.now {
                draft.decision.kept_canaries.remove(name);
            }
            draft.requeue_at(Some(again));
            Some(format!("replacing canary pod {name} on {place}: {why}"))
        }
        Some(CanaryPod { outcome: CanaryOutcome::Pending(state) | CanaryOutcome::Failed(state), .. }) => {
            Some(format!("canary pod {name} on {place}: {state}"))
        }
        Some(CanaryPod { outcome: CanaryOutcome::Terminating, .. }) => {
            Some(format!("deleting an earlier canary pod {name} on {place}"))
        }
        None if !device.is_advertised(ctx) => Some(format!("advertising {place} to its canary pod")),
        None => {
            draft.decision.canaries.push(CanaryRequest {
                name: name.clone(),
                device: format!("{place} of {}", ctx.title()),
                profile: device.profile.map(str::to_owned),
                resource: device.resource.clone(),
                seconds: limit(rules).as_secs(),
                rules: rules.clone(),
            });
            Some(format!("starting canary pod {name} on {place}"))
        }
    }
}

/// Why the new layout cannot be released, if so.
fn failure(
    ctx: &ChangeContext<'_>,
    rules: &Canary,
    devices: &[CanaryDevice<'_>],
    until: Option<Timestamp>,
) -> Option<Failure> {
    let title = |d: &CanaryDevice<'_>| format!("canary pod {} on {} of {}", d.pod, d.place(), ctx.title());
    for device in devices {
        if let Some(CanaryOutcome::Failed(why)) = device.outcome(ctx) {
            return Some(Failure::canary(format!("{} failed: {why}", title(device))));
        }
    }
    let late = until.is_some_and(|at| at <= ctx.observation.now);
    match Failure::of(ctx, until, "partition the GPU") {
        // the agent is done: the canary is late
        Some(Failure { reason: reasons::OVERDUE, .. }) | None if late => {
            let slow = devices.iter().find(|d| d.outcome(ctx) != Some(&CanaryOutcome::Passed))?;
            let state = match slow.outcome(ctx) {
                Some(
                    CanaryOutcome::Pending(state) | CanaryOutcome::Inconclusive(state) | CanaryOutcome::Failed(state),
                ) => state,
                Some(CanaryOutcome::Terminating) => "an earlier one is being deleted",
                Some(CanaryOutcome::Passed) | None => "it could not be started",
            };
            let timeout = &rules.timeout;
            let late = format!("has not passed within spec.verify.canary.timeout ({timeout}): {state}");
            Some(Failure::canary(format!("{} {late}", title(slow))))
        }
        other => other,
    }
}

/// The first new device of each profile. A node that is partitioned as a whole has new ones only.
fn canary_devices<'a>(ctx: &ChangeContext<'_>, change: &'a Change) -> Vec<CanaryDevice<'a>> {
    let Change { from, to, .. } = change;
    let all_new = ctx.whole_node().is_some() || from.mig != to.mig;
    let same = |a: &InstanceSpec, b: &InstanceSpec| (a.start, &a.profile) == (b.start, &b.profile);
    let is_new = |i: &&InstanceSpec| to.mig && (all_new || !from.instances.iter().any(|f| same(f, i)));
    let mut new: Vec<&InstanceSpec> = to.instances.iter().filter(is_new).collect();
    new.sort_by_key(|i| (&i.profile, i.start));
    new.dedup_by_key(|i| &i.profile);
    let device = |(place, profile): (Place<'a>, Option<&'a str>)| {
        let start = place.start();
        let node = ctx.observation.node.metadata.name.as_deref().unwrap_or_default();
        let attempt = (node, &ctx.state.uuid, change.phase_since.0.as_second(), start, profile);
        let pod = format!("gputenancy-canary-{}", fingerprint(&attempt));
        CanaryDevice { place, profile, pod, resource: names::canary_resource(ctx.state.index, start) }
    };
    let was_whole = !from.mig && from.sharing.is_none();
    let whole = (!to.mig && to.sharing.is_none() && (all_new || !was_whole)).then_some(Place::Whole);
    let place = |i: &'a InstanceSpec| match i.replicas {
        Some(_) => Place::Share(i.start),
        None => Place::Instance(i.start, &i.profile),
    };
    let new = new.into_iter().map(|i| (place(i), Some(i.profile.as_str())));
    new.chain(whole.into_iter().chain(new_shares(from, to)).map(|place| (place, None))).map(device).collect()
}

/// The first new share of each group.
fn new_shares<'a>(from: &'a Layout, to: &'a Layout) -> impl Iterator<Item = Place<'a>> {
    to.sharing.iter().flat_map(|s| &s.shares).filter_map(|group| {
        let new = group.numbers.iter().filter(|n| !has_share(from, to, **n));
        new.min().map(|number| Place::Share(*number))
    })
}

/// Whether a share of `to` is the same share in `from`.
fn has_share(from: &Layout, to: &Layout, number: i32) -> bool {
    let (Some(from), Some(to)) = (&from.sharing, &to.sharing) else { return false };
    let group = |s: &Sharing| s.group_of(number).map(|g| (g.resource.clone(), g.memory.clone(), g.compute));
    from.mode == to.mode && group(from) == group(to)
}

/// Starts of devices that the old layout lacks, or has under another resource.
fn differing(ctx: &ChangeContext<'_>, change: &Change) -> Vec<i32> {
    let Change { from, to, .. } = change;
    if let Some(sharing) = &to.sharing {
        return sharing.numbers().into_iter().filter(|n| !has_share(from, to, *n)).collect();
    }
    if !to.mig {
        return vec![0];
    }
    let kept = |i: &InstanceSpec, number: i32| {
        let form = |i: &InstanceSpec| (i.start, i.profile.clone(), i.resource.clone(), i.replicas.is_some());
        let same = |f: &InstanceSpec| form(f) == form(i) && f.numbers().contains(&number);
        ctx.whole_node().is_none() && from.mig && from.instances.iter().any(same)
    };
    let new = |i: &InstanceSpec| i.numbers().into_iter().filter(|n| !kept(i, *n)).collect::<Vec<_>>();
    to.instances.iter().flat_map(new).collect()
}

pub(super) fn limit(rules: &Canary) -> SignedDuration {
    or_seconds(&rules.timeout, 120)
}

impl CanaryDevice<'_> {
    fn place(&self) -> String {
        self.place.to_string()
    }

    pub fn outcome<'c>(&self, ctx: &ChangeContext<'c>) -> Option<&'c CanaryOutcome> {
        ctx.observation.canaries.get(&self.pod).map(|pod| &pod.outcome)
    }

    /// Kubelet lists the device under its canary's resource, and the node's allocatable counts it.
    fn is_advertised(&self, ctx: &ChangeContext<'_>) -> bool {
        let devices = ctx.devices();
        let device = devices.iter().find(|d| d.place == self.place);
        let listed = device.is_some_and(|d| d.state.allocatable && d.state.resource.as_ref() == Some(&self.resource));
        listed && ctx.observation.allocatable.get(&self.resource).is_some_and(|n| *n > 0)
    }
}
