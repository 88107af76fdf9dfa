//! Pools with so many faulty GPUs at once that a fault of what reports them is more likely than so many faults of nodes.

use std::collections::BTreeMap;

use gputenancy_crds::GpuPool;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    change::limit,
    fleet::Fleet,
    pool::derive::{marks::Marks, ownership::Ownership},
};

/// Pools of which faults take more GPUs at once than `spec.health.maxUnavailable` allows: no pod is evicted there.
#[derive(Clone, Debug, Default)]
pub struct Overruns {
    /// By pool, with the numbers as a clause.
    over: BTreeMap<String, String>,
    /// When the last overrun ended, of pools that exist.
    ended: BTreeMap<String, Timestamp>,
}

impl Overruns {
    /// Brings them up to date with the fleet.
    pub fn update(&mut self, fleet: &Fleet, ownership: &Ownership, marks: &Marks, now: Timestamp) {
        let over = overruns(fleet, ownership, marks);
        let before = std::mem::replace(&mut self.over, over);
        let ended = before.into_keys().filter(|pool| !self.over.contains_key(pool));
        self.ended.extend(ended.map(|pool| (pool, now)));
        self.ended.retain(|name, _| fleet.pools.iter().any(|pool| pool.name_any() == *name));
        // the clock may have been set back
        self.ended.values_mut().for_each(|at| *at = (*at).min(now));
    }

    /// Of an overrun the numbers, as a clause.
    pub fn of(&self, pool: &str) -> Option<&String> {
        self.over.get(pool)
    }

    /// When the last overrun of a pool ended: time limits of changes that it suspended begin again then.
    pub fn ended(&self, pool: &str) -> Option<Timestamp> {
        self.ended.get(pool).copied()
    }
}

/// Pools with an overrun, with the numbers. Maintenance that is planned for later is announced, and no fault.
fn overruns(fleet: &Fleet, ownership: &Ownership, marks: &Marks) -> BTreeMap<String, String> {
    let count = |node: &str| fleet.gpu_nodes.get(node).and_then(|n| n.status.as_ref()).map_or(0, |s| s.gpus.len());
    let of = |pool: &GpuPool| {
        let name = pool.name_any();
        let nodes = ownership.nodes_of(&name)?;
        let faulty: usize = nodes.iter().map(|n| faulty_gpus(fleet, marks, n.as_str())).sum();
        if faulty == 0 {
            return None;
        }
        let all: usize = nodes.iter().map(|n| count(n.as_str())).sum();
        let most = limit(&pool.spec.health.max_unavailable, all);
        let over = format!(
            "{faulty} of {all} GPUs are withdrawn or on nodes with a fault, and spec.health.maxUnavailable is {most}"
        );
        (faulty > most).then_some((name, over))
    };
    fleet.active_pools().filter_map(of).collect()
}

/// GPUs of a node that faults take.
fn faulty_gpus(fleet: &Fleet, marks: &Marks, node: &str) -> usize {
    let status = fleet.gpu_nodes.get(node).and_then(|n| n.status.as_ref());
    status.map_or(0, |status| status.gpus.iter().filter(|gpu| marks.is_faulty(node, &gpu.uuid)).count())
}
