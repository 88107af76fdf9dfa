//! A pool's rules as numbers, and which GPUs may change at once.

use std::collections::BTreeSet;

use gputenancy_crds::Disruption;
use k8s_openapi::{apimachinery::pkg::util::intstr::IntOrString, jiff::SignedDuration};

use super::{model::Policy, window::Window};

/// A GPU as far as the pool's limit is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn<K> {
    /// The GPU.
    pub gpu: K,
    /// A change is under way (one that failed and has ended is not).
    pub changing: bool,
    /// The plan wants another layout than it has.
    pub wanted: bool,
    /// Order of the plan.
    pub rank: u8,
}

/// GPUs of one pool that may begin a change now: lowest rank first, and none of a higher rank before those of a lower one
/// are done, so that a pod that must move finds its new place.
pub fn admit<K: Clone + Ord>(gpus: &[Turn<K>], max_unavailable: &IntOrString) -> BTreeSet<K> {
    let changing = gpus.iter().filter(|g| g.changing).count();
    let room = limit(max_unavailable, gpus.len()).saturating_sub(changing);
    let Some(lowest) = gpus.iter().filter(|g| g.changing || g.wanted).map(|g| g.rank).min() else {
        return BTreeSet::new();
    };
    let waiting = gpus.iter().filter(|g| g.wanted && !g.changing && g.rank == lowest);
    waiting.map(|g| g.gpu.clone()).collect::<BTreeSet<_>>().into_iter().take(room).collect()
}

/// A number, or a percentage of the pool's GPUs rounded down; at least one.
fn limit(max_unavailable: &IntOrString, gpus: usize) -> usize {
    let wanted = match max_unavailable {
        IntOrString::Int(n) => usize::try_from(*n).unwrap_or(0),
        IntOrString::String(text) => match text.strip_suffix('%') {
            Some(percent) => percent.parse::<usize>().map_or(0, |p| gpus * p.min(100) / 100),
            None => text.parse().unwrap_or(0),
        },
    };
    wanted.max(1)
}

impl Default for Policy {
    fn default() -> Self {
        Self::from(&Disruption::default())
    }
}

impl From<&Disruption> for Policy {
    /// A duration that cannot be read (the API server's pattern lets none through) counts as the field's default. The window is
    /// open: it depends on the time, so whoever knows the time sets it.
    fn from(disruption: &Disruption) -> Self {
        let read = |text: &gputenancy_crds::DurationText, default: i64| {
            SignedDuration::from_secs(text.seconds().unwrap_or(default))
        };
        Self {
            notice: read(&disruption.notice, 0),
            drain_timeout: read(&disruption.drain_timeout, 1800),
            on_timeout: disruption.on_timeout,
            unmanaged_pods: disruption.unmanaged_pods,
            window: Window::Always,
            carve_timeout: SignedDuration::from_mins(5),
            canary: None,
            retry_after: SignedDuration::from_mins(10),
            eviction_retry: SignedDuration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(gpu: u8, changing: bool, wanted: bool, rank: u8) -> Turn<u8> {
        Turn { gpu, changing, wanted, rank }
    }

    #[test]
    fn at_most_so_many_gpus_change_at_once() {
        let gpus = [turn(0, true, true, 0), turn(1, false, true, 0), turn(2, false, true, 0), turn(3, false, false, 0)];
        assert_eq!(admit(&gpus, &IntOrString::Int(1)), BTreeSet::new());
        assert_eq!(admit(&gpus, &IntOrString::Int(2)), [1].into());
        assert_eq!(admit(&gpus, &IntOrString::String("75%".into())), [1, 2].into());
        assert_eq!(admit(&gpus[1..], &IntOrString::String("0%".into())), [1].into(), "at least one");
    }

    #[test]
    fn a_percentage_is_of_the_pools_gpus_rounded_down_and_never_none() {
        for (gpus, percent, most) in [(8, "25%", 2), (8, "30%", 2), (3, "33%", 1), (3, "34%", 1), (16, "100%", 16)] {
            let turns: Vec<Turn<u8>> = (0..gpus).map(|gpu| turn(gpu, false, true, 0)).collect();
            assert_eq!(admit(&turns, &IntOrString::String(percent.into())).len(), most, "{percent} of {gpus}");
        }
    }

    #[test]
    fn nobody_is_evicted_before_the_new_places_are_ready() {
        let gpus = [turn(0, false, true, 1), turn(1, false, true, 0)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), [1].into());
        let gpus = [turn(0, false, true, 1), turn(1, true, false, 0)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), BTreeSet::new());
        let gpus = [turn(0, false, true, 1), turn(1, false, false, 0)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), [0].into());
    }
}
