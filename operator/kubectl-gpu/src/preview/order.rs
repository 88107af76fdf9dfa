//! The order of changes: by rank within a pool, as many at once as the operator admits; nodes as a whole one by one.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::ids::{GpuKey, PoolName};
use gputenancy_decisions::change::{ChangeCandidate, admit, admit_node};
use kube::ResourceExt as _;

use super::planned::PlannedWorld;

/// The step of every changing GPU, from 1 in each pool; changes in progress are in step 1.
pub(super) fn steps(planned: &PlannedWorld<'_>) -> BTreeMap<GpuKey, u32> {
    let mut by_pool: BTreeMap<&PoolName, Vec<ChangeCandidate<&GpuKey>>> = BTreeMap::new();
    for (key, gpu) in &planned.plan.gpus {
        let changing = planned.in_progress(key).is_some();
        let candidate = ChangeCandidate { gpu: key, changing, wanted: gpu.changed, blocked: false, rank: gpu.rank };
        by_pool.entry(&gpu.pool).or_default().push(candidate);
    }
    let mut steps = BTreeMap::new();
    for (pool, mut candidates) in by_pool {
        let Some(pool) = planned.world.fleet.pools.iter().find(|p| p.name_any() == pool.as_str()) else { continue };
        let limit = &pool.spec.disruption.max_unavailable;
        let whole = planned.whole(&pool.name_any()).is_some();
        for step in 1.. {
            let mut now: BTreeSet<&GpuKey> = candidates.iter().filter(|t| t.changing).map(|t| t.gpu).collect();
            now.extend(if whole { admit_node(&candidates, &planned.bystanders) } else { admit(&candidates, limit) });
            if now.is_empty() {
                break;
            }
            for candidate in candidates.iter_mut().filter(|t| now.contains(t.gpu)) {
                (candidate.changing, candidate.wanted) = (false, false);
            }
            steps.extend(now.into_iter().map(|key| (key.clone(), step)));
        }
    }
    steps
}
