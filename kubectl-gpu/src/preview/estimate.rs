//! Upper bound of the duration of changes, with its parts.

use std::collections::BTreeMap;

use gputenancy_engine::{change::Policy, mig_manager::MigManagerTimeouts};

use super::{
    model::{Estimate, Eviction, GpuChange},
    side::Side,
};

/// Milliseconds of driver calls, as measured on A100 boards.
const DESTROY: u64 = 1080;
const CREATE: u64 = 330;
const SET_MODE: u64 = 1500;
const RESET: u64 = 4000;
/// Milliseconds for kubelet and the Node's allocatable to follow, before and after partitioning.
const FOLLOW: u64 = 2000;

/// Fills in the seconds of every change.
pub(super) fn fill(side: &Side<'_>, changes: &mut [GpuChange], evictions: &[Eviction]) {
    for change in changes.iter_mut().filter(|c| c.step > 0) {
        let (destroyed, created) = (count(change.destroy.len()), count(change.create.len()));
        let mode = change.mig_mode.map_or(0, |m| if m.reset { SET_MODE + RESET } else { SET_MODE });
        let owners: Vec<&Eviction> =
            evictions.iter().filter(|e| change.evicts.contains(&format!("{}/{}", e.namespace, e.pod))).collect();
        let grace = owners.iter().map(|e| u64::try_from(e.grace_seconds).unwrap_or(0)).max().unwrap_or(0);
        let notice = if owners.is_empty() { 0 } else { notice(side, change) };
        let partitioning = destroyed * DESTROY + created * CREATE + mode + FOLLOW;
        let others = config_sync(side, change).unwrap_or(0) + canary(side, change).unwrap_or(0);
        change.seconds = notice + grace + others + partitioning.div_ceil(1000);
    }
}

/// Timeout in seconds of all canary pods of a change, where the pool names a canary.
fn canary(side: &Side<'_>, change: &GpuChange) -> Option<u64> {
    let pool = side.world.pool(change.pool.as_deref()?)?;
    let rules = pool.spec.verify.canary.as_ref()?;
    // without instances a new device is the whole GPU, after MIG mode was switched off
    let makes = !change.create.is_empty() || change.mig_mode.is_some();
    makes.then(|| rules.timeout.get().ok().map(|timeout| timeout.as_secs())).flatten()
}

/// Seconds until NVIDIA's MIG manager has the layout, where it partitions.
fn config_sync(side: &Side<'_>, change: &GpuChange) -> Option<u64> {
    let pool = side.managed(change.pool.as_deref()?)?;
    let patience = MigManagerTimeouts::from(&pool.spec.mig_manager.clone().unwrap_or_default());
    u64::try_from(patience.config_sync.as_secs()).ok()
}

fn notice(side: &Side<'_>, change: &GpuChange) -> u64 {
    let pool = change.pool.as_deref().and_then(|p| side.world.pool(p));
    let notice = pool.map(|p| Policy::from(&p.spec.disruption).notice).unwrap_or_default();
    u64::try_from(notice.as_secs()).unwrap_or(0)
}

/// The sum over the steps of each pool of the longest change in them; pools change side by side.
pub(super) fn estimate(side: &Side<'_>, changes: &[GpuChange], evictions: &[Eviction]) -> Estimate {
    let changing: Vec<&GpuChange> = changes.iter().filter(|c| c.step > 0).collect();
    let Some(last) = changing.iter().map(|c| c.step).max() else { return Estimate::default() };
    let of_pool =
        |pool: &str| seconds(&changing.iter().copied().filter(|c| c.pool.as_deref() == Some(pool)).collect::<Vec<_>>());
    let total = changing.iter().filter_map(|c| c.pool.as_deref()).map(of_pool).max().unwrap_or(0);
    let instances = changing.iter().any(|c| !c.destroy.is_empty() || !c.create.is_empty());
    let mut calls = Vec::new();
    if instances {
        calls.push(format!("{:.2} s to destroy an instance", seconds_of(DESTROY)));
        calls.push(format!("{:.2} s to create one", seconds_of(CREATE)));
    }
    if changing.iter().any(|c| c.mig_mode.is_some()) {
        calls.push(format!("{:.1} s to set MIG mode", seconds_of(SET_MODE)));
    }
    if changing.iter().any(|c| c.mig_mode.is_some_and(|m| m.reset)) {
        calls.push(format!("{:.0} s to reset a GPU", seconds_of(RESET)));
    }
    let mut basis = Vec::new();
    if !calls.is_empty() {
        basis.push(format!("driver calls as measured on A100: {}", calls.join(", ")));
    }
    basis.push(format!("{:.0} s on each GPU for kubelet and the Node's allocatable to follow", seconds_of(FOLLOW)));
    if let Some(most) = changing.iter().filter_map(|c| config_sync(side, c)).max() {
        basis.push(format!(
            "{most} s on each node for the layout to reach NVIDIA's MIG manager; restarts of NVIDIA's other components are not counted"
        ));
    }
    if let Some(most) = changing.iter().filter_map(|c| canary(side, c)).max() {
        basis.push(format!(
            "canary pods take up to {most} s on a GPU (spec.verify.canary.timeout); most pass within seconds"
        ));
    }
    if !evictions.is_empty() {
        basis.push("pods use up their terminationGracePeriodSeconds; most end sooner".to_owned());
        let mut notices: Vec<String> = changing
            .iter()
            .filter(|c| !c.evicts.is_empty())
            .filter_map(|c| side.world.pool(c.pool.as_deref()?))
            .filter(|p| !Policy::from(&p.spec.disruption).notice.is_zero())
            .map(|p| {
                format!(
                    "owners in pool {} are notified {} before",
                    p.metadata.name.as_deref().unwrap_or_default(),
                    p.spec.disruption.notice
                )
            })
            .collect();
        notices.dedup();
        basis.extend(notices);
    }
    if last > 1 {
        basis.push("GPUs of one step change at once, steps one after the other".to_owned());
    }
    let pods =
        evictions.iter().flat_map(|e| e.waits_for.iter().map(move |w| format!("pod {}/{}: {w}", e.namespace, e.pod)));
    let mut not_counted: Vec<String> = changing.iter().flat_map(|c| c.waits_for.iter().cloned()).chain(pods).collect();
    not_counted.sort();
    not_counted.dedup();
    Estimate { seconds: total, basis, not_counted }
}

/// How long the changes of one pool take: the longest of each step, one step after the other.
pub(super) fn seconds(changes: &[&GpuChange]) -> u64 {
    let mut longest: BTreeMap<u32, u64> = BTreeMap::new();
    for change in changes {
        let so_far = longest.entry(change.step).or_default();
        *so_far = change.seconds.max(*so_far);
    }
    longest.values().sum()
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds of a few seconds")]
fn seconds_of(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}
