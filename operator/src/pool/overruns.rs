//! Pools with so many marked nodes at once that a fault of what marks them is more likely than so many faults of nodes.

use std::collections::BTreeMap;

use gputenancy_crds::GpuPool;
use gputenancy_engine::{change::limit, fleet::Fleet};
use kube::ResourceExt as _;

use super::{marks::Marks, ownership::Ownership};

/// Pools of which verdicts take more GPUs at once than `spec.health.maxUnavailable` allows, with the numbers as a clause: no pod is evicted
/// there.
pub fn overruns(fleet: &Fleet, ownership: &Ownership, marks: &Marks) -> BTreeMap<String, String> {
    let count = |node: &str| fleet.gpu_nodes.get(node).and_then(|n| n.status.as_ref()).map_or(0, |s| s.gpus.len());
    let of = |pool: &GpuPool| {
        let name = pool.name_any();
        let nodes = ownership.nodes_of(&name)?;
        let marked: usize = nodes.iter().map(|n| marked_gpus(fleet, marks, n.as_str())).sum();
        if marked == 0 {
            return None;
        }
        let all: usize = nodes.iter().map(|n| count(n.as_str())).sum();
        let most = limit(&pool.spec.health.max_unavailable, all);
        let over = format!(
            "{marked} of {all} GPUs are withdrawn or on marked nodes, and spec.health.maxUnavailable is {most}"
        );
        (marked > most).then_some((name, over))
    };
    fleet.active_pools().filter_map(of).collect()
}

/// GPUs of a node that verdicts take.
fn marked_gpus(fleet: &Fleet, marks: &Marks, node: &str) -> usize {
    let status = fleet.gpu_nodes.get(node).and_then(|n| n.status.as_ref());
    status.map_or(0, |status| status.gpus.iter().filter(|gpu| marks.of_gpu(node, &gpu.uuid).is_some()).count())
}
