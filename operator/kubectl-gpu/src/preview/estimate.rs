//! Upper bound of the duration of changes, with its parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gputenancy_decisions::{change::Policy, partitioner::RequestTimeouts};
use kube::ResourceExt as _;

use super::{
    model::{Estimate, Eviction, GpuChange},
    planned::PlannedWorld,
};
use crate::units::seconds;

/// Driver calls, as measured on A100 boards.
const DESTROY: Duration = Duration::from_millis(1080);
const CREATE: Duration = Duration::from_millis(330);
const SET_MODE: Duration = Duration::from_millis(1500);
const RESET: Duration = Duration::from_secs(4);
/// For kubelet and the Node's allocatable to follow, before and after partitioning.
const FOLLOW: Duration = Duration::from_secs(2);

/// Fills in the seconds of every change.
pub(super) fn fill(planned: &PlannedWorld<'_>, changes: &mut [GpuChange], evictions: &[Eviction]) {
    for change in changes.iter_mut().filter(|c| c.step > 0) {
        let instances = change.destroy.iter().map(|_| DESTROY).chain(change.create.iter().map(|_| CREATE));
        let mode = change.mig_mode.map(|m| if m.reset { SET_MODE + RESET } else { SET_MODE });
        let partitioning: Duration = instances.chain(mode).chain([FOLLOW]).sum();
        let owners = evictions.iter().filter(|e| change.evicts.contains(&format!("{}/{}", e.namespace, e.pod)));
        let grace = owners.map(|e| u64::try_from(e.grace_seconds).unwrap_or(0)).max();
        let evicting = grace.map(|grace| grace + notice(planned, change).unwrap_or(0));
        let waits = [evicting, config_sync(planned, change), canary(planned, change)];
        change.seconds = waits.into_iter().flatten().sum::<u64>() + whole_seconds(partitioning);
    }
}

/// Rounded up.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Timeout in seconds of all canary pods of a change, where the pool names a canary.
fn canary(planned: &PlannedWorld<'_>, change: &GpuChange) -> Option<u64> {
    let pool = planned.world.pool(change.pool.as_deref()?)?;
    let rules = pool.spec.verify.canary.as_ref()?;
    // without instances a new device is the whole GPU, after MIG mode was switched off
    let makes = !change.create.is_empty() || change.mig_mode.is_some();
    makes.then(|| rules.timeout.get().ok().map(|timeout| timeout.as_secs())).flatten()
}

/// Seconds until the component that partitions nodes as a whole has the layout, where there is one.
fn config_sync(planned: &PlannedWorld<'_>, change: &GpuChange) -> Option<u64> {
    let pool = planned.whole(change.pool.as_deref()?)?;
    Some(seconds(RequestTimeouts::of(Some(pool), None).config_sync))
}

/// Seconds between the notice to owners and their eviction.
fn notice(planned: &PlannedWorld<'_>, change: &GpuChange) -> Option<u64> {
    let pool = planned.world.pool(change.pool.as_deref()?)?;
    Some(seconds(Policy::from(&pool.spec.disruption).notice))
}

/// The sum over the steps of each pool of the longest change in them; pools change side by side.
pub(super) fn estimate(planned: &PlannedWorld<'_>, changes: &[GpuChange], evictions: &[Eviction]) -> Estimate {
    let changing: Vec<&GpuChange> = changes.iter().filter(|c| c.step > 0).collect();
    let Some(last) = changing.iter().map(|c| c.step).max() else { return Estimate::default() };
    let mut by_pool: BTreeMap<&str, Vec<&GpuChange>> = BTreeMap::new();
    for change in &changing {
        by_pool.entry(change.pool.as_deref().unwrap_or_default()).or_default().push(change);
    }
    let pods =
        evictions.iter().flat_map(|e| e.waits_for.iter().map(move |w| format!("pod {}/{}: {w}", e.namespace, e.pod)));
    let not_counted: BTreeSet<String> = changing.iter().flat_map(|c| c.waits_for.iter().cloned()).chain(pods).collect();
    let longest =
        |time: fn(&PlannedWorld<'_>, &GpuChange) -> Option<u64>| changing.iter().filter_map(|c| time(planned, c)).max();
    let notified = changing.iter().filter(|c| !c.evicts.is_empty() && notice(planned, c) > Some(0));
    let notices: BTreeSet<String> = notified
        .filter_map(|c| planned.world.pool(c.pool.as_deref()?))
        .map(|p| format!("owners in pool {} are notified {} before", p.name_any(), p.spec.disruption.notice))
        .collect();
    let basis = [
        driver_calls(&changing),
        Some(format!("{} s on each GPU for kubelet and the Node's allocatable to follow", FOLLOW.as_secs())),
        longest(config_sync).map(|most| {
            format!(
                "{most} s on each node for the layout to reach NVIDIA's MIG manager; restarts of NVIDIA's other components are not counted"
            )
        }),
        longest(canary).map(|most| {
            format!("canary pods take up to {most} s on a GPU (spec.verify.canary.timeout); most pass within seconds")
        }),
        (!evictions.is_empty())
            .then(|| "pods use up their terminationGracePeriodSeconds; most end sooner".to_owned()),
    ];
    let steps = (last > 1).then(|| "GPUs of one step change at once, steps one after the other".to_owned());
    Estimate {
        seconds: by_pool.values().map(|changes| total(changes)).max().unwrap_or(0),
        basis: basis.into_iter().flatten().chain(notices).chain(steps).collect(),
        not_counted: not_counted.into_iter().collect(),
    }
}

/// Durations of the driver calls that these changes need.
fn driver_calls(changes: &[&GpuChange]) -> Option<String> {
    let instances = changes.iter().any(|c| !c.destroy.is_empty() || !c.create.is_empty());
    let mode = changes.iter().any(|c| c.mig_mode.is_some());
    let reset = changes.iter().any(|c| c.mig_mode.is_some_and(|m| m.reset));
    let calls = [
        (instances, format!("{} s to destroy an instance", DESTROY.as_secs_f64())),
        (instances, format!("{} s to create one", CREATE.as_secs_f64())),
        (mode, format!("{} s to set MIG mode", SET_MODE.as_secs_f64())),
        (reset, format!("{} s to reset a GPU", RESET.as_secs_f64())),
    ];
    let calls: Vec<String> = calls.into_iter().filter(|(needed, _)| *needed).map(|(_, call)| call).collect();
    (!calls.is_empty()).then(|| format!("driver calls as measured on A100: {}", calls.join(", ")))
}

/// How long the changes of one pool take: the longest of each step, one step after the other.
pub(super) fn total(changes: &[&GpuChange]) -> u64 {
    let mut longest: BTreeMap<u32, u64> = BTreeMap::new();
    for change in changes {
        let so_far = longest.entry(change.step).or_default();
        *so_far = change.seconds.max(*so_far);
    }
    longest.values().sum()
}
