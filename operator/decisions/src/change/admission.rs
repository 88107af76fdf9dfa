//! Which GPUs of a pool may begin a change now.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::ids::{GpuKey, NodeName};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The cause of the wait of a GPU that [`admit`] and [`admit_node`] leave out.
pub const LIMIT_REACHED: &str =
    "Pending: waiting until fewer than spec.disruption.maxUnavailable GPUs of the pool change";

/// A GPU of a pool with a limit of simultaneous changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCandidate<K> {
    /// The GPU.
    pub gpu: K,
    /// A change is in progress; one that failed and ended is not.
    pub changing: bool,
    /// The plan wants another layout than it has.
    pub wanted: bool,
    /// It cannot begin now: another one of its rank takes its turn, and higher ranks still wait for it.
    pub blocked: bool,
    /// Order of the plan.
    pub rank: u8,
}

/// GPUs that may begin a change now: the lowest rank first. A higher rank waits until lower ranks are done, so that a pod that must
/// move finds its new place.
pub fn admit<K: Clone + Ord>(gpus: &[ChangeCandidate<K>], max_unavailable: &IntOrString) -> BTreeSet<K> {
    let changing = gpus.iter().filter(|g| g.changing).count();
    let headroom = limit(max_unavailable, gpus.len()).saturating_sub(changing);
    let Some(lowest) = gpus.iter().filter(|g| g.changing || g.wanted).map(|g| g.rank).min() else {
        return BTreeSet::new();
    };
    let waiting = gpus.iter().filter(|g| g.wanted && !g.blocked && !g.changing && g.rank == lowest);
    waiting.map(|g| g.gpu.clone()).collect::<BTreeSet<_>>().into_iter().take(headroom).collect()
}

/// GPUs of a pool whose nodes are partitioned as a whole that may begin a change now: all that need one, of one node at a time. While a node
/// changes, only its GPUs in `repartitioned` join, because they are repartitioned with the others.
pub fn admit_node<'a>(
    gpus: &[ChangeCandidate<&'a GpuKey>],
    repartitioned: &BTreeMap<GpuKey, String>,
) -> BTreeSet<&'a GpuKey> {
    let changing: BTreeSet<&NodeName> = gpus.iter().filter(|g| g.changing).map(|g| &g.gpu.node).collect();
    if !changing.is_empty() {
        let joins = |g: &&ChangeCandidate<&GpuKey>| {
            !g.changing && repartitioned.contains_key(g.gpu) && changing.contains(&g.gpu.node)
        };
        return gpus.iter().filter(joins).map(|g| g.gpu).collect();
    }
    let wanted = || gpus.iter().filter(|g| g.wanted && !g.blocked);
    let node = wanted().min_by_key(|g| (g.rank, g.gpu)).map(|g| &g.gpu.node);
    wanted().filter(|g| Some(&g.gpu.node) == node).map(|g| g.gpu).collect()
}

/// A number, or a percentage of the pool's GPUs rounded down; at least one.
pub fn limit(max_unavailable: &IntOrString, gpus: usize) -> usize {
    let wanted = match max_unavailable {
        IntOrString::Int(n) => usize::try_from(*n).unwrap_or(0),
        IntOrString::String(text) => match text.strip_suffix('%') {
            Some(percent) => percent.parse::<usize>().map_or(0, |p| gpus * p.min(100) / 100),
            None => text.parse().unwrap_or(0),
        },
    };
    wanted.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(gpu: u8, changing: bool, wanted: bool, rank: u8) -> ChangeCandidate<u8> {
        ChangeCandidate { gpu, changing, wanted, blocked: false, rank }
    }

    #[test]
    fn admit_counts_changes_in_progress_against_the_limit() {
        let gpus = [
            candidate(0, true, true, 0),
            candidate(1, false, true, 0),
            candidate(2, false, true, 0),
            candidate(3, false, false, 0),
        ];
        assert_eq!(admit(&gpus, &IntOrString::Int(1)), BTreeSet::new());
        assert_eq!(admit(&gpus, &IntOrString::Int(2)), [1].into());
        assert_eq!(admit(&gpus, &IntOrString::String("75%".into())), [1, 2].into());
        assert_eq!(admit(&gpus[1..], &IntOrString::String("0%".into())), [1].into(), "at least one");
    }

    #[test]
    fn admit_gives_the_turn_of_a_blocked_gpu_to_its_rank_only() {
        let blocked = ChangeCandidate { blocked: true, ..candidate(0, false, true, 0) };
        let gpus = [blocked.clone(), candidate(1, false, true, 0), candidate(2, false, true, 1)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), [1].into());
        let gpus = [blocked, candidate(2, false, true, 1)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), BTreeSet::new(), "its new place is missing");
    }

    #[test]
    fn admit_rounds_a_percentage_down_but_never_to_zero() {
        for (gpus, percent, most) in [(8, "25%", 2), (8, "30%", 2), (3, "33%", 1), (3, "34%", 1), (16, "100%", 16)] {
            let candidates: Vec<_> = (0..gpus).map(|gpu| candidate(gpu, false, true, 0)).collect();
            assert_eq!(admit(&candidates, &IntOrString::String(percent.into())).len(), most, "{percent} of {gpus}");
        }
    }

    #[test]
    fn admit_starts_no_higher_rank_before_lower_ranks_are_done() {
        let gpus = [candidate(0, false, true, 1), candidate(1, false, true, 0)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), [1].into());
        let gpus = [candidate(0, false, true, 1), candidate(1, true, false, 0)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), BTreeSet::new());
        let gpus = [candidate(0, false, true, 1), candidate(1, false, false, 0)];
        assert_eq!(admit(&gpus, &IntOrString::Int(5)), [0].into());
    }
}
