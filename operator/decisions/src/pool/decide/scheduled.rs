//! What of the plan may begin now: maintenance windows, requests in progress, faults, and stages of rollouts.

use std::{collections::BTreeMap, ops::Deref};

use gputenancy_crds::GpuPool;
use kube::ResourceExt as _;

use super::{
    fleet_plan::Planned,
    overruns::Overruns,
    partitioner::{self, Requests},
    rollout::{self, Stages},
    urgent::{self, Urgent},
};
use crate::{
    change::{Window, WindowError, Windows},
    pool::read::inventory::Inventory,
};

/// Whether changes may begin now, by pool.
pub type PoolWindows = BTreeMap<String, Result<Window, WindowError>>;

/// The plan with what keeps its changes from a start.
pub struct Scheduled<'a> {
    planned: Planned<'a>,
    /// Maintenance windows.
    pub windows: PoolWindows,
    /// Requests for nodes that are partitioned as a whole.
    pub requests: Requests,
    /// Pools with too many faulty GPUs.
    pub overruns: &'a Overruns,
    /// Stages of rollouts.
    pub stages: Stages,
    /// GPUs whose change does not wait for a window, with the reason.
    pub urgent: Urgent,
}

impl<'a> Scheduled<'a> {
    /// Decides what may begin; `overruns` are those of the last decision.
    pub fn of(planned: Planned<'a>, overruns: &'a mut Overruns) -> Self {
        let inventory = planned.inventory();
        let windows = windows(&inventory);
        let mut requests = partitioner::requests(&planned, planned.plan.plan);
        requests.retain(|node, _| !planned.ownership.is_conflicting(node.as_str()));
        overruns.update(planned.fleet(), planned.ownership, planned.marks, planned.now());
        let (stages, urgent) = (rollout::stages(&planned), urgent::changes(&planned, &windows));
        Self { planned, windows, requests, overruns, stages, urgent }
    }
}

/// A stage has all that the one before it has.
impl<'a> Deref for Scheduled<'a> {
    type Target = Planned<'a>;

    fn deref(&self) -> &Planned<'a> {
        &self.planned
    }
}

/// Whether changes may begin now, for each pool; a pool whose windows cannot be parsed begins none.
fn windows(inventory: &Inventory<'_>) -> PoolWindows {
    let now = inventory.now;
    let of = |pool: &GpuPool| Windows::read(&pool.spec.disruption.windows, now).map(|w| w.at(now));
    inventory.fleet.pools.iter().map(|pool| (pool.name_any(), of(pool))).collect()
}
